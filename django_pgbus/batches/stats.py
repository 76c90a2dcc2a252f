"""
Read-only numbers of the batches, for people: admin, metrics and MCP all read these.

Members are counted to `LIMIT` in each place, and say so beyond; each function asks a fixed number of times, whatever
there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django_pgbus.batches import stats_sql
from django_pgbus.queues.stats import LIMIT, Count

COUNTS: Final = 1_000  # rows of counts looked at for each batch; workers fold them from a hundred on
MOST_MEMBERS: Final = 50
MOST_BATCHES: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStats:
    """How far one batch is: `total = outstanding + succeeded + failed`, each of them at least so many if it says so."""

    id: int
    total: Count
    succeeded: Count
    failed: Count

    @property
    def done(self) -> Count:
        """Return how many members have ended, one way or the other."""
        return self.succeeded + self.failed

    @property
    def outstanding(self) -> Count:
        """Return how many members have not ended."""
        return Count(max(0, self.total.number - self.done.number), self.total.more)

    @property
    def percent(self) -> int:
        """Return how much is done, rounded down; an empty batch is done."""
        return min(100, 100 * self.done.number // self.total.number) if self.total.number else 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the members of one batch are; `dead` are those that failed and are still among the dead letters."""

    ready: Count
    running: Count
    delayed: Count
    parked: Count
    dead: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """
    One member that has not ended, with what it takes to say how it stands.

    `place` is `line`, `delayed` or `parked`; what belongs to another place is empty.
    """

    place: str
    id: int
    task: str
    queue: str
    attempts: int
    suspect: bool
    discard_requested: bool
    leased_until: datetime | None
    worker: UUID | None
    due_at: datetime | None
    reason: str
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMember:
    """One member that failed and is still a dead letter."""

    id: int
    task: str
    queue: str
    attempts: int
    reason: str
    died_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The batches that are not finished; `oldest` in seconds."""

    number: Count
    oldest: float | None


def unfinished() -> Unfinished:
    """Return how many batches are not finished, and since when the first of them is open."""
    row = stats_sql.UNFINISHED.row(limit=LIMIT)
    return Unfinished(number=_count(row.number), oldest=row.oldest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One batch that is kept; of `description` only the start."""

    id: int
    description: str
    key: str
    created_at: datetime
    finished_at: datetime | None


def newest(before: int = 2**63 - 1, most: int = MOST_BATCHES) -> list[Opened]:
    """Return the newest batches below the id `before`."""
    return [Opened(**row._asdict()) for row in stats_sql.NEWEST.rows(before=before, most=most)]


def standing(ids: Iterable[int]) -> dict[int, BatchStats]:
    """Return how far these batches are, by their ids, as one snapshot saw them."""
    return {row.id: _standing(row) for row in stats_sql.STANDING.rows(ids=sorted(ids), each=COUNTS)}


def places(id: int) -> Places:
    """Return where the members of a batch are."""
    row = stats_sql.PLACES.row(id=id, limit=LIMIT)
    more = row.in_line > LIMIT  # and whoever runs may stand among those that were not looked at
    return Places(
        ready=Count(min(row.ready, LIMIT), more),
        running=Count(min(row.running, LIMIT), more),
        delayed=_count(row.delayed),
        parked=_count(row.parked),
        dead=_count(row.dead),
    )


def outstanding(id: int, most: int = MOST_MEMBERS) -> list[Member]:
    """Return the first members of a batch that have not ended, by id."""
    return [Member(**row._asdict()) for row in stats_sql.OUTSTANDING.rows(id=id, most=most)]


def dead(id: int, most: int = MOST_MEMBERS) -> list[DeadMember]:
    """Return the first members of a batch that are dead letters, by id."""
    return [DeadMember(**row._asdict()) for row in stats_sql.DEAD.rows(id=id, most=most)]


def _standing(row: Any) -> BatchStats:
    more = row.rows > COUNTS
    return BatchStats(
        id=row.id,
        total=Count(row.total, more),
        succeeded=Count(row.succeeded, more),
        failed=Count(row.failed, more),
    )


def _count(number: int) -> Count:
    """Return a count of rows of which one more than `LIMIT` were looked for."""
    return Count(min(number, LIMIT), number > LIMIT)
