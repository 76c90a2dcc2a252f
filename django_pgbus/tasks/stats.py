"""
Jobs wherever they are, read only, for people: one list over every state.

Each function asks a fixed number of times and looks at a bounded number of rows. Places are `line`, `delayed`, `parked`,
`dead` and `done`; a caller names those that whoever asks may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django_pgbus.postgres.keys import stored, why_unusable
from django_pgbus.queues import stats as queue_stats
from django_pgbus.queues.stats import LIMIT, Count
from django_pgbus.tasks import stats_sql

LINE: Final = "line"
DELAYED: Final = "delayed"
PARKED: Final = "parked"
DEAD: Final = "dead"
DONE: Final = "done"
OPEN: Final = (LINE, DELAYED, PARKED, DEAD)  # what is not done with
PLACES: Final = (*OPEN, DONE)
NEWEST_OF_ALL: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    One job and what it waits for.

    `since` it is where it is (None for a delayed one). `reason` is why it is delayed, what it is parked for, why it died or
    how it ended. `exception` and the end of `traceback` are those of its last failed attempt; a finished one has its note
    there.
    """

    id: int
    place: str
    queue: str
    priority: int
    task: str
    attempts: int
    batch_id: int | None
    event_id: UUID | None
    topic: str | None
    enqueued_at: datetime
    since: datetime | None
    due_at: datetime | None
    reason: str
    key: str
    constraints: str | None
    suspect: bool
    discard_requested: bool
    leased_until: datetime | None
    worker: UUID | None
    exception: str | None
    traceback: str | None

    def __str__(self) -> str:
        return f"{self.task} #{self.id}"

    @property
    def waits_for(self) -> str:
        """Return what a parked job waits for."""
        return self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AtKey:
    """The ids of who has to do with a key: parked for it, holding a slot of it, or the key itself."""

    parked: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    locks: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()

    @property
    def jobs(self) -> set[int]:
        """Return all that are jobs."""
        return {*self.parked, *self.slots, *self.locks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many jobs stand in each state, each counted to its own limit."""

    ready: Count
    running: Count
    delayed: Count
    retrying: Count
    parked: Count
    dead: Count
    finished: Count


def newest(places: Sequence[str], limit: int, below: int = NEWEST_OF_ALL) -> list[int]:
    """Return the ids of the newest jobs in these places, those below an id; the highest first."""
    return [id for (id,) in stats_sql.NEWEST.tuples(places=list(places), below=below, limit=limit)]


def named(text: str, places: Sequence[str], limit: int, reach: int, below: int = NEWEST_OF_ALL) -> list[int]:
    """Return the ids of jobs whose path or topic holds a text, among the newest `reach` of each place."""
    if "\x00" in text:
        return []
    asked = {"text": text, "places": list(places), "reach": reach, "below": below, "limit": limit}
    return [id for (id,) in stats_sql.NAMED.tuples(**asked)]


def beyond(reach: int) -> bool:
    """Return whether any place holds more jobs than a search looks at."""
    return bool(stats_sql.BEYOND.row(reach=reach).more)


def at_key(key: str, limit: int) -> AtKey:
    """Return who has to do with a key, of each kind at most `limit`; the key as it was chosen, or as it is stored."""
    if why_unusable(key):
        return AtKey()
    found: dict[str, list[int]] = {"parked": [], "slot": [], "lock": [], "batch": []}
    for how, id in stats_sql.AT_KEYS.tuples(keys=sorted({key, stored(key)}), limit=limit):
        found[how].append(id)
    return AtKey(
        parked=tuple(found["parked"]),
        slots=tuple(found["slot"]),
        locks=tuple(found["lock"]),
        batches=tuple(found["batch"]),
    )


def jobs(ids: Sequence[int], places: Sequence[str] = PLACES) -> list[Job]:
    """Return these jobs where they are now, the highest id first; those in other places are left out."""
    return [Job(**row._asdict()) for row in stats_sql.JOBS.rows(ids=list(ids), places=list(places))]


def counts() -> Counts:
    """Return how many jobs stand in each state."""
    of_queues = queue_stats.totals(queue_stats.queues())
    retrying = sum((delays.retrying for delays in queue_stats.delays().values()), Count(0))
    row = stats_sql.COUNTS.row(limit=LIMIT)
    return Counts(
        ready=of_queues.ready,
        running=of_queues.running,
        delayed=of_queues.delayed,
        retrying=retrying,
        parked=_count(row.parked),
        dead=of_queues.dead,
        finished=_count(row.finished),
    )


def _count(number: int) -> Count:
    return Count(min(number, LIMIT), number > LIMIT)
