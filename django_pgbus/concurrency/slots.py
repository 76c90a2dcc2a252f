"""The verbs of the slots: looking, handing out, leasing, freeing; each function is one step of a transition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any, Final, NamedTuple

from django.db import connections, transaction

from django_pgbus import signals
from django_pgbus.concurrency import sql
from django_pgbus.conf import database, get_settings
from django_pgbus.postgres import is_connection_loss, retrying
from django_pgbus.queues import heartbeat
from django_pgbus.queues.message import Delivery

BATCH: Final = 500  # keys of one promotion
AT_ONCE: Final = 100  # tasks of one key in one promotion
UNLIMITED: Final = 2**31 - 1
IN_VAIN: Final = 3  # promotions in a row that moved nothing: somebody else holds the semaphores and will look again
ROUNDS: Final = 20  # of one call; the sweep does the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """
    What the code of this process declares for a parked task.

    `to` is None where the limit is no longer declared; `constraints` is then what the task carries from now on.
    """

    name: str
    to: int | None
    duration: float
    constraints: str | None = None


TermsOf = Callable[[str, str], Terms]  # (path of the task, the constraints it carries)


class Seen(NamedTuple):
    """A slot as it was seen: by whom it is held, and until when it was leased (a text of PostgreSQL)."""

    message: int
    leased_until: str | None


# --- letting in ---------------------------------------------------------------------------------------


class Room(NamedTuple):
    """A key with a candidate and room for it: what its code declares, and whether its semaphore is there yet."""

    terms: Terms
    created: bool


def look(keys: Sequence[str], terms_of: TermsOf) -> dict[str, Room]:
    """Return the keys that have both a candidate and room for it, without a lock."""
    found: dict[str, Room] = {}
    for key, task, constraints, held, created in sql.LOOK.tuples(keys=sorted(keys)):
        terms = terms_of(task, constraints)
        if terms.to is None or held < terms.to:
            found[key] = Room(terms, created)
    return found


def promote(roomy: Mapping[str, Room], terms_of: TermsOf) -> list[Any]:
    """
    Move the best parked tasks of these keys into the line, each with a slot, and return the rows.

    Passes over semaphores that somebody has locked: whoever holds one looks again after its commit. What is free is
    counted after the lock, in a statement of its own: a count made while waiting would date from before.
    Locks: semaphores (skipping), blocked_executions (skipping).
    """

    def transition() -> list[Any]:
        with transaction.atomic(using=database()):
            _create({key: room.terms for key, room in roomy.items() if not room.created}, wait=False)
            locked = dict(sql.LOCK_FREE.tuples(keys=sorted(roomy)))
            return _let_in(locked, roomy, terms_of) if locked else []

    return retrying(transition)


def promote_while_there_is_room(keys: Iterable[str], terms_of: TermsOf) -> list[Any]:
    """Look and promote until nothing more is to be had, and return the rows. Locks: see `promote`."""
    wanted = sorted(set(keys))
    rows: list[Any] = []
    for start in range(0, len(wanted), BATCH):
        rows += _promote_all(wanted[start : start + BATCH], terms_of)
    return rows


def _promote_all(keys: Sequence[str], terms_of: TermsOf) -> list[Any]:
    rows: list[Any] = []
    in_vain = 0
    for _ in range(ROUNDS):
        roomy = look(keys, terms_of)
        if not roomy or in_vain == IN_VAIN:
            break
        try:
            moved = promote(roomy, terms_of)
        except Exception as error:
            if is_connection_loss(error) or connections[database()].in_atomic_block:
                raise
            # One of them cannot be promoted, whatever it is: the others can.
            moved = _one_by_one(roomy, terms_of)
        in_vain = 0 if moved else in_vain + 1
        rows += moved
    return rows


def _one_by_one(roomy: Mapping[str, Room], terms_of: TermsOf) -> list[Any]:
    rows: list[Any] = []
    for key, room in roomy.items():
        try:
            rows += promote({key: room}, terms_of)
        except Exception as error:
            if is_connection_loss(error):
                raise
            signals.promotion_failed.send_robust(sender=None, key=key, exception=error)
    return rows


def _let_in(locked: dict[str, int], roomy: Mapping[str, Room], terms_of: TermsOf) -> list[Any]:
    limits = [roomy[key].terms.to or UNLIMITED for key in locked]
    candidates = sql.CANDIDATES.rows(keys=list(locked), limits=limits, at_once=AT_ONCE)
    candidates.sort(key=lambda candidate: (candidate.key, -candidate.priority, candidate.id))
    chosen: list[tuple[int, int | None, float | None, str | None]] = []
    declared: dict[str, int] = {}
    for key, of_key in groupby(candidates, lambda candidate: candidate.key):
        held: set[int] | None = None
        for candidate in of_key:
            held = set(candidate.ordinals) if held is None else held
            terms = terms_of(candidate.task, candidate.constraints)
            if terms.to is None:
                chosen.append((candidate.id, None, None, terms.constraints))
                continue
            declared[key] = terms.to
            if len(held) >= terms.to:
                break  # It is next, whatever those behind it would be allowed.
            chosen.append((candidate.id, _lowest_free(held), terms.duration, None))
    if changed := {key: to for key, to in declared.items() if locked[key] != to}:
        sql.SET_CAPACITY.count(keys=list(changed), capacities=list(changed.values()))
    if not chosen:
        return []
    ids, ordinals, durations, constraints = zip(*chosen, strict=True)
    return sql.PROMOTE.rows(
        ids=list(ids), ordinals=list(ordinals), durations=list(durations), constraints=list(constraints)
    )


def _held(keys: Iterable[str]) -> dict[str, set[int]]:
    held: dict[str, set[int]] = defaultdict(set)
    for key, ordinal in sql.HELD.tuples(keys=list(keys)):
        held[key].add(ordinal)
    return held


def _lowest_free(held: set[int]) -> int:
    """Take the lowest ordinal that is free; with fewer held than allowed it is within the limit."""
    ordinal = next(number for number in count(1) if number not in held)
    held.add(ordinal)
    return ordinal


def _create(wanted: Mapping[str, Terms], *, wait: bool) -> None:
    if not wanted:
        return
    missing = [key for (key,) in sql.MISSING.tuples(keys=sorted(wanted))]
    if missing and wait:
        sql.WAIT_TO_CREATE.tuples(keys=missing)
    elif missing:
        missing = [key for (key,) in sql.TRY_TO_CREATE.tuples(keys=missing)]
    if missing:
        sql.CREATE.count(
            keys=missing,
            names=[wanted[key].name for key in missing],
            capacities=[wanted[key].to or 1 for key in missing],
        )


def reserve(wanted: Sequence[str], terms: Mapping[str, Terms]) -> list[int | None]:
    """
    Return a free ordinal for each of `wanted` keys, or None where the limit is reached, parked tasks included.

    In the caller's transaction, and until its end, under the lock of the semaphores: who wants the same key waits.
    Locks: semaphores.
    """
    keys = sorted(set(wanted))
    while True:
        _create({key: terms[key] for key in keys}, wait=True)
        locked = dict(sql.LOCK.tuples(keys=keys))
        if len(locked) == len(keys):
            break  # Else one was swept in between.
    if changed := {key: to for key in keys if (to := terms[key].to or 1) != locked[key]}:
        sql.SET_CAPACITY.count(keys=list(changed), capacities=list(changed.values()))
    held = _held(keys)
    most = [terms[key].to or 1 for key in keys]
    parked = dict(sql.PARKED_BEFORE.tuples(keys=keys, limits=most))
    ordinals: list[int | None] = []
    for key in wanted:
        full = len(held[key]) + parked.get(key, 0) >= (terms[key].to or 1)
        ordinals.append(None if full else _lowest_free(held[key]))
    return ordinals


# --- while it runs ------------------------------------------------------------------------------------


def least_duration() -> float:
    """Return how many seconds a slot is leased at least: one lease of a message and one beat."""
    settings = get_settings()
    return settings.VISIBILITY_TIMEOUT + settings.beat_interval


def start_leases(ids: Sequence[int]) -> set[int]:
    """Start the leases of slots whose messages are about to run, and return those messages. Locks: semaphore_slots."""
    return {id for (id,) in sql.START_LEASES.tuples(ids=list(ids), least=least_duration())} if ids else set()


def renew_leases(deliveries: Sequence[Delivery]) -> None:
    """Renew the slots of messages whose lease a beat has just renewed. Locks: semaphore_slots (skipping)."""
    tasks = [delivery for delivery in deliveries if delivery.event is None]  # Copies of events have none.
    if tasks:
        sql.RENEW.count(
            ids=[delivery.id for delivery in tasks],
            deliveries=[delivery.delivery for delivery in tasks],
            least=least_duration(),
        )


heartbeat.on_renewed.append(renew_leases)


def stop_leases(ids: Sequence[int]) -> None:
    """Keep the slots of messages that wait again, without a lease: waiting is not silence. Locks: semaphore_slots."""
    if ids:
        sql.STOP_LEASES.count(ids=list(ids))


# --- freeing ------------------------------------------------------------------------------------------


def free(ids: Sequence[int]) -> list[str]:
    """Free the slots of messages that are settled or parked, and return their keys. Locks: semaphore_slots."""
    return [key for (key,) in sql.FREE.tuples(ids=list(ids))] if ids else []


def free_seen(seen: Sequence[Seen]) -> list[tuple[int, str]]:
    """Free slots that nobody has leased anew since they were seen; return (message, key). Locks: semaphore_slots."""
    if not seen:
        return []
    rows: list[Any] = sql.FREE_SEEN.tuples(
        ids=[slot.message for slot in seen], leases=[slot.leased_until for slot in seen]
    )
    return rows


def silent(limit: int) -> list[Seen]:
    """Return running holders that have not been heard of for their duration."""
    lease = f"{get_settings().VISIBILITY_TIMEOUT} seconds"
    return [Seen(*row) for row in sql.SILENT.tuples(lease=lease, limit=limit)]


def of_key(key: str, limit: int) -> list[Seen]:
    """Return the slots of a key."""
    return [Seen(*row) for row in sql.OF_KEY.tuples(key=key, limit=limit)]
