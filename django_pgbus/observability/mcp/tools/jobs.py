"""Jobs: lists of them in any state, one of them wherever it is, and those that gave up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from django_pgbus.observability.mcp import contents, inputs, words
from django_pgbus.observability.mcp.contents import Attempt
from django_pgbus.observability.mcp.standing import standing
from django_pgbus.observability.mcp.words import Refused
from django_pgbus.tasks import constraints, stats
from django_pgbus.tasks.stats import Page
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Situation

State = Literal["any", "ready", "running", "delayed", "parked", "succeeded", "discarded", "skipped", "dead"]
Queue = Annotated[inputs.Text, Field(description="The name of one queue; empty: all.")]
Part = Annotated[inputs.Text, Field(description="Part of a task's path or of an event's topic; empty: all.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """
    One job of a list. `standing` says in words how it stands, `reason` why.

    `since` is when it came to stand so (in line, running, parked, finished, dead). `exception` is the class of its last
    recorded error, `key` what a parked one waits for. A handler's copy of an event has the event's id and topic.
    """

    id: int
    task: str
    queue: str
    state: str
    standing: str
    reason: str
    priority: int
    attempts: int
    enqueued_at: datetime
    since: datetime | None
    due_at: datetime | None
    worker: str
    key: str
    exception: str
    event_id: UUID | None
    topic: str | None
    batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """
    Jobs, those with the highest id first. `next` is what to give as `before` to go on; null at the end.

    A page may hold fewer than `limit`, or none, though there are more: it ends where it has looked far enough.
    """

    jobs: list[Listed]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    One job, wherever it is.

    `payload` is the arguments of a task, or the payload and headers of an event, as JSON text; it, `result` and the
    tracebacks are redacted unless they were asked for and the server allows it: `redaction` says which. `max_attempts` is
    null where this process cannot import the code at `task`. Keys and limit are those it was enqueued with.
    """

    id: int
    task: str
    code: str
    queue: str
    state: str
    standing: str
    reason: str
    priority: int
    attempts: int
    max_attempts: int | None
    delivery: int
    enqueued_at: datetime
    in_line_since: datetime | None
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    leased_until: datetime | None
    worker: str
    uniqueness_key: str
    uniqueness_strategy: str
    limited_key: str
    limit: int | None
    event_id: UUID | None
    topic: str | None
    batch: int | None
    payload: str
    result: str | None
    failed_attempts: list[Attempt]
    redaction: str


def pgbus_jobs(
    state: Annotated[State, Field(description="Where to look.")] = "any",
    queue: Queue = "",
    text: Part = "",
    before: inputs.Before = None,
    limit: inputs.Limit = 50,
) -> Jobs:
    """List jobs in one state or in all, the newest first, with how each stands and why; without what they carry."""
    states = list(stats.STATES) if state == "any" else [state]
    return _listed(stats.page(states, queue=queue, text=text, before=inputs.before_of(before), most=limit))


def pgbus_dead_letters(
    queue: Queue = "", text: Part = "", before: inputs.Before = None, limit: inputs.Limit = 50
) -> Jobs:
    """List jobs that gave up, the newest first: why, after how many attempts, and the class of the last error."""
    return _listed(stats.page(["dead"], queue=queue, text=text, before=inputs.before_of(before), most=limit))


def pgbus_job(id: inputs.Id, *, include_payload: inputs.IncludePayload = False) -> Job:
    """Tell one job, wherever it is: how it stands, its times, its attempts and errors, what it carries (redacted)."""
    job = found(id)
    code = contents.code_of(job)
    situation = waiting.situation()
    stands = standing(job, situation)
    carried = contents.of_job(job, code, tell=contents.may_tell(include_payload))
    bound = constraints.readable(job.constraints)
    unique, limit = bound.unique, bound.limit
    return Job(
        id=job.id,
        task=words.name(job.task),
        code=f"{code.kind}; {'cannot be imported here' if code.missing else 'can be imported here'}",
        queue=words.name(job.queue),
        state=job.state,
        standing=stands.state,
        reason=stands.reason,
        priority=job.priority,
        attempts=job.attempts,
        max_attempts=code.most,
        delivery=job.delivery,
        enqueued_at=words.known_utc(job.enqueued_at),
        in_line_since=words.utc(job.since) if job.place == "line" else None,
        due_at=words.utc(job.due_at),
        started_at=words.utc(job.started_at) if job.state != "ready" else None,
        ended_at=words.utc(job.ended_at),
        leased_until=words.utc(job.leased_until),
        worker=worker_name(job, situation),
        uniqueness_key=words.name(unique.name or unique.key) if unique else "",
        uniqueness_strategy=unique.strategy if unique else "",
        limited_key=words.name(limit.name or limit.key) if limit else "",
        limit=limit.to if limit else None,
        event_id=job.event_id,
        topic=None if job.topic is None else words.name(job.topic),
        batch=job.batch_id,
        payload=carried.payload,
        result=carried.result,
        failed_attempts=carried.attempts,
        redaction=contents.why_redacted(include_payload),
    )


def found(given: Any) -> stats.JobDetails:
    """Return a job; refuses an id under which there is none."""
    job = stats.job(inputs.known_id(given))
    if job is None:
        raise Refused(
            "There is no job of this id: none was ever committed under it, or it has ended and is not kept any longer "
            "(ARCHIVE_RETENTION, DEAD_LETTER_RETENTION)."
        )
    return job


def worker_name(job: Any, situation: Situation) -> str:
    """Return the name of the worker that has a job or had it, or its id once it is forgotten."""
    return words.name(situation.name_of(job.worker)) if job.worker and job.state != "ready" else ""


def _listed(page: Page) -> Jobs:
    situation = waiting.situation()
    return Jobs(jobs=[_one(job, situation) for job in page.jobs], next=page.next)


def _one(job: stats.Job, situation: Situation) -> Listed:
    stands = standing(job, situation)
    return Listed(
        id=job.id,
        task=words.name(job.task),
        queue=words.name(job.queue),
        state=job.state,
        standing=stands.state,
        reason=stands.reason,
        priority=job.priority,
        attempts=job.attempts,
        enqueued_at=words.known_utc(job.enqueued_at),
        since=words.utc(job.since),
        due_at=words.utc(job.due_at),
        worker=worker_name(job, situation),
        key=words.name(job.key),
        exception=contents.exception_class(job.exception),
        event_id=job.event_id,
        topic=None if job.topic is None else words.name(job.topic),
        batch=job.batch_id,
    )
