"""
Jobs wherever they are, read only, for people and machines: one list over every state, and all of one job.

Each function asks a fixed number of times and looks at a bounded number of rows. A page begins below the last id of the
one before, so what comes and goes meanwhile moves nothing. Places are `line`, `delayed`, `parked`, `dead` and `done`; a
caller names those that whoever asks may see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
STATES: Final = {
    "ready": LINE,
    "running": LINE,
    "delayed": DELAYED,
    "parked": PARKED,
    "succeeded": DONE,
    "discarded": DONE,
    "skipped": DONE,
    "dead": DEAD,
}
NEWEST_OF_ALL: Final = 2**63 - 1
MOST_JOBS: Final = 50
REACH: Final = 10_000  # of each place, to find what no index knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    One job of a list, with what it takes to say how it stands.

    `since` it stands so (None for a delayed one). `reason` is why it is delayed, why it died, or what was noted when it
    ended. `exception` and the end of `traceback` are those of its last failed attempt; a finished one has none.
    """

    id: int
    place: str
    state: str
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
    waits_for: str
    key: str
    constraints: str | None
    suspect: bool
    discard_requested: bool
    leased_until: datetime | None
    worker: UUID | None
    exception: str | None
    traceback: str | None = field(repr=False)

    def __str__(self) -> str:
        return f"{self.task} #{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look at the newest of each place found: ids, the highest first; and the highest id it did not get to."""

    ids: Sequence[int] = ()
    unseen: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some jobs, the newest first; `next` is what to ask for as `before` to go on, None at the end."""

    jobs: Sequence[Job]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails:
    """
    All of one job, wherever it is: `place` is `line`, `delayed`, `parked`, `done` or `dead`.

    `payload`, `constraints`, `errors` and `result` are JSON as it is stored; the repr holds no arguments. `now` is the
    database's clock.
    """

    place: str
    state: str
    id: int
    queue: str
    priority: int
    task: str
    backend: str
    delivery: int
    attempts: int
    batch_id: int | None
    event_id: UUID | None
    topic: str | None
    enqueued_at: datetime
    payload: str = field(repr=False)
    constraints: str | None
    errors: str | None = field(repr=False)
    position: int
    suspect: bool
    discard_requested: bool
    leased_until: datetime | None
    worker: UUID | None
    since: datetime | None
    due_at: datetime | None
    reason: str
    waits_for: str
    key: str
    semaphore: str | None
    result: str | None = field(repr=False)
    started_at: datetime | None
    ended_at: datetime | None
    now: datetime

    @property
    def of_event(self) -> bool:
        """Return whether it is a handler's copy of an event, or a routed entry of a stream."""
        return self.event_id is not None or self.topic is not None


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


def newest(places: Sequence[str], limit: int, below: int = NEWEST_OF_ALL) -> Look:
    """Find the newest jobs in these places, those below an id."""
    return _look(_states_of(places), limit=limit, reach=limit, within=below)


def named(text: str, places: Sequence[str], limit: int, reach: int, below: int = NEWEST_OF_ALL) -> Look:
    """Find jobs whose path or topic holds a text, among the newest `reach` of each place."""
    return Look() if "\x00" in text else _look(_states_of(places), limit=limit, reach=reach, below=below, text=text)


def page(
    states: Iterable[str] = STATES,
    *,
    queue: str = "",
    text: str = "",
    before: int = NEWEST_OF_ALL,
    most: int = MOST_JOBS,
) -> Page:
    """
    Return the newest jobs in these states below the id `before`; `text` is part of a task's path or of a topic.

    A page may hold fewer than `most`, even none, and there be more: it ends where it has looked far enough.
    """
    wanted = list(dict.fromkeys(states))
    places = _places_of(wanted)
    filtered = queue or text or set(wanted) != set(_states_of(places))
    # Whoever runs stands at the front of the line, which a list of the newest would reach last.
    running = queue_stats.running_ids() if wanted == ["running"] else None
    if running is not None:
        before = min(before, max(running, default=0) + 1)
    reach = REACH if filtered else most + 1
    look = _look(wanted, limit=most + 1, reach=reach, within=before, queue=queue, text=text, among=running)
    ids = [id for id in look.ids if look.unseen is None or id > look.unseen]
    here = [job for job in jobs(ids[:most], places) if job.state in wanted] if ids else []
    if len(ids) > most:
        return Page(jobs=here, next=ids[most - 1])
    return Page(jobs=here, next=None if look.unseen is None else look.unseen + 1)


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


def job(id: int) -> JobDetails | None:
    """Return everything that is known of one job, None if it is nowhere."""
    row = stats_sql.JOB.row(id=id)
    return None if row is None else JobDetails(**row._asdict())


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


def _states_of(places: Sequence[str]) -> list[str]:
    return [state for state, place in STATES.items() if place in places]


def _places_of(states: Sequence[str]) -> list[str]:
    return sorted({STATES[state] for state in states})


def _look(
    states: Sequence[str],
    *,
    limit: int,
    reach: int,
    within: int = NEWEST_OF_ALL,
    below: int = NEWEST_OF_ALL,
    queue: str = "",
    text: str = "",
    among: Sequence[int] | None = None,
) -> Look:
    """Find the newest `limit` below `below` of those that are among the newest `reach` of each place below `within`."""
    rows = stats_sql.FOUND.rows(
        places=_places_of(states),
        states=list(states),
        within=within,
        ids=among,
        reach=reach,
        below=below,
        queue=queue,
        text=text,
        limit=limit,
    )
    return Look(ids=[row.id for row in rows if row.id is not None], unseen=rows[0].unseen)
