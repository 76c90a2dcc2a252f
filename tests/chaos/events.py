"""Events in the chaos: the four handlers of the storm, published with duplicates, and what must hold of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import handlers
from tests.chaos.causes import KILLS, STOPS, Causes
from tests.processes.harness import execute
from tests.storm import event_books, event_handlers

# A run of a handler knows neither message nor delivery: whoever was silent for longer than a lease may have been replaced.
REPEATS: Final = KILLS | STOPS | {"stop_child", "stop_worker", "stall", "stall_and_reset", "starved"}
CREATE: Final = (
    event_handlers.CREATE
    + "CREATE TABLE chaos_published (event uuid NOT NULL, publication int GENERATED ALWAYS AS IDENTITY);"
)
PUBLISHED: Final = "INSERT INTO chaos_published (event) SELECT unnest(%s::uuid[]) RETURNING publication"


def declare() -> None:
    """Make the tables of the books, and the subscriptions."""
    execute(CREATE)
    subscriptions.declare(handlers[path] for path in event_books.PATHS.values())


def check(causes: Causes) -> dict[str, list[str]]:
    """Return what is wrong by check."""
    published = Counter(event for (event,) in execute("SELECT event FROM chaos_published"))
    kills = causes.kills(REPEATS)
    _, _, unexplained = event_books.repeats(event_books.noted(), kills)
    ledger, others = [], []
    for line in event_books.wrong(published):
        (ledger if "in the ledger" in line else others).append(line)
    return {"events": others, "event-effects": ledger, "event-claims": unexplained}


def workload() -> dict[str, int]:
    """Return how many were published and run."""
    rows: Iterable[tuple[Any, ...]] = execute(
        "SELECT (SELECT count(*) FROM chaos_published), (SELECT count(DISTINCT event) FROM chaos_published),"
        " (SELECT count(*) FROM event_storm_runs), (SELECT count(*) FROM event_storm_ledger),"
        " (SELECT coalesce(sum(amount), 0)::int FROM pgbus_event_counts WHERE status = 'skipped')"
    )
    ((published, events, runs, ledger, skipped),) = rows
    return {"published": published, "sent": events, "runs": runs, "effects": ledger, "skipped": skipped}
