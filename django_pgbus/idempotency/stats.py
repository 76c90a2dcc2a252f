"""
Read-only numbers of the claims and of what was counted, for people: admin, metrics and MCP all read these.

Rows are counted to `LIMIT`, and say so beyond; each function asks a fixed number of times, whatever there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django_pgbus.conf import get_settings
from django_pgbus.idempotency import stats_sql
from django_pgbus.queues.stats import LIMIT, Count

MOST_CLAIMS: Final = 50
MOST_TOPICS: Final = 50
REACH: Final = 10_000  # among how many a text is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many claims there are: of runs that beat, of such that fell silent, and of what is completed."""

    running: Count
    silent: Count
    completed: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimStats:
    """
    One handler's claim on one event; `message_id` holds it, or did when it was completed.

    Of one that is pending `leased_until` says until when its holder certainly works, or since when it is `silent`.
    """

    event_id: UUID
    handler: str
    message_id: int
    delivery: int
    claimed_at: datetime
    processed_at: datetime
    completed_at: datetime | None
    leased_until: datetime | None
    silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """How many deliveries were skipped for one reason, and when last."""

    reason: str
    number: Count
    last_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrouted:
    """How many events of one topic met no handler, and when last."""

    topic: str
    number: Count
    last_at: datetime


def counts() -> Counts:
    """Return how many claims there are."""
    row = stats_sql.COUNTS.row(limit=LIMIT, lease=_lease())
    more = row.pending > LIMIT
    return Counts(
        running=Count(min(row.pending - row.silent, LIMIT), more),
        silent=Count(min(row.silent, LIMIT), more),
        completed=Count(min(row.completed, LIMIT), row.completed > LIMIT),
    )


def claims(text: str = "", most: int = MOST_CLAIMS) -> list[ClaimStats]:
    """Return the pending claims, then those completed last; `text` is part of the handler."""
    return _claims(stats_sql.CLAIMS.rows(text=text.lower(), reach=REACH, most=most, lease=_lease()))


def claims_of(event: UUID, most: int = MOST_CLAIMS) -> list[ClaimStats]:
    """Return the claims on one event, by handler."""
    return _claims(stats_sql.OF_EVENT.rows(event=event, most=most, lease=_lease()))


def skipped() -> list[Skipped]:
    """Return how many deliveries were skipped, for each reason."""
    return [
        Skipped(reason=row.reason, number=Count(row.amount, row.rows > LIMIT), last_at=row.last_at)
        for row in stats_sql.SKIPPED.rows(limit=LIMIT)
    ]


def unrouted(text: str = "", most: int = MOST_TOPICS) -> list[Unrouted]:
    """Return the topics that met no handler, what was seen last first; `text` is part of the topic."""
    return [
        Unrouted(topic=row.topic, number=Count(row.amount, row.rows > LIMIT), last_at=row.last_at)
        for row in stats_sql.UNROUTED.rows(text=text.lower(), limit=LIMIT, most=most)
    ]


def unrouted_total() -> Count:
    """Return how many events met no handler, of the topics that were seen within `ARCHIVE_RETENTION`."""
    row = stats_sql.UNROUTED_TOTAL.row(limit=LIMIT)
    return Count(row.amount, row.rows > LIMIT)


def _claims(rows: list[Any]) -> list[ClaimStats]:
    return [ClaimStats(**row._asdict()) for row in rows]


def _lease() -> str:
    return f"{get_settings().VISIBILITY_TIMEOUT} seconds"
