"""
Read-only lists of jobs, for people and machines: where each is, and what is known of it.

A page is found by the id of the last one before it, so what comes and goes meanwhile moves nothing. Each function asks a
fixed number of times, whatever there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django_pgbus.queues import stats as queue_stats
from django_pgbus.tasks import job_stats_sql

PLACES: Final = {
    "ready": "line",
    "running": "line",
    "delayed": "delayed",
    "parked": "parked",
    "succeeded": "done",
    "discarded": "done",
    "skipped": "done",
    "dead": "dead",
}
MOST_JOBS: Final = 50
REACH: Final = 10_000  # of each place, to find what no index knows
BEHIND_ALL: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStats:
    """
    One job of a list, with what it takes to say how it stands.

    `since` is when it came to stand so: in line, with its worker, parked, finished or dead. `reason` says why it is
    delayed, what was noted when it finished, or why it died; `exception` is the class of its last recorded error.
    """

    state: str
    id: int
    queue: str
    priority: int
    task: str
    topic: str | None
    event_id: UUID | None
    batch_id: int | None
    attempts: int
    enqueued_at: datetime
    suspect: bool
    discard_requested: bool
    leased_until: datetime | None
    worker: UUID | None
    due_at: datetime | None
    reason: str
    waits_for: str
    key: str
    since: datetime | None
    started_at: datetime | None
    exception: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some jobs, the newest first; `next` is what to ask for as `before` to go on, None at the end."""

    jobs: Sequence[JobStats]
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


def jobs(
    states: Iterable[str] = PLACES, *, queue: str = "", text: str = "", before: int = BEHIND_ALL, most: int = MOST_JOBS
) -> Page:
    """
    Return the newest jobs in these states below the id `before`; `text` is part of a task's path or of a topic.

    A page may hold fewer than `most`, even none, and there be more: it ends where it has looked far enough.
    """
    wanted = list(dict.fromkeys(states))
    places = {PLACES[state] for state in wanted}
    complete = all(state in wanted for state, place in PLACES.items() if place in places)
    filtered = not complete or queue or text
    # Whoever runs stands at the front of the line, which a list of the newest would reach last.
    ids = queue_stats.running_ids() if wanted == ["running"] else None
    if ids is not None:
        before = min(before, max(ids, default=0) + 1)
    rows = job_stats_sql.JOBS.rows(
        places=sorted(places),
        states=wanted,
        queue=queue,
        text=text.lower(),
        before=before,
        ids=ids,
        reach=REACH if filtered else most + 1,
        most=most,
    )
    found = [_job(row) for row in rows if row.id is not None]
    if len(found) > most:
        return Page(jobs=found[:most], next=found[most - 1].id)
    return Page(jobs=found, next=rows[0].low or None)


def job(id: int) -> JobDetails | None:
    """Return everything that is known of one job, None if it is nowhere."""
    row = job_stats_sql.JOB.row(id=id)
    return None if row is None else JobDetails(**row._asdict())


def _job(row: Any) -> JobStats:
    fields = row._asdict()
    del fields["low"]
    return JobStats(**fields)
