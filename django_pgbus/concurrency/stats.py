"""
Read-only numbers of the limits, for people: admin, metrics and MCP all read these.

Parked tasks and slots are counted to a million, and say so beyond. The keys are the busiest ones; of each at most
`LOOKED_AT` holders are looked at, of one by itself all. Each function asks a fixed number of times, whatever there is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from django_pgbus.concurrency import stats_sql
from django_pgbus.concurrency.policy import MOST
from django_pgbus.conf import get_settings
from django_pgbus.queues.stats import Count

LIMIT: Final = 1_000_000
REACH: Final = 100_000  # of the longest parked, to find the first that is due; a quick count goes as far
MOST_KEYS: Final = 100
LOOKED_AT: Final = 1_000  # of one key among others: holders, and the front of its line
MOST_HOLDERS: Final = 20  # named of one key
WAITERS: Final = 10_000  # counted of one uniqueness key, or before one parked job


class Lease(StrEnum):
    """How the holder of a slot is."""

    BEATING = "beating"  # runs, and was heard of
    WAITING = "waiting"  # in line, or for its next attempt: no lease, and none needed
    SILENT = "silent"  # runs, if it lives: the lease of its slot or of its message is past


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Who waits for one thing; `oldest` in seconds, of those that are due."""

    number: Count
    oldest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All keys together; who waits for a uniqueness key is counted apart."""

    parked: Parked
    parked_for_keys: Parked
    slots: Count
    at_limit: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A message that holds a slot; one that is not in line is delayed."""

    message: int
    lease: Lease
    in_line: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The database session whose open transaction holds the row of a semaphore; `since` if we may know."""

    pid: int
    application: str
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStats:
    """
    One key now: its slots, its holders by their lease, its parked tasks; `oldest` in seconds.

    `leased` are the runs that Release leaves alone unless told, as "message:delivery"; `highest` is the highest id
    of the parked ones; `not_due` of them wait for their time first. `capacity` is None where no semaphore is stored;
    `seen_at` is the database's clock, as it writes it.
    """

    key: str
    name: str
    capacity: int | None
    slots: Count
    beating: int
    waiting: int
    silent: int
    beating_until: datetime | None
    silent_since: datetime | None
    leased: frozenset[str]
    parked: Count
    not_due: int
    highest: int | None
    oldest: float | None
    seen_at: str
    holders: Sequence[Holder]
    backend: Backend | None

    @property
    def at_limit(self) -> bool:
        """Return whether nobody else gets a slot."""
        return self.capacity is not None and self.slots.number >= self.capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStats:
    """The slot that one job holds; `leased_until` only while it runs."""

    key: str
    ordinal: int
    taken_at: datetime
    leased_until: datetime | None


def parked(limit: int = REACH) -> tuple[Parked, Parked]:
    """Return who waits for a slot, and who for a uniqueness key, each counted to `limit`."""
    rows = stats_sql.PARKED.rows(limit=limit, reach=REACH)
    found = {row.waits_for: Parked(number=_count(row.number, limit), oldest=row.oldest) for row in rows}
    return found["semaphore"], found["key"]


def totals() -> Totals:
    """Return the numbers of all keys together."""
    for_slots, for_keys = parked(LIMIT)
    row = stats_sql.SLOTS.row(limit=LIMIT)
    return Totals(
        parked=for_slots,
        parked_for_keys=for_keys,
        slots=_count(row.held, LIMIT),
        at_limit=Count(row.at_limit, row.held > LIMIT),
    )


def busiest(most: int = MOST_KEYS) -> list[KeyStats]:
    """Return the busiest keys: most parked first, then most slots; beyond a million parked, of the first by key."""
    return described([row.key for row in stats_sql.BUSIEST.rows(limit=LIMIT, most=most)])


def key(stored: str) -> KeyStats | None:
    """Return one key by its stored form, None if nobody holds a slot of it or waits for one."""
    (found,) = described([stored], MOST)
    return found if found.slots or found.parked else None


def described(stored: Sequence[str], looked_at: int = LOOKED_AT) -> list[KeyStats]:
    """Return these keys in this order, whatever is known of them; of each so many holders are looked at."""
    lease = f"{get_settings().VISIBILITY_TIMEOUT} seconds"
    holders: dict[str, list[Holder]] = defaultdict(list)
    for row in stats_sql.HOLDERS.rows(keys=list(stored), each=MOST_HOLDERS, lease=lease):
        holders[row.key].append(Holder(message=row.message_id, lease=Lease(row.lease), in_line=row.in_line))
    rows = stats_sql.KEYS.rows(keys=list(stored), limit=LIMIT, looked_at=looked_at, lease=lease)
    return [_key(row, holders[row.key]) for row in rows]


def waiting_for(unique_keys: Sequence[str]) -> dict[str, Count]:
    """Return how many tasks are parked for each of these uniqueness keys, where there are any."""
    rows = stats_sql.WAITING_FOR.rows(keys=list(unique_keys), each=WAITERS)
    return {row.key: _count(row.number, WAITERS) for row in rows}


def slot_of(message: int) -> SlotStats | None:
    """Return the slot that a job holds, None if it holds none."""
    row = stats_sql.SLOT.row(message=message)
    return None if row is None else SlotStats(**row._asdict())


def ahead(waits_for: str, key: str, priority: int, id: int) -> Count:
    """Return how many parked jobs are let in before this one, of those that are due and wait for the same."""
    row = stats_sql.AHEAD.row(waits_for=waits_for, key=key, priority=priority, id=id, limit=WAITERS)
    return _count(row.number, WAITERS)


def _key(row: Any, holders: Sequence[Holder]) -> KeyStats:
    locked = None
    if row.pid is not None:
        locked = Backend(pid=row.pid, application=row.application_name or "", since=row.xact_start)
    return KeyStats(
        key=row.key,
        name=row.name,
        capacity=row.capacity,
        slots=_count(row.slots, LIMIT),
        beating=row.beating,
        waiting=row.waiting,
        silent=row.silent,
        beating_until=row.beating_until,
        silent_since=row.silent_since,
        leased=frozenset(row.leased or ()),
        parked=_count(row.parked, LIMIT),
        not_due=row.not_due,
        highest=row.highest,
        oldest=row.oldest,
        seen_at=row.seen_at,
        holders=tuple(holders),
        backend=locked,
    )


def _count(number: int, most: int) -> Count:
    """Return a count of rows of which one more than `most` were looked for."""
    return Count(min(number, most), number > most)
