"""
Read-only numbers of the queues, for people: admin, metrics and MCP all read these.

Counts are exact up to `LIMIT` per level or queue, and from ten of them on up to their share of `BUDGET`; beyond it
they say so. No number here makes anybody wait for a scan of a million rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django_pgbus.queues import stats_sql

LIMIT: Final = 10_000
BUDGET: Final = 100_000
MOST_QUEUES: Final = 1_000
READ: Final = 20_000  # rows of delayed jobs, whose reason stands in no index


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; with `more` there are at least so many."""

    number: int
    more: bool = False

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.more else ''}"

    def __bool__(self) -> bool:
        return self.number > 0 or self.more

    def __add__(self, other: Count) -> Count:
        return Count(self.number + other.number, self.more or other.more)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """One queue now. `oldest_ready` and `next_due` are in seconds; `next_due` below 0 is overdue."""

    name: str
    ready: Count
    running: Count
    delayed: Count
    dead: Count
    oldest_ready: float | None
    next_due: float | None
    paused_at: datetime | None
    paused_by: str

    @property
    def paused(self) -> bool:
        """Return whether nothing is claimed from it."""
        return self.paused_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Of the delayed jobs of one queue: which are due, and which wait for their next attempt."""

    due: Count
    retrying: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All queues together; `oldest_ready` leaves out paused ones, whose wait is wanted."""

    ready: Count
    running: Count
    delayed: Count
    dead: Count
    oldest_ready: float | None
    paused: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Since when a queue is paused, and who paused it."""

    at: datetime
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """The paused queues, and the database's clock when it was asked."""

    now: datetime
    queues: Mapping[str, Pause]


def queues() -> list[QueueStats]:
    """Return every queue that has been used, holds anything or was decided about, by name."""
    return [_queue(row) for row in stats_sql.QUEUES.rows(limit=LIMIT, budget=BUDGET, most=MOST_QUEUES)]


def totals(of: Iterable[QueueStats]) -> Totals:
    """Return the sums over queues."""
    nothing = Count(0)
    of = list(of)
    return Totals(
        ready=sum((queue.ready for queue in of), nothing),
        running=sum((queue.running for queue in of), nothing),
        delayed=sum((queue.delayed for queue in of), nothing),
        dead=sum((queue.dead for queue in of), nothing),
        oldest_ready=max(
            (queue.oldest_ready for queue in of if queue.oldest_ready is not None and not queue.paused), default=None
        ),
        paused=tuple(queue.name for queue in of if queue.paused),
    )


def delays() -> dict[str, Delays]:
    """Return by queue, where there are any, how many delayed jobs are due and how many are retries."""
    rows = stats_sql.DELAYS.rows(limit=LIMIT, budget=READ, most=MOST_QUEUES)
    return {
        row.queue: Delays(due=_count(row.due, row.of_queue), retrying=Count(row.retrying, row.number > row.of_queue))
        for row in rows
    }


def names(most: int = MOST_QUEUES) -> list[str]:
    """Return the names of the queues that are known."""
    return [row.queue for row in stats_sql.NAMES.rows(most=most)]


def pauses() -> Pauses:
    """Return which queues are paused now."""
    rows = stats_sql.PAUSES.rows(most=MOST_QUEUES)
    paused = {row.queue: Pause(at=row.paused_at, by=row.paused_by) for row in rows if row.queue is not None}
    return Pauses(now=rows[0].now, queues=paused)


def died(seconds: float, limit: int = LIMIT) -> Count:
    """Return how many dead letters of the last `seconds` are there."""
    return _count(stats_sql.DIED.row(seconds=seconds, limit=limit).number, limit)


def ahead(queue: str, priority: int, suspect: bool, position: int) -> Count:  # noqa: FBT001
    """Return how many ready jobs of a queue go before the one at `position`."""
    row = stats_sql.AHEAD.row(queue=queue, priority=priority, suspect=suspect, position=position, limit=LIMIT)
    return _count(row.number)


def running_ids() -> list[int]:
    """Return the ids of what is leased to a worker, at most `LIMIT`, looked for in the front of each level."""
    return [row.id for row in stats_sql.RUNNING.rows(limit=LIMIT, budget=BUDGET, most=MOST_QUEUES)]


def soonest_ids(reason: str) -> list[int]:
    """Return the ids of what is delayed for this reason, among the first due of each queue."""
    return [row.id for row in stats_sql.SOONEST.rows(reason=reason, limit=LIMIT, budget=BUDGET, most=MOST_QUEUES)]


def _queue(row: Any) -> QueueStats:
    return QueueStats(
        name=row.queue,
        ready=_count(row.placed - row.running, row.of_level, more=row.more),
        running=Count(row.running, row.more_running),
        delayed=_count(row.delayed, row.of_queue),
        dead=_count(row.dead, row.of_queue),
        oldest_ready=row.oldest_ready,
        next_due=row.next_due,
        paused_at=row.paused_at,
        paused_by=row.paused_by,
    )


def _count(number: int, most: int = LIMIT, *, more: bool = False) -> Count:
    """Return a count of rows of which one more than `most` were looked for."""
    return Count(min(number, most), True) if more or number > most else Count(number)
