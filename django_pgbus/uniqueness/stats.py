"""
Read-only numbers of the uniqueness keys, for people: admin, metrics and MCP all read these.

Keys are counted to a million, and say so beyond; each function asks a fixed number of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django_pgbus.postgres.keys import stored, why_unusable
from django_pgbus.queues.stats import Count
from django_pgbus.uniqueness import stats_sql

LIMIT: Final = 1_000_000
REACH: Final = 100_000  # a quick count goes as far
MOST_KEYS: Final = 100
UNTIL_FINISHED: Final = "until_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockStats:
    """
    One key that is held now, and by which message or batch; `held_for` in seconds.

    `name` is what was chosen, of a key that is stored as its hash. `place` says where the message is: `line`, `running`,
    `delayed` or `parked`, or `batch` for a batch that is not finished; empty if it is nowhere, which a sweep ends within a
    minute.
    """

    key: str
    name: str
    strategy: str
    queue: str
    message: int
    created_at: datetime
    held_for: float
    place: str

    @property
    def of_batch(self) -> bool:
        """Return whether a batch holds it: `message` is the batch then."""
        return self.strategy == UNTIL_FINISHED


def total(limit: int | None = None) -> Count:
    """Return how many keys are held, counted to `limit`."""
    most = LIMIT if limit is None else limit
    number = stats_sql.TOTAL.row(limit=most).number
    return Count(min(number, most), number > most)


def locks(search: str = "", most: int = MOST_KEYS) -> list[LockStats]:
    """Return the keys held longest; with a search the one that was chosen or is stored so."""
    if not search:
        wanted = [row.key for row in stats_sql.OLDEST.rows(most=most)]
    else:
        wanted = [] if why_unusable(search) else [search, stored(search)]
    return [_lock(row) for row in stats_sql.KEYS.rows(keys=wanted)]


def lock(key: str) -> LockStats | None:
    """Return one key by its stored form, None if nobody holds it."""
    return next((_lock(row) for row in stats_sql.KEYS.rows(keys=[key])), None)


def _lock(row: Any) -> LockStats:
    return LockStats(
        key=row.key,
        name=row.name,
        strategy=row.strategy,
        queue=row.queue,
        message=row.message_id,
        created_at=row.created_at,
        held_for=row.held_for,
        place=row.place,
    )
