"""Who holds what: uniqueness keys, and slots of limited keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from django_pgbus.concurrency import stats as concurrency_stats
from django_pgbus.concurrency.stats import KeyStats
from django_pgbus.concurrency.stats import Lease as LeaseOf
from django_pgbus.observability.mcp import inputs, words
from django_pgbus.postgres.keys import stored
from django_pgbus.queues.stats import Count
from django_pgbus.uniqueness import stats as uniqueness_stats
from django_pgbus.uniqueness.stats import LockStats

Key = Annotated[inputs.Text, Field(description="One key, as it was chosen or as it is stored; empty: all.")]
PLACES = {
    "line": "in line",
    "running": "running",
    "delayed": "delayed",
    "parked": "parked",
    "batch": "a batch that is not finished",
    "": "nowhere: a sweep frees the key within a minute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """
    One uniqueness key that is held. `stored_key` is the key as the table has it, which differs where it is a hash.

    `holder` is the id of a job, or of a batch if `holder_kind` says so; `waiting` jobs are parked for the key.
    """

    key: str
    stored_key: str
    strategy: str
    queue: str
    holder: int
    holder_kind: str
    holder_is: str
    held_since: datetime
    held_seconds: float
    waiting: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Locks:
    """Uniqueness keys, those held longest first, and how many there are."""

    total: Count
    locks: list[Lock]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that holds a slot; its lease is beating (it runs), waiting (in line or delayed: it needs none) or silent."""

    job: int
    lease: LeaseOf


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedKey:
    """
    One key that is limited: `value` slots of `limit` are held (`limit` is null where nothing is stored of it any more).

    The holders by their lease: so many `beating` until, `waiting`, and `silent` since. `parked` jobs wait for a slot, of
    which `not_due` wait for their time first; `oldest_wait_seconds` is of those that are due. `locked_by` is the database
    session whose open transaction keeps everybody from being let in.
    """

    key: str
    stored_key: str
    value: Count
    limit: int | None
    at_limit: bool
    beating: int
    beating_until: datetime | None
    waiting: int
    silent: int
    silent_since: datetime | None
    holders: list[Holder]
    parked: Count
    not_due: int
    oldest_wait_seconds: float | None
    locked_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """The numbers of all limited keys together, and the busiest keys: most parked first, then most slots held."""

    parked_total: Count
    oldest_parked_seconds: float | None
    parked_for_uniqueness_keys: Count
    slots_held: Count
    keys_at_limit: Count
    keys: list[LimitedKey]


def pgbus_locks(key: Key = "", limit: inputs.Limit = 50) -> Locks:
    """Tell which uniqueness keys are held, by which job or batch, since when, and how many jobs wait for each."""
    found = uniqueness_stats.locks(key, limit)
    waiting = concurrency_stats.waiting_for([lock.key for lock in found])
    return Locks(
        total=uniqueness_stats.total(), locks=[lock_of(lock, waiting.get(lock.key, Count(0))) for lock in found]
    )


def pgbus_concurrency(key: Key = "", limit: inputs.Limit = 50) -> Concurrency:
    """
    Tell the limits: slots held, keys at their limit, what is parked and for how long.

    And each busy key: its value and limit, its holders and whether they beat, how many wait and the oldest wait.
    """
    totals = concurrency_stats.totals()
    if key:
        wanted = concurrency_stats.described(sorted({key, stored(key)}))
        found = [one for one in wanted if one.slots or one.parked]
    else:
        found = concurrency_stats.busiest(limit)
    return Concurrency(
        parked_total=totals.parked.number,
        oldest_parked_seconds=words.rounded(totals.parked.oldest),
        parked_for_uniqueness_keys=totals.parked_for_keys.number,
        slots_held=totals.slots,
        keys_at_limit=totals.at_limit,
        keys=[limited_key(one) for one in found],
    )


def lock_of(lock: LockStats, waiting: Count) -> Lock:
    """Return a uniqueness key as it is told."""
    return Lock(
        key=words.name(lock.name or lock.key),
        stored_key=lock.key,
        strategy=lock.strategy,
        queue=words.name(lock.queue),
        holder=lock.message,
        holder_kind="batch" if lock.of_batch else "job",
        holder_is=PLACES.get(lock.place, lock.place),
        held_since=words.known_utc(lock.created_at),
        held_seconds=round(lock.held_for, 3),
        waiting=waiting,
    )


def limited_key(key: KeyStats) -> LimitedKey:
    """Return a limited key as it is told."""
    return LimitedKey(
        key=words.name(key.name or key.key),
        stored_key=key.key,
        value=key.slots,
        limit=key.capacity,
        at_limit=key.at_limit,
        beating=key.beating,
        beating_until=words.utc(key.beating_until),
        waiting=key.waiting,
        silent=key.silent,
        silent_since=words.utc(key.silent_since),
        holders=[Holder(job=holder.message, lease=holder.lease) for holder in key.holders],
        parked=key.parked,
        not_due=key.not_due,
        oldest_wait_seconds=words.rounded(key.oldest),
        locked_by=locked_by(key),
    )


def locked_by(key: KeyStats) -> str:
    """Return whose open transaction keeps everybody from being let in, or nothing."""
    if (session := key.backend) is None:
        return ""
    application = f" ({words.name(session.application)})" if session.application else ""
    since = f" since {words.told(session.since)}" if session.since else ""
    return f"database session {session.pid}{application}{since}"
