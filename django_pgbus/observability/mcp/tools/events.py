"""The event bus: copies of events and how they stand, who is subscribed, what met nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field

from django_pgbus.events import stats
from django_pgbus.events.handlers import handler_at
from django_pgbus.events.stats import Copy, Counts
from django_pgbus.idempotency import stats as claim_stats
from django_pgbus.observability.mcp import contents, inputs, words
from django_pgbus.observability.mcp.standing import standing
from django_pgbus.observability.mcp.tools.jobs import worker_name
from django_pgbus.observability.mcp.words import Refused
from django_pgbus.queues.stats import Count
from django_pgbus.tasks import stats as job_stats
from django_pgbus.worker import stats as worker_stats
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Situation

Where = Literal["pending", "dead", "processed"]
LISTS: Final[dict[str, Callable[[str, int], list[Copy]]]] = {
    "pending": stats.pending,
    "dead": stats.dead,
    "processed": stats.processed,
}
MOST_SUBSCRIPTIONS: Final = 50
MOST_TOPICS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCopy:
    """One handler's copy of an event: a job of its own, to be asked for by `job`; how it stands, and why."""

    job: int
    event_id: UUID
    topic: str
    handler: str
    queue: str
    state: str
    standing: str
    reason: str
    attempts: int
    worker: str
    published_at: datetime
    due_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An idempotent handler's claim on the event: `running`, `silent` since, or `completed`, and by which job."""

    handler: str
    job: int
    state: str
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A handler and a pattern of topics that it gets; `served` says whether a running worker works on its queue."""

    pattern: str
    handler: str
    queue: str
    idempotent: bool
    served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrouted:
    """A topic that was published and met no handler, how often and when last."""

    topic: str
    number: Count
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """How many copies are where, the copies that were asked for, who is subscribed, and what met nobody."""

    counts: Counts
    copies: list[EventCopy]
    subscriptions: list[Subscription]
    unrouted: list[Unrouted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event: the copies of all its handlers, their claims, and what was published (redacted unless asked for)."""

    event_id: UUID
    topic: str
    published_at: datetime
    copies: list[EventCopy]
    claims: list[Claim]
    payload: str
    redaction: str


def pgbus_events(
    where: Annotated[Where, Field(description="Which copies: not handled yet, given up, or done.")] = "pending",
    text: Annotated[
        inputs.Text, Field(description="Part of a topic or handler; a whole topic also finds who would get it.")
    ] = "",
    limit: inputs.Limit = 50,
) -> Events:
    """Tell the event bus: handlers' copies of events and how they stand, subscriptions, and topics that met no handler."""
    situation = waiting.situation()
    unrouted = claim_stats.unrouted(text, MOST_TOPICS)
    return Events(
        counts=stats.counts(),
        copies=_copies(LISTS[where](text, limit), situation),
        subscriptions=[
            Subscription(
                pattern=words.name(one.pattern),
                handler=words.name(one.handler),
                queue=words.name(one.queue),
                idempotent=one.idempotent,
                served=bool(worker_stats.serving(one.queue, situation.workers)),
            )
            for one in stats.subscriptions(text, MOST_SUBSCRIPTIONS)
        ],
        unrouted=[
            Unrouted(topic=words.name(one.topic), number=one.number, last_at=words.known_utc(one.last_at))
            for one in unrouted
        ],
    )


def pgbus_event(
    id: Annotated[inputs.Text, Field(description="The id of an event, as in its log lines.", min_length=1)],
    *,
    include_payload: inputs.IncludePayload = False,
) -> Event:
    """Tell one event: what became of each handler's copy of it, who has claimed it, and what was published (redacted)."""
    event = inputs.event_id(id)
    copies = stats.copies(event)
    if not copies:
        raise Refused(
            "There is no copy of an event of this id: nobody was subscribed to its topic, or all have ended and are not "
            "kept any longer."
        )
    return Event(
        event_id=event,
        topic=words.name(copies[0].topic or ""),
        published_at=words.known_utc(copies[0].enqueued_at),
        copies=_copies(copies, waiting.situation()),
        claims=[
            Claim(
                handler=words.name(one.handler),
                job=one.message_id,
                state="completed" if one.completed_at else "silent" if one.silent else "running",
                until=words.utc(one.leased_until),
            )
            for one in claim_stats.claims_of(event)
        ],
        payload=_payload(copies, tell=contents.may_tell(include_payload)),
        redaction=contents.why_redacted(include_payload),
    )


def _payload(copies: Sequence[Copy], *, tell: bool) -> str:
    """
    Return what was published, masked as the strictest of its handlers wants it.

    Each handler declares for itself what is sensitive; what one of them hides is not told through another.
    """
    if not tell:
        return contents.REDACTED
    hidden: set[str] = set()
    for path in {copy.task for copy in copies}:
        handler = handler_at(path)
        if handler is None:
            return contents.MASK
        hidden |= {*handler.policy.sensitive}
    job = job_stats.job(copies[0].id)
    return contents.MASK if job is None else contents.published(job.payload, tuple(sorted(hidden)))


def _copies(copies: Sequence[Copy], situation: Situation) -> list[EventCopy]:
    return [_copy(copy, situation) for copy in copies]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A copy, as `standing` asks for any job."""

    state: str
    queue: str
    suspect: bool
    discard_requested: bool
    leased_until: datetime | None
    worker: UUID | None
    due_at: datetime | None
    reason: str
    attempts: int


def _copy(copy: Copy, situation: Situation) -> EventCopy:
    row = _Row(
        state=copy.state,
        queue=copy.queue,
        suspect=copy.suspect,
        discard_requested=copy.discard_requested,
        leased_until=copy.leased_until,
        worker=copy.worker,
        due_at=copy.due_at,
        reason=copy.note if copy.place == "done" else copy.reason,
        attempts=copy.attempts,
    )
    stands = standing(row, situation)
    return EventCopy(
        job=copy.id,
        event_id=copy.event_id,
        topic=words.name(copy.topic or ""),
        handler=words.name(copy.task),
        queue=words.name(copy.queue),
        state=row.state,
        standing=stands.state,
        reason=stands.reason,
        attempts=copy.attempts,
        worker=worker_name(row, situation),
        published_at=words.known_utc(copy.enqueued_at),
        due_at=words.utc(copy.due_at),
        ended_at=words.utc(copy.ended_at),
    )
