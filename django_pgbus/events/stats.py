"""
Read-only numbers of the events, for people: admin, metrics and MCP all read these.

Copies are counted to `LIMIT` in each place, and say so beyond; each function asks a fixed number of times, whatever
there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django_pgbus.events import stats_sql
from django_pgbus.events.topics import lookups
from django_pgbus.queues.stats import LIMIT, Count

MOST_COPIES: Final = 50
MOST_SUBSCRIPTIONS: Final = 200
REACH: Final = 10_000  # among how many a text is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many copies of events are where; `processed` succeeded, were skipped or were discarded."""

    ready: Count
    running: Count
    delayed: Count
    dead: Count
    processed: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """
    One handler's copy of an event, with what it takes to say how it stands; the handler's path stands in `task`.

    `place` is `line`, `delayed`, `dead` or `done`; what belongs to another place is empty. `reason` says why it is
    delayed, why it died, or how it ended; `ended_at` when.
    """

    place: str
    id: int
    event_id: UUID
    topic: str | None  # of a row that was written past us
    task: str
    queue: str
    attempts: int
    suspect: bool
    discard_requested: bool
    leased_until: datetime | None
    worker: UUID | None
    due_at: datetime | None
    reason: str
    note: str
    enqueued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def state(self) -> str:
        """Return in one word how it stands, as of any job."""
        match self.place:
            case "line":
                return "ready" if self.leased_until is None else "running"
            case "done":
                return self.reason
        return self.place


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStats:
    """One pattern of one handler."""

    pattern: str
    handler: str
    queue: str
    priority: int
    idempotent: bool
    created_at: datetime
    declared_at: datetime


def counts() -> Counts:
    """Return how many copies of events are where."""
    row = stats_sql.COUNTS.row(limit=LIMIT)
    more = row.in_line > LIMIT  # and whoever runs may stand among those that were not looked at
    return Counts(
        ready=Count(min(row.ready, LIMIT), more),
        running=Count(min(row.running, LIMIT), more),
        delayed=_count(row.delayed),
        dead=_count(row.dead),
        processed=_count(row.processed),
    )


def pending(text: str = "", most: int = MOST_COPIES) -> list[Copy]:
    """Return the copies that are not handled yet, what was published first first; `text` is part of topic or handler."""
    return [Copy(**row._asdict()) for row in stats_sql.PENDING.rows(text=text.lower(), reach=REACH, most=most)]


def dead(text: str = "", most: int = MOST_COPIES) -> list[Copy]:
    """Return the copies that gave up, the newest events first."""
    return [Copy(**row._asdict()) for row in stats_sql.DEAD.rows(text=text.lower(), reach=REACH, most=most)]


def processed(text: str = "", most: int = MOST_COPIES) -> list[Copy]:
    """Return the copies that are done, the newest events first."""
    return [Copy(**row._asdict()) for row in stats_sql.PROCESSED.rows(text=text.lower(), reach=REACH, most=most)]


def copies(event: UUID, most: int = MOST_COPIES) -> list[Copy]:
    """Return the copies of one event, wherever they are, by id."""
    return [Copy(**row._asdict()) for row in stats_sql.COPIES.rows(event=event, most=most)]


def subscriptions(text: str = "", most: int = MOST_SUBSCRIPTIONS) -> list[SubscriptionStats]:
    """Return the first subscriptions by handler; `text` is part of a pattern or handler, or a topic they match."""
    rows = stats_sql.SUBSCRIPTIONS.rows(text=text, reach=REACH, most=most)
    return [SubscriptionStats(**row._asdict()) for row in rows]


def handled(topics: Iterable[str]) -> set[str]:
    """Return those of these topics that some handler has subscribed to by now."""
    asked = list(topics)
    found = [lookups(topic) for topic in asked]
    rows = stats_sql.HANDLED.tuples(
        topics=asked,
        prefixes=[prefixes for prefixes, _ in found],
        suffixes=[suffixes for _, suffixes in found],
    )
    return {topic for (topic,) in rows}


def _count(number: int) -> Count:
    """Return a count of rows of which one more than `LIMIT` were looked for."""
    return Count(min(number, LIMIT), number > LIMIT)
