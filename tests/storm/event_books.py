"""
The books of a storm over events: what each handler did with each event, and what repeated a run.

Used by the storm over events and by the chaos.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from tests.processes.harness import execute, value
from tests.storm import event_handlers

PATHS: Final = {
    function.__name__: f"{event_handlers.__name__}.{function.__name__}" for function in event_handlers.HANDLERS
}
IDEMPOTENT: Final = ("idempotent", "both")

# What a process had sent before it was killed is executed still, once its session gets a processor.
LATE: Final = timedelta(seconds=1)

Kill = tuple[int, datetime, datetime]  # process, killed after, killed before


class Ran(NamedTuple):
    """A run that was noted; the number of the publication tells the copies of one event apart."""

    event: Any
    handler: str
    publication: int
    pid: int
    began: datetime
    ended: datetime | None


def noted() -> list[Ran]:
    """Return the runs that were noted."""
    return [Ran(*row) for row in execute("SELECT event, handler, publication, pid, began, ended FROM event_storm_runs")]


def wrong(published: Counter[Any]) -> list[str]:
    """Return what was not done as often as it should, of events that were published so often."""
    found: list[str] = []
    once = Counter(dict.fromkeys(published, 1))
    ledger, archive, done = (
        _by_handler(execute(statement))
        for statement in (
            "SELECT handler, event FROM event_storm_ledger",
            "SELECT task, event_id FROM pgbus_archive WHERE outcome = 'succeeded' AND topic = 'storm.happened'",
            "SELECT handler, event_id FROM pgbus_processed_events WHERE completed_at IS NOT NULL",
        )
    )
    for name, path in PATHS.items():
        expected = once if name in IDEMPOTENT else published
        found += differences(f"{name}: settled", archive[path], expected)
        if name in {"transactional", "both"}:
            found += differences(f"{name}: in the ledger", ledger[name], expected)
        if name in IDEMPOTENT:
            found += differences(f"{name}: completed", done[path], once)
    if (pending := value("SELECT count(*) FROM pgbus_processed_events WHERE completed_at IS NULL")) > 0:
        found.append(f"{pending} claims are pending")
    skips = value("SELECT coalesce(sum(amount), 0) FROM pgbus_event_counts WHERE status = 'skipped'")
    if skips != (published.total() - len(published)) * len(IDEMPOTENT):
        found.append(f"{skips} skips were counted")
    return found


def _by_handler(rows: Iterable[tuple[str, Any]]) -> dict[str, Counter[Any]]:
    found: dict[str, Counter[Any]] = {}
    for name in (*PATHS, *PATHS.values()):
        found[name] = Counter()
    for handler, event in rows:
        found[handler][event] += 1
    return found


def differences(what: str, got: Counter[Any], expected: Counter[Any]) -> list[str]:
    """Return each event that is not there as often as it should."""
    return [
        f"{what} {got[event]} times instead of {expected[event]}: {event}"
        for event in got.keys() | expected.keys()
        if got[event] != expected[event]
    ]


def repeats(runs: Iterable[Ran], kills: Sequence[Kill]) -> tuple[dict[str, int], int, list[str]]:
    """
    Return how often runs were repeated by handler, how often one that had its end, and what no kill explains.

    Each copy of an event is for itself, unless the handler is idempotent. A run that another follows, or that has no end,
    was killed before that: in the middle, or when it had its end and its settlement was not committed yet.
    """
    of: dict[tuple[str, Any], list[Ran]] = {}
    for run in sorted(runs, key=lambda run: run.began):
        of.setdefault((run.handler, run.event if run.handler in IDEMPOTENT else run.publication), []).append(run)
    repeated: Counter[str] = Counter()
    with_an_end = 0
    unexplained = []
    for (handler, _), mine in of.items():
        repeated[handler] += len(mine) - 1
        for run, following in zip_longest(mine, mine[1:]):
            if following is None and run.ended is not None:
                continue
            with_an_end += run.ended is not None
            if not _killed_in(run, kills, following):
                unexplained.append(f"{run} was not killed, and is followed by {following}")
    return dict(repeated), with_an_end, unexplained


def _killed_in(run: Ran, kills: Sequence[Kill], following: Ran | None) -> bool:
    return any(
        pid == run.pid and before + LATE >= run.began and (following is None or after <= following.began)
        for pid, after, before in kills
    )
