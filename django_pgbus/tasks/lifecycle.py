"""
Every way a task enters, moves in or leaves the system.

One function is one transition and one transaction; inside a caller's `atomic()` it is part of the caller's. What
each row locks stands in its `Locks:` line, in the order of `postgres/locks.py`. A transition names the message and
its delivery; one that finds the delivery superseded changes nothing and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db import OperationalError, connections, transaction

from django_pgbus import signals
from django_pgbus.batches import counts
from django_pgbus.concurrency import parked, slots
from django_pgbus.concurrency.parked import Park
from django_pgbus.concurrency.slots import Seen
from django_pgbus.conf import database, get_settings
from django_pgbus.idempotency import claims
from django_pgbus.postgres import retrying
from django_pgbus.postgres.after_commit import hook_of
from django_pgbus.postgres.arrays import numbers, seconds, texts
from django_pgbus.postgres.keys import stored
from django_pgbus.postgres.moments import moment
from django_pgbus.postgres.retrying import sqlstate
from django_pgbus.queues import delayed, queue, sql, wake
from django_pgbus.queues.line import Line
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks import batch_ends, constraints, event_claims
from django_pgbus.tasks.constraints import Constraints
from django_pgbus.tasks.entrance import Entrance, Entrant
from django_pgbus.tasks.outcomes import (
    Discarded,
    Enqueued,
    Entered,
    GaveUp,
    HeldMessage,
    NewWork,
    PickedUp,
    PutOff,
    Redriven,
    RunNow,
    Success,
)
from django_pgbus.tasks.sql import FIND
from django_pgbus.uniqueness import keys
from django_pgbus.uniqueness.keys import Wanted

CHUNK: Final = 1000  # rows per statement
MOST_SLOTS: Final = 10_000  # of one key, in one release
DISCARDS: Final = 500  # parked tasks in one transaction
WAITERS: Final = 100  # tried for one free key; the sweep goes on
PATIENCE: Final = "100ms"  # of a pick-up, with whoever holds what it needs
NO_PATIENCE: Final = "1ms"  # once somebody was found: with each of the rest
LOCK_NOT_AVAILABLE: Final = "55P03"

T = TypeVar("T")
O = TypeVar("O", Success, PutOff, GaveUp)  # noqa: E741


# --- enter --------------------------------------------------------------------------------------------


def enqueue(work: NewWork) -> Enqueued:
    """Put a task into the line, or among the delayed, in the caller's transaction. Locks: none."""
    if work.due is not None:
        return _enqueue_later(work, [work.payload])[0]
    if work.batch is not None:
        return _enqueue_chunk(work, [work.payload])[0]
    id, position, at = queue.send(work.queue, work.priority, work.task, work.backend, work.payload)
    wake.after_commit({Level(work.queue, work.priority): position})
    return Enqueued(id, moment(at))


def enqueue_many(work: NewWork, payloads: Sequence[str]) -> list[Enqueued]:
    """
    Put a task into the line once for each of `payloads`, and return them in that order.

    One statement for a thousand; all or nothing. Locks: none.
    """
    if not payloads:
        return []
    if len(payloads) > CHUNK:
        with transaction.atomic(using=database()):
            chunks = (payloads[start : start + CHUNK] for start in range(0, len(payloads), CHUNK))
            return [enqueued for chunk in chunks for enqueued in _enqueue_chunk(work, chunk)]
    return _enqueue_chunk(work, payloads)


def _enqueue_chunk(work: NewWork, payloads: Sequence[str]) -> list[Enqueued]:
    if work.due is not None:
        return _enqueue_later(work, payloads)
    rows = queue.send_many(work.queue, work.priority, work.task, work.backend, payloads, work.batch)
    if work.batch is not None:
        counts.added([work.batch] * len(rows))
    wake.after_commit({Level(work.queue, work.priority): min(position for _, position, _ in rows)})
    return [Enqueued(id, moment(at)) for id, _, at in rows]


def _enqueue_later(work: NewWork, payloads: Sequence[str]) -> list[Enqueued]:
    assert work.due is not None
    rows = delayed.send(work.queue, work.priority, work.task, work.backend, payloads, work.due, work.batch)
    if work.batch is not None:
        counts.added([work.batch] * len(rows))
    return [Enqueued(id, at) for id, at in rows]


def enter(works: Sequence[NewWork]) -> list[Entered]:
    """
    Let constrained tasks in, each for itself, and say for each what became of it; in the caller's transaction.

    All or none of what one needs is taken: its `until_executed` key, and under `discard` and `raise` its slot. One
    that is limited under `block` is parked, and promoted after the commit. All of one call share their due time.
    A key that another open transaction has taken is waited for. One statement, however many there are: cut in pieces,
    two callers could take each other's keys in the opposite order.
    Locks: semaphores (under `discard` and `raise`).
    """
    return _enter([Entrant(work, id=work.id) for work in works])


def redrive(ids: Iterable[int]) -> Redriven:
    """
    Put dead letters on their way again under their ids, as an enqueue would, and say which had to stay and why.

    Attempts start again, delivery numbers go on rising, the history stays. A batch has counted its member as failed when
    it died: it counts it no more, and is not opened again.
    Locks: dead_letters, semaphores (under `discard` and `raise`).
    """
    wanted = sorted(set(ids))

    def transition() -> tuple[list[Any], list[int], dict[int, Entered], dict[int, int]]:
        with transaction.atomic(using=database()):
            letters = sql.LOCK_DEAD.rows(ids=wanted)
            # One whose constraints cannot be read fails as an attempt, and is a dead letter again with that reason.
            bound = {
                letter.id: one for letter in letters if (one := constraints.readable(letter.constraints)).at_entrance
            }
            again = _enter_again([letter for letter in letters if letter.id in bound], bound)
            entered = [id for id, entered in again.items() if isinstance(entered, Enqueued)]
            refused: dict[int, Entered] = {id: why for id, why in again.items() if not isinstance(why, Enqueued)}
            if entered:
                sql.DELETE_DEAD.count(ids=entered)
            free = [letter.id for letter in letters if letter.id not in bound]
            members = {letter.id: letter.batch_id for letter in letters if letter.batch_id is not None}
            return sql.REDRIVE.rows(ids=free) if free else [], entered, refused, members

    rows, entered, refused, members = retrying(transition)
    wake.wake_after_commit((row.queue, row.priority, row.suspect, row.position) for row in rows)
    ids = sorted([*entered, *(row.id for row in rows)])
    return Redriven(ids=ids, refused=refused, members={id: members[id] for id in ids if id in members})


def _enter_again(letters: Sequence[Any], bound: dict[int, Constraints]) -> dict[int, Entered]:
    entrants = [
        Entrant(
            NewWork(
                task=letter.task,
                payload=letter.payload,
                queue=letter.queue,
                priority=letter.priority,
                backend=letter.backend,
                constraints=constraints.as_declared_now(letter.task, bound[letter.id]),
            ),
            id=letter.id,
            delivery=letter.delivery + 1,
            errors=letter.errors,
            enqueued_at=letter.enqueued_at,
        )
        for letter in letters
    ]
    return dict(zip((letter.id for letter in letters), _enter(entrants), strict=True)) if entrants else {}


def _enter(entrants: Sequence[Entrant]) -> list[Entered]:
    entrance = Entrance(entrants)
    outcomes = entrance.decide()
    counts.added(entrant.work.batch for entrant in entrants if isinstance(entrant.outcome, Enqueued))
    let_in_after_commit(entrance.semaphores)
    return outcomes


# --- wait and go on -----------------------------------------------------------------------------------


class _Freed:
    """What a transaction freed, or whoever it parked waits for: looked at again once it is committed."""

    __slots__ = ("batches", "keys", "semaphores", "spoken")

    def __init__(self) -> None:
        self.spoken = False
        self.semaphores: set[str] = set()
        self.keys: set[str] = set()
        self.batches: set[int] = set()

    def speak(self) -> None:
        """Let in whoever waits for it, and finish the batches of which these were the last."""
        self.spoken = True
        try:
            let_in(self.semaphores, self.keys)
        finally:
            finish_batches(self.batches)


def let_in_after_commit(
    semaphores: Iterable[str], unique_keys: Iterable[str] = (), batches: Iterable[int] = ()
) -> None:
    """
    Let in who waits for these once the caller's transaction, if there is one, is committed.

    Batches that nothing is outstanding of are finished then. Where Django runs no hooks (autocommit is off), the sweeps
    find all of them. Locks: none.
    """
    semaphores, unique_keys, batches = set(semaphores), set(unique_keys), set(batches)
    if not (semaphores or unique_keys or batches):
        return
    connection = connections[database()]
    hook = hook_of(connection, _Freed) if connection.in_atomic_block else _Freed()
    hook.semaphores |= semaphores
    hook.keys |= unique_keys
    hook.batches |= batches
    if not connection.in_atomic_block:
        wake.once_committed(hook.speak)


def let_in(semaphores: Iterable[str], unique_keys: Iterable[str] = ()) -> int:
    """
    Promote parked tasks of these semaphores and uniqueness keys while there is room, and return how many.

    Each promotion is a transaction of its own; best priority first, then the oldest. Many are left to the sweep.
    Locks: semaphores (skipping), blocked_executions (skipping).
    """
    rows = slots.promote_while_there_is_room(list(semaphores)[:CHUNK], constraints.terms_of)
    rows += _let_in_for_keys(set(list(unique_keys)[:CHUNK]))
    if rows:
        wake.wake_after_commit((row.queue, row.priority, row.suspect, row.position) for row in rows)
        signals.jobs_promoted.send_robust(sender=None, count=len(rows))
    return len(rows)


def finish_batches(ids: Iterable[int]) -> int:
    """
    Finish those of these batches that nothing is outstanding of, and return how many; each is a transaction of its own.

    Locks: batches (skipping), batch_counts, uniqueness_keys.
    """
    finished, freed = batch_ends.finish(ids)
    let_in_after_commit((), freed)
    return finished


def repair_batches(ids: Iterable[int]) -> int:
    """
    Finish batches whose members are nowhere, these members counted as failed, and return how many.

    Each is a transaction of its own. Locks: batches (skipping), batch_counts, uniqueness_keys.
    """
    return finish_batches(batch_ends.count_lost(ids))


def _let_in_for_keys(wanted: set[str]) -> list[Any]:
    rows: list[Any] = []
    for _ in range(WAITERS):
        if not (wanted := set(parked.waited_for_among(wanted))):
            break
        held = keys.holders(sorted(wanted))
        if held:
            _take_over(sorted(held))
            held = keys.holders(sorted(held))
        if not (free := wanted - held.keys()):
            break

        def transition(free: set[str] = free) -> tuple[list[Any], dict[str, tuple[int, str]]]:
            with transaction.atomic(using=database()):
                moved, pointed, waiters = parked.promote_for_keys(sorted(free))
                keys.reserve(waiters)
                return moved, pointed

        moved, pointed = retrying(transition)
        rows += moved
        let_go = slots.promote_while_there_is_room(
            {semaphore for _, semaphore in pointed.values()}, constraints.terms_of
        )
        rows += let_go
        going = {row.id for row in let_go}
        # One that found no slot waits for its semaphore now; the next may have the key.
        wanted = {key for key, (id, _) in pointed.items() if id not in going}
    return rows


def pick_up(deliveries: Sequence[Delivery]) -> PickedUp:
    """
    Take slot and key for deliveries just claimed, both or neither, and say which may run.

    The limit is tested again here: a delivery whose slot is gone is parked once more. One that finds its key held is
    parked too, or dropped, as its policy says; no attempt is counted. A worker waits for no caller: one whose message, slot
    or key another transaction holds is contested, and asked for again later. Keys whose holders are silent are taken
    over before, in another transaction; who waits for what is given back is let in after the commit. The delivery of an
    event that must run once claims it, or is skipped, or waits (semantics 5.4).
    Locks: messages, semaphore_slots, uniqueness_keys, processed_events.
    """
    events = [delivery for delivery in deliveries if event_claims.claims(delivery)]
    others = [delivery for delivery in deliveries if not event_claims.claims(delivery)]
    picked = _claim_events(events) if events else PickedUp()
    if others:
        picked.add(_take_slots_and_keys(others))
    return picked


def _take_slots_and_keys(deliveries: Sequence[Delivery]) -> PickedUp:
    bound = {delivery.id: constraints.readable(delivery.constraints) for delivery in deliveries}
    needed = {d.id: key for d in deliveries if (key := bound[d.id].while_executing)}
    if needed:
        _take_over(sorted({key.key for key in needed.values()}))
    picked = _all_or_each(deliveries, lambda some, patience: _picked_up(some, bound, patience))
    if picked.parked:
        signals.jobs_parked.send_robust(sender=None, count=len(picked.parked))
    for delivery in picked.dropped:
        key = needed[delivery.id]
        signals.job_not_unique.send_robust(
            sender=None, task=delivery.task, key=key.name or key.key, holder=None, policy=key.on_conflict
        )
    return picked


def _all_or_each(
    deliveries: Sequence[Delivery], pick: Callable[[Sequence[Delivery], str], PickedUp | None]
) -> PickedUp:
    """Pick all up at once, or if another transaction is in the way each for itself: it may be one that is contested."""
    if (picked := pick(deliveries, PATIENCE)) is not None:
        return picked
    picked = PickedUp()
    for delivery in deliveries:
        picked.add(pick([delivery], NO_PATIENCE) or PickedUp(contested=[delivery]))
    return picked


def _if_nobody_is_in_the_way(transition: Callable[[str | None], T], patience: str) -> T | None:
    """Return None, and nothing has changed, if another transaction was in the way for longer than `patience`."""
    # In the transaction of somebody else (a project's test) its settings stay as they are.
    wait = None if connections[database()].in_atomic_block else patience

    def impatient() -> T | None:
        try:
            with transaction.atomic(using=database()):
                return transition(wait)
        except OperationalError as error:
            if wait is not None and sqlstate(error) == LOCK_NOT_AVAILABLE:
                return None
            raise

    return retrying(impatient)


def _claim_events(deliveries: Sequence[Delivery]) -> PickedUp:
    known = event_claims.look(deliveries)
    silent = sorted({(claim.message, claim.delivery) for claim in known.values() if claim.silent})
    if silent and _fenced_out_in_time(silent, PATIENCE) is None:
        for holder in silent:  # One whose claim is locked stays the holder: its claim is not taken over now.
            _fenced_out_in_time([holder], NO_PATIENCE)

    def pick(some: Sequence[Delivery], patience: str) -> PickedUp | None:
        def transition(wait: str | None) -> event_claims.Decided:
            leased = {
                id for (id,) in sql.LOCK_LEASED.tuples(**_pairs([(d.id, d.delivery) for d in some]), patience=wait)
            }
            return event_claims.decide(some, leased, known)

        decided = _if_nobody_is_in_the_way(transition, patience)
        return None if decided is None else decided.announced()

    return _all_or_each(deliveries, pick)


def _fenced_out_in_time(holders: Sequence[tuple[int, int]], patience: str) -> set[int] | None:
    """See _fenced_out(); None, and nothing has changed, if somebody has locked one of their claims."""

    def transition(wait: str | None) -> set[int]:
        claims.wait_at_most(wait)
        return _fenced_out(holders)

    return _if_nobody_is_in_the_way(transition, patience)


def _picked_up(deliveries: Sequence[Delivery], bound: dict[int, Constraints], patience: str) -> PickedUp | None:
    """Return None, and nothing has changed, if another transaction was in the way."""
    taken = _if_nobody_is_in_the_way(lambda wait: _take_both(deliveries, bound, wait), patience)
    if taken is None:
        return None
    picked, semaphores, unique_keys, batches = taken
    for delivery in (*picked.parked, *picked.dropped, *picked.lost):
        delivery.ended = True  # A beat that finds it gone has not lost it.
    let_in_after_commit(semaphores, unique_keys, batches)  # Parked, committed, now look again.
    return picked


def _take_both(
    deliveries: Sequence[Delivery], bound: dict[int, Constraints], patience: str | None
) -> tuple[PickedUp, set[str], set[str], set[int]]:
    picked = PickedUp()
    pairs = _pairs([(delivery.id, delivery.delivery) for delivery in deliveries])
    leased = {id for (id,) in sql.LOCK_LEASED.tuples(**pairs, patience=patience)}
    limited = {id: limit for id in leased if (limit := bound[id].limit)}
    placed = slots.start_leases(sorted(limited))
    wanted = [
        Wanted(key.key, key.name, d.id, d.delivery, d.queue)
        for d in deliveries
        if d.id in leased and (key := bound[d.id].while_executing) and (d.id not in limited or d.id in placed)
    ]
    has_key = keys.take(wanted)
    waits_for_key = {want.message: want.key for want in wanted if want.message not in has_key}
    semaphores = set(slots.free(sorted(waits_for_key.keys() & placed)))
    parks = []
    for delivery in deliveries:
        limit, key = bound[delivery.id].limit, bound[delivery.id].while_executing
        if delivery.id not in leased:
            picked.lost.append(delivery)
        elif delivery.id in waits_for_key and key is not None:
            drops = key.on_conflict != "reject"
            parks.append(_park(delivery, "key", key.key, limit, dropped="Another job held its key." if drops else ""))
            (picked.dropped if drops else picked.parked).append(delivery)
        elif limit is not None and delivery.id not in placed:
            parks.append(_park(delivery, "semaphore", limit.key, limit))
            picked.parked.append(delivery)
            semaphores.add(limit.key)
        else:
            picked.taken.append(delivery)
    gone = parked.park(parks)
    # A key that was kept for one that waits for its slot is not kept any longer.
    freed = keys.free([id for id, one in gone.items() if one.discarded], sorted(gone))
    batches = counts.settled(failed=[one.batch for one in gone.values() if one.discarded])
    return picked, semaphores, {*freed, *waits_for_key.values()}, batches


def _park(
    delivery: Delivery,
    waits_for: Any,
    key: str,
    limit: constraints.BoundLimit | None,
    *,
    dropped: str = "",
    due_in: float | None = None,
    fenced: bool = True,
) -> Park:
    return Park(
        id=delivery.id,
        delivery=delivery.delivery,
        waits_for=waits_for,
        key=key,
        semaphore=limit.key if limit else None,
        dropped=dropped,
        due_in=due_in,
        fenced=fenced,
    )


# --- move ---------------------------------------------------------------------------------------------


def claim(line: Line, levels: Sequence[Level], limit: int, worker: UUID, lease: float) -> list[Delivery]:
    """Claim messages for this process: delivery raised, attempt counted provisionally. Locks: messages (skipping)."""
    return line.claim(levels, limit, worker, lease)


def move_due(queues: Sequence[str]) -> list[tuple[str, int, bool, int]]:
    """
    Move due messages into the line and return (queue, priority, suspect, position); parked ones become candidates.

    Each is a transaction of its own. Locks: delayed (skipping), blocked_executions (skipping).
    """
    moved = retrying(lambda: delayed.move_due(queues))
    let_in_after_commit(*retrying(lambda: parked.make_due(queues)))
    return moved


def run_now(ids: Iterable[int]) -> RunNow:
    """
    Let tasks that wait for their time wait no longer, and return where each is now.

    What is delayed goes into the line as if it were due: fresh position, attempts and history as they are, with the slot
    and the key that it kept. One that is parked until it is due asks for its slot or key now. Others are left alone.
    Locks: delayed, blocked_executions.
    """
    asked = frozenset(ids)
    wanted = sorted(asked)

    def transition() -> tuple[list[Any], set[int]]:
        with transaction.atomic(using=database()):
            moved = sql.RUN_NOW.rows(ids=wanted)
            candidates, semaphores, unique_keys = parked.make_due_now(wanted)
            let_in_after_commit(semaphores, unique_keys)
            return moved, candidates

    moved, candidates = retrying(transition)
    wake.wake_after_commit((row.queue, row.priority, row.suspect, row.position) for row in moved)
    in_line = frozenset(row.id for row in moved)
    return RunNow(in_line=in_line, parked=frozenset(candidates), left=asked - in_line - candidates)


def hand_back(pairs: Iterable[tuple[int, int]], *, even_running: bool = False) -> list[int]:
    """
    Put (id, delivery) back into the line, no attempt counted, and return those that were still held.

    Only for deliveries that are not running, or no longer; or else with `even_running`: then their claims of events stay
    with them for as long as a lease lasts, so that no second run begins beside the first before that one was told.
    Locks: messages, semaphore_slots, uniqueness_keys, processed_events.
    """
    return _return(sorted((id, delivery, False, False) for id, delivery in pairs), keeps_claims=even_running)


def hand_back_running(ids: Iterable[int], seen_at: datetime | None = None) -> list[int]:
    """
    Take tasks from the workers that run them and put them back into the line, no attempt counted; return which.

    Their runs are fenced out: they can store nothing, and stop where they can once their worker's next beat tells it. Until
    then another run may go on beside them. What was claimed after `seen_at` (a time of the database) is left alone, and
    so is what is being discarded.
    Locks: messages, semaphore_slots, uniqueness_keys.
    """
    rows = retrying(lambda: sql.RUNNING_AS_SEEN.rows(ids=sorted(set(ids)), seen_at=seen_at))
    return hand_back([(row.id, row.delivery) for row in rows], even_running=True)


def reap(held: Iterable[HeldMessage]) -> list[int]:
    """
    Put what a dead process held back into the line, and return what was still its own.

    What was running is a suspect, and so is everything where nobody knows what was. An attempt counts if it had
    started; if a suspect ran in that process, only the suspect's (semantics 2.4).
    Locks: messages, semaphore_slots, uniqueness_keys, processed_events.
    """
    held = sorted(held, key=lambda message: message.id)
    culprits = _culprits(held)
    return _return(
        [(m.id, m.delivery, m.started and (not culprits or m.id in culprits), m.running is not False) for m in held]
    )


def _culprits(held: Iterable[HeldMessage]) -> set[int]:
    return {message.id for message in held if message.suspect and message.started and message.running is not False}


def _return(
    rows: Sequence[tuple[int, int, bool, bool]], lost: str = queue.LOST, *, keeps_claims: bool = False
) -> list[int]:
    if not rows:
        return []

    def transition() -> list[Any]:
        with transaction.atomic(using=database()):
            returned = sql.RETURN_TO_LINE.rows(
                ids=[id for id, *_ in rows],
                deliveries=[delivery for _, delivery, *_ in rows],
                counted=[counted for _, _, counted, _ in rows],
                suspects=[suspect for *_, suspect in rows],
                lost=lost,
            )
            there = {row.id for row in returned}
            rest = [(id, delivery) for id, delivery, *_ in rows if id not in there]
            marked = sql.SETTLE_MARKED.rows(**_pairs(rest), lease="0 seconds") if rest else []
            claimed = {row.id for row in (*returned, *marked) if row.event_id is not None and row.constrained}
            settled(
                [row.id for row in marked if row.constrained and row.event_id is None],
                [row.id for row in returned if row.constrained and row.event_id is None],
                failed=[row.batch_id for row in marked],
                claimed=[] if keeps_claims else [(id, delivery) for id, delivery, *_ in rows if id in claimed],
            )
            return returned

    returned = retrying(transition)
    wake.wake_after_commit((row.queue, row.priority, row.suspect, row.position) for row in returned)
    return [row.id for row in returned]


def release_lapsed(ids: Iterable[int], lease: float) -> list[int]:
    """
    Put messages whose lease lapsed back into the line as suspects, and return them.

    Each is tested again under its lock: one that was renewed meanwhile stays. What constrains it stays bound to it.
    Locks: messages (skipping).
    """
    wanted = sorted(set(ids))

    def transition() -> list[Any]:
        with transaction.atomic(using=database()):
            released = sql.RELEASE_LAPSED.rows(ids=wanted, lease=f"{lease} seconds", lost=queue.LOST)
            there = {row.id for row in released}
            if rest := [(id, None) for id in wanted if id not in there]:
                marked = sql.SETTLE_MARKED.rows(**_pairs(rest), lease=f"{lease} seconds")
                settled(
                    [row.id for row in marked if row.constrained and row.event_id is None],
                    failed=[row.batch_id for row in marked],
                    claimed=[(row.id, row.delivery) for row in marked if row.event_id is not None],
                )
            return released

    released = retrying(transition) if wanted else []
    wake.wake_after_commit((row.queue, row.priority, row.suspect, row.position) for row in released)
    return [row.id for row in released]


def _pairs(pairs: Sequence[tuple[int, int | None]]) -> dict[str, list[Any]]:
    return {"ids": [id for id, _ in pairs], "deliveries": [delivery for _, delivery in pairs]}


def presume_dead(limit: int) -> int:
    """
    Fence out running holders that were silent for their `duration` and free their slots; return how many.

    Each goes back into the line as a suspect, under a raised delivery number, before its slot is free (semantics 4.5).
    Locks: messages (skipping), semaphore_slots, uniqueness_keys.
    """
    seen = slots.silent(limit)
    freed = _evict(seen, even_running=False)
    if freed:
        signals.holders_presumed_dead.send_robust(sender=None, count=freed)
    return freed


def release(key: str, *, even_running: bool = False, only: Collection[tuple[int, int]] | None = None) -> int:
    """
    Free the slots of a key whose holders are not running under a lease, let in who waits, and return how many were freed.

    With `even_running` all of them: a run that holds one is fenced out first and its job goes back into the line, but
    it may go on computing until it learns of it, and another starts beside it. `only` names the (message, delivery) of
    the runs that this was decided about; others keep their slots.
    Locks: messages (skipping), semaphore_slots, uniqueness_keys.
    """
    return _evict(slots.of_key(stored(key), MOST_SLOTS), even_running=even_running, only=only)


def _evict(seen: Sequence[Seen], *, even_running: bool, only: Collection[tuple[int, int]] | None = None) -> int:
    if not seen:
        return 0
    lease = f"{get_settings().VISIBILITY_TIMEOUT} seconds"
    ids = sorted(slot.message for slot in seen)

    def transition() -> tuple[int, set[str]]:
        with transaction.atomic(using=database()):
            quiet = {id for (id,) in sql.LOCK_QUIET.tuples(ids=ids)}
            # A statement of its own: what was renewed before the lock was had is seen.
            states = {row.id: row for row in sql.LEASE_STATES.rows(ids=ids, lease=lease)}
            fenced_out = [
                (row.id, row.delivery, row.started, True)
                for row in states.values()
                if row.id in quiet and row.leased
                if row.lapsed or (even_running and (only is None or (row.id, row.delivery) in only))
            ]
            running = {row.id for row in states.values() if row.id not in quiet or row.leased}
            freed = [key for _, key in slots.free_seen([slot for slot in seen if slot.message not in running])]
            freed += slots.free(sorted(_return(fenced_out, queue.RELEASED if even_running else queue.LOST)))
            let_in_after_commit(freed, ())
            return len(freed), set(freed)

    return retrying(transition)[0]


def _take_over(wanted: Sequence[str]) -> None:
    """Free keys held by deliveries under no lease, each fenced out first. Locks: messages (skipping), uniqueness_keys."""
    lease = get_settings().VISIBILITY_TIMEOUT
    silent = keys.silent(wanted, lease)
    if not silent:
        return

    def transition() -> list[str]:
        with transaction.atomic(using=database()):
            fenced_out = _fenced_out([(h.message, h.delivery) for h in silent if h.delivery is not None])
            # Who was fenced out has let its key go. Of those that were locked, and so live, the test in this statement
            # leaves the key alone.
            return [holder.key for holder in silent if holder.message in fenced_out] + keys.take_away(silent)

    for key in retrying(transition):
        signals.key_taken_over.send_robust(sender=None, key=key)


def _fenced_out(holders: Sequence[tuple[int, int]]) -> set[int]:
    """
    Put silent deliveries (message, delivery) back into the line under a raised number, and return their messages.

    One whose message somebody has locked lives, or is being settled. Locks: messages (skipping).
    """
    ids = sorted({message for message, _ in holders})
    quiet = {id for (id,) in sql.LOCK_QUIET.tuples(ids=ids)}
    # A statement of its own: what was renewed before the lock was had is seen.
    states = {
        row.id: row for row in sql.LEASE_STATES.rows(ids=ids, lease=f"{get_settings().VISIBILITY_TIMEOUT} seconds")
    }
    return set(
        _return(
            [
                (row.id, row.delivery, row.started, True)
                for message, delivery in sorted(set(holders))
                if (row := states.get(message)) and row.id in quiet
                if row.delivery == delivery and row.leased and row.lapsed
            ]
        )
    )


# --- leave --------------------------------------------------------------------------------------------


def settled(
    ids: Sequence[int],
    waiting: Sequence[int] = (),
    *,
    succeeded: Iterable[int | None] = (),
    failed: Iterable[int | None] = (),
    claimed: Sequence[tuple[int, int]] = (),
) -> None:
    """
    Let go of everything that constrained messages hold, since they are settled; who waits for it goes on.

    The one step of every way out, in the transaction that settles. Those of `waiting` only stopped running: they keep
    their slot, without a lease, and the key they hold until they are executed. `succeeded` and `failed` are the batches
    that count one member each, None for what belongs to none; `claimed` are deliveries of events that ended without having
    done them.
    Locks: semaphore_slots, uniqueness_keys, processed_events.
    """
    ids, waiting = sorted(ids), sorted(waiting)
    freed = slots.free(ids)
    slots.stop_leases(waiting)
    unique_keys = keys.free(ids, waiting)
    claims.release(claimed)
    let_in_after_commit(freed, unique_keys, counts.settled(succeeded=succeeded, failed=failed))


def succeed(successes: Sequence[Success], now: float) -> set[int]:
    """
    Archive runs that returned, and return the ids of those whose delivery was still the newest.

    The claim of an event is completed in the same transaction; one that is another delivery's by now was superseded.
    `now` is the monotonic time of this call. Locks: messages, semaphore_slots, uniqueness_keys, processed_events.
    """

    def settle(ordered: Sequence[Success]) -> list[Any]:
        return sql.SUCCEED.tuples(
            ids=numbers([s.delivery.id for s in ordered]),
            deliveries=numbers([s.delivery.delivery for s in ordered]),
            results=texts([s.result for s in ordered]),
            ran_for=seconds([s.ran_for for s in ordered]),
            ended_ago=seconds([max(0.0, now - s.ended) for s in ordered]),
        )

    settled_now = {id for id, _ in _settle(settle, successes, succeeded=True)}
    if not connections[database()].in_atomic_block:
        claims.completed.add(
            claims.key_of(d) for s in successes if event_claims.claims(d := s.delivery) and d.id in settled_now
        )
    return settled_now


def put_off(puts: Sequence[PutOff], now: float) -> dict[int, bool]:
    """
    Delay runs that failed or snoozed, and return {id: discarded instead} of those still the newest delivery.

    One that failed keeps its slot; a limited one that snoozes gives it back and is parked until it is due.
    Locks: messages, semaphore_slots, uniqueness_keys, processed_events.
    """
    limits = {
        p.delivery.id: limit
        for p in puts
        if p.reason == "snoozed" and (limit := constraints.readable(p.delivery.constraints).limit)
    }
    rows: dict[int, bool] = {}
    if snoozing := [put for put in puts if put.delivery.id in limits]:
        rows |= retrying(lambda: _park_until_due(snoozing, limits))
    others = [put for put in puts if put.delivery.id not in limits]
    if not others:
        return rows

    def settle(ordered: Sequence[PutOff]) -> list[Any]:
        return sql.PUT_OFF.tuples(
            ids=[p.delivery.id for p in ordered],
            deliveries=[p.delivery.delivery for p in ordered],
            delays=[p.delay for p in ordered],
            reasons=[p.reason for p in ordered],
            errors=[p.error for p in ordered],
            ran_for=[p.ran_for for p in ordered],
            ended_ago=[max(0.0, now - p.ended) for p in ordered],
        )

    settled_now = _settle(settle, others, waits=True)
    return rows | {id: discarded for id, discarded, _ in settled_now}


def _park_until_due(puts: Sequence[PutOff], limits: dict[int, constraints.BoundLimit]) -> dict[int, bool]:
    with transaction.atomic(using=database()):
        pairs = _pairs([(put.delivery.id, put.delivery.delivery) for put in puts])
        sql.LOCK_LEASED.tuples(**pairs, patience=None)
        rows = parked.park(
            _park(
                put.delivery,
                "semaphore",
                limits[put.delivery.id].key,
                limits[put.delivery.id],
                due_in=put.delay,
                fenced=False,
            )
            for put in puts
        )
        discarded = [id for id, gone in rows.items() if gone.discarded]
        snoozed = [id for id in rows if id not in discarded]
        let_in_after_commit(
            slots.free(sorted(rows)),
            keys.free(discarded, snoozed),
            counts.settled(failed=[rows[id].batch for id in discarded]),
        )
        return {id: gone.discarded for id, gone in rows.items()}


def give_up(gave_up: Sequence[GaveUp], now: float) -> dict[int, bool]:
    """
    Make dead letters, and return {id: discarded instead} of those still the newest delivery.

    Locks: messages, semaphore_slots, uniqueness_keys, processed_events.
    """

    def settle(ordered: Sequence[GaveUp]) -> list[Any]:
        return sql.GIVE_UP.tuples(
            ids=[g.delivery.id for g in ordered],
            deliveries=[g.delivery.delivery for g in ordered],
            reasons=[g.reason for g in ordered],
            not_run=[int(g.not_run) for g in ordered],
            errors=[g.error for g in ordered],
            ran_for=[g.ran_for for g in ordered],
            ended_ago=[max(0.0, now - g.ended) for g in ordered],
        )

    return {id: discarded for id, discarded, _ in _settle(settle, gave_up)}


class _ClaimsLost(Exception):
    """Claims that are another delivery's by now: whatever was written is rolled back, these runs are superseded."""

    def __init__(self, ids: set[int]) -> None:
        self.ids = ids


def _settle(
    settle: Callable[[Sequence[O]], list[Any]], outcomes: Sequence[O], *, waits: bool = False, succeeded: bool = False
) -> list[Any]:
    """
    Run the statement that settles and return its rows: id, whether it was discarded instead, batch.

    What those that are constrained held is let go in the same transaction, and those that are members are counted; with
    `waits` those not discarded keep what they keep while they wait. A task that is neither costs one statement and no
    BEGIN.
    """
    ordered = sorted(outcomes, key=lambda outcome: outcome.delivery.id)
    if all(o.delivery.constraints is None and o.delivery.batch is None for o in ordered):
        return retrying(lambda: settle(ordered))
    constrained = {o.delivery.id for o in ordered if o.delivery.constraints is not None and o.delivery.event is None}
    claimed = {o.delivery.id: o.delivery for o in ordered if event_claims.claims(o.delivery)}

    def transition() -> list[Any]:
        with transaction.atomic(using=database()):
            rows = settle(ordered)
            mine = {row[0] for row in rows}
            waiting = {row[0] for row in rows if waits and not row[1]}
            batches = [row[-1] for row in rows if row[0] not in waiting]
            ended = [delivery for id, delivery in claimed.items() if id in mine]
            settled(
                sorted(constrained & mine - waiting),
                sorted(constrained & waiting),
                succeeded=batches if succeeded else (),
                failed=() if succeeded else batches,
                claimed=[] if succeeded else [(delivery.id, delivery.delivery) for delivery in ended],
            )
            if succeeded and (lost := {delivery.id for delivery in ended} - claims.complete(ended)):
                raise _ClaimsLost(lost)
            return rows

    try:
        return retrying(transition)
    except _ClaimsLost as lost:
        rest = [outcome for outcome in ordered if outcome.delivery.id not in lost.ids]
        return _settle(settle, rest, waits=waits, succeeded=succeeded) if rest else []


def settled_before(deliveries: Sequence[Delivery]) -> set[int]:
    """Return the ids whose settlement under this very delivery is stored: a COMMIT whose reply was lost."""
    mine = {d.id: d.delivery for d in deliveries}
    return {row.id for row in sql.SETTLED.rows(ids=sorted(mine)) if mine[row.id] == row.delivery}


def discard(ids: Iterable[int]) -> Discarded:
    """
    Settle waiting tasks as discarded and mark running ones, and return which is which.

    A running one is told with its worker's next beat. A task that moves meanwhile is looked for again.
    Locks: messages, delayed, semaphore_slots, blocked_executions, uniqueness_keys, processed_events.
    """
    asked = frozenset(ids)
    wanted = sorted(asked)
    gone: set[int] = set()
    marked: set[int] = set()
    for _ in range(3):
        if not wanted:
            break
        now_gone, now_marked = retrying(lambda: _discard_once(wanted))  # noqa: B023
        gone |= now_gone
        marked |= now_marked
        if wanted := sorted(asked - gone - marked):
            # Looked for without a lock: a second round would lock messages after others, so only if one has moved.
            wanted = [row.id for row in sql.WAITING_OR_RUNNING.rows(ids=wanted)]
    return Discarded(settled=frozenset(gone), marked=frozenset(marked - gone), gone=asked - gone - marked)


def _discard_once(wanted: list[int]) -> tuple[set[int], set[int]]:
    with transaction.atomic(using=database()):
        waiting = sql.DISCARD_READY.rows(ids=wanted)
        marked = {row.id for row in sql.MARK_DISCARD.rows(ids=wanted)}
        waiting += sql.DISCARD_DELAYED.rows(ids=wanted)
        constrained = sorted(row.id for row in waiting if row.constrained)
        freed = slots.free(constrained)
        discarded = parked.discard([id for id in wanted if id not in marked])
        batches = [*(row.batch_id for row in waiting), *discarded.values()]
        unique_keys = keys.free(sorted([*constrained, *discarded]))
        claims.release([(row.id, row.delivery) for row in waiting if row.event_id is not None and row.constrained])
        let_in_after_commit(freed, unique_keys, counts.settled(failed=batches))
        return {*(row.id for row in waiting), *discarded}, marked


def discard_parked(
    key: str, *, waits_for: str = "semaphore", up_to: int | None = None, seen_at: str | None = None
) -> int:
    """
    Settle the parked tasks of one key as discarded, and return how many; they never run.

    Up to the highest id that was seen, and none parked since (`seen_at` is a time of the database), passing over what
    somebody else has locked, each batch in a transaction of its own.
    Locks: blocked_executions (skipping), uniqueness_keys.
    """
    highest = 2**63 - 1 if up_to is None else up_to

    def transition() -> int:
        with transaction.atomic(using=database()):
            gone = parked.discard(parked.of_key(waits_for, stored(key), highest, DISCARDS, seen_at))
            let_in_after_commit((), keys.free(sorted(gone)), counts.settled(failed=gone.values()))
            return len(gone)

    total = 0
    while count := retrying(transition):
        total += count
    return total


def discard_dead(ids: Iterable[int]) -> list[int]:
    """Settle dead letters as discarded and return those that were there. Locks: dead_letters."""
    wanted = sorted(set(ids))
    return [row.id for row in retrying(lambda: sql.DISCARD_DEAD.rows(ids=wanted))]


def fail_timed_out(id: int, delivery: int, *, max_attempts: int, ran_for: float, worker: str) -> PutOff | GaveUp | None:
    """
    Settle a run that had to be ended with its process: it failed as timed out (semantics 8.5).

    Return what it was settled as; None if it was not this delivery's any more, or a person has discarded it.
    Called by the supervisor once the process is gone. Locks: messages, semaphore_slots, uniqueness_keys, processed_events.
    """
    row = FIND.row(id=id)
    if row is None or row.state != "running" or row.delivery != delivery:
        return None
    from django_pgbus.tasks import backoff

    error = json.dumps(
        {
            "exception": "django_pgbus.exceptions.TaskTimeout",
            "traceback": f"The task did not stop within its hard limit ({ran_for:.1f} s); its process was ended.",
            "worker": worker,
            "attempt": row.attempts,
        }
    )
    held = Delivery(
        position=0,
        id=id,
        level=Level(row.queue, row.priority),
        delivery=delivery,
        attempts=row.attempts,
        task=row.task,
        backend=row.backend,
        payload=row.payload,
        errors=row.errors,
        enqueued_at=row.enqueued_at,
        confirmed_at=0.0,
        constraints=row.constraints,
        batch=row.batch_id,
        event=row.event_id,
        topic=row.topic,
    )
    signals.task_timed_out.send_robust(sender=None, delivery=held, hard=True)
    if row.attempts >= max_attempts:
        gave_up = GaveUp(delivery=held, reason="exhausted", error=error, ran_for=ran_for, ended=0.0)
        return gave_up if give_up([gave_up], 0.0).get(id) is False else None
    delay = backoff.default_delay(row.attempts)
    put = PutOff(delivery=held, delay=delay, reason="retry", error=error, ran_for=ran_for, ended=0.0)
    return put if put_off([put], 0.0).get(id) is False else None


def find(id: int) -> Any:
    """Return where a task is and what is known of it, or None."""
    return FIND.row(id=id)


# --- a person's decisions about a queue ---------------------------------------------------------------


def pause_queue(name: str, by: str = "") -> None:
    """Stop claims from a queue within a second. Locks: queue_states."""
    queue.pause(name, by)
    wake.once_committed(lambda: wake.notify([["queue", name]]))
    signals.queue_paused.send_robust(sender=None, queue=name, by=by)


def resume_queue(name: str, by: str = "") -> bool:
    """Let a queue be claimed from again and return whether it was paused. Locks: queue_states."""
    was_paused = queue.resume(name)
    wake.once_committed(lambda: wake.notify([["queue", name]]))
    signals.queue_resumed.send_robust(sender=None, queue=name, by=by)
    return was_paused
