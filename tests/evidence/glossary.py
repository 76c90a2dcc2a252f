"""The words of the page that a stranger does not know."""

from __future__ import annotations

from typing import Final

from tests.evidence.words import table

WORDS: Final = {
    "line": "The table `pgbus_messages`: what is ready to run, and what runs, in the order of `position`.",
    "level": "A queue and a priority, suspects apart: each is claimed from by itself, the highest priority first.",
    "floor": "The position at which the claims of one process in one level begin. A hint about speed: something may still"
    " appear below it.",
    "base": "The position below which nothing can appear any more,"
    " [proven](architecture/floor.md#the-base-and-its-proof) by transaction ids.",
    "look": "Once a second the poll of a worker reads all rows between base and floor, and leases that have lapsed.",
    "lease": "The time for which a task is one worker's. Its *beat* lengthens it; once it has passed it has *lapsed*.",
    "delivery number": "Raised when a task is claimed, or taken from a worker. A run is known by id and number together.",
    "fenced": "A run whose number is still the newest, under a lease, is fenced *in*. Any other is fenced *out*, or"
    " *superseded*: it can change nothing.",
    "suspect": "A task that ran when its process died. It runs alone until it has ended.",
    "settle": "End a delivery, in one transaction: the task goes to the archive, to the dead letters, or back to wait.",
    "parked": "In `pgbus_blocked_executions`, until a slot or a key is free. To let it in is to *promote* it.",
    "slot": "One of the N numbered places of a limit: a row of `pgbus_semaphore_slots`. The *semaphore* is the row of the"
    " limit itself.",
}


def glossary() -> str:
    """Return them as a table."""
    return table(("Word", "What it is"), WORDS.items())
