"""
Every way a task enters, moves in or leaves the system.

One function is one transition and one transaction; inside a caller's `atomic()` it is part of the caller's. What
each row locks stands in its `Locks:` line, in the order of `postgres/locks.py`. A transition names the message and
its delivery; one that finds the delivery superseded changes nothing and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import transaction

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.postgres import retrying
from django_pgbus.postgres.arrays import numbers, texts
from django_pgbus.queues import delayed, queue, sql, wake
from django_pgbus.queues.line import Line
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks.sql import FIND

CHUNK: Final = 1000  # rows per statement


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWork:
    """What is asked for: `payload` is the encoded arguments, `due` a moment or the time from now."""

    task: str
    payload: str
    queue: str
    priority: int = 0
    backend: str = "default"
    due: datetime | timedelta | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The id a task keeps for life, and when it got it by the database's clock."""

    id: int
    enqueued_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """A run that returned: `result` encoded, `ran_for` and `ended` in seconds of the monotonic clock."""

    delivery: Delivery
    result: str
    ran_for: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOff:
    """A run that failed and is tried again, or asked to be run later (`reason` is retry or snoozed)."""

    delivery: Delivery
    delay: float
    reason: str
    error: str | None
    ran_for: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """A task that is not tried again; `not_run` when the claim counted an attempt that never began."""

    delivery: Delivery
    reason: str
    error: str | None
    ran_for: float
    ended: float
    not_run: bool = False


@dataclass(slots=True, kw_only=True)
class HeldMessage:
    """What a supervisor knows of a message that a process of it held."""

    id: int
    delivery: int
    started: bool = False
    suspect: bool = False
    running: bool | None = None  # when the process ended; None where nobody knows
    started_at: float = 0.0


# --- enter --------------------------------------------------------------------------------------------


def enqueue(work: NewWork) -> Enqueued:
    """Put a task into the line, or among the delayed, in the caller's transaction. Locks: none."""
    if work.due is not None:
        return _enqueue_later(work, [work.payload])[0]
    id, position, at = queue.send(work.queue, work.priority, work.task, work.backend, work.payload)
    wake.after_commit({Level(work.queue, work.priority): position})
    return Enqueued(id, at)


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
    rows = queue.send_many(work.queue, work.priority, work.task, work.backend, payloads)
    wake.after_commit({Level(work.queue, work.priority): min(position for _, position, _ in rows)})
    return [Enqueued(id, at) for id, _, at in rows]


def _enqueue_later(work: NewWork, payloads: Sequence[str]) -> list[Enqueued]:
    assert work.due is not None
    rows = queue.send_later(work.queue, work.priority, work.task, work.backend, payloads, work.due)
    positions = [row.position for row in rows if row.position is not None]
    soonest = min(row.due_in for row in rows)
    wake.after_commit(
        {Level(work.queue, work.priority): min(positions, default=0)},
        None if positions else {work.queue: soonest},
    )
    return [Enqueued(row.id, row.enqueued_at) for row in rows]


def redrive(ids: Iterable[int]) -> list[int]:
    """
    Put dead letters into the line again under their ids, and return those that were there.

    Attempts start again, delivery numbers go on rising, the history stays. Locks: dead_letters.
    """
    wanted = sorted(set(ids))
    rows = retrying(lambda: sql.REDRIVE.rows(ids=wanted))
    wake.wake_after_commit((row.queue, row.priority, row.suspect, row.position) for row in rows)
    return [row.id for row in rows]


# --- move ---------------------------------------------------------------------------------------------


def claim(line: Line, levels: Sequence[Level], limit: int, worker: UUID, lease: float) -> list[Delivery]:
    """Claim messages for this process: delivery raised, attempt counted provisionally. Locks: messages (skipping)."""
    return line.claim(levels, limit, worker, lease)


def move_due(queues: Sequence[str]) -> list[tuple[str, int, bool, int]]:
    """Move due messages into the line and return (queue, priority, suspect, position). Locks: delayed (skipping)."""
    return retrying(lambda: delayed.move_due(queues))


def hand_back(pairs: Iterable[tuple[int, int]]) -> list[int]:
    """
    Put (id, delivery) back into the line, no attempt counted, and return those that were still held.

    Only for deliveries that are not running, or no longer. Locks: messages.
    """
    return _return(sorted((id, delivery, False, False) for id, delivery in pairs))


def reap(held: Iterable[HeldMessage]) -> list[int]:
    """
    Put what a dead process held back into the line, and return what was still its own.

    What was running is a suspect, and so is everything where nobody knows what was. An attempt counts if it had
    started; if a suspect ran in that process, only the suspect's (semantics 2.4).
    Locks: messages.
    """
    held = sorted(held, key=lambda message: message.id)
    culprits = _culprits(held)
    return _return(
        [(m.id, m.delivery, m.started and (not culprits or m.id in culprits), m.running is not False) for m in held]
    )


def _culprits(held: Iterable[HeldMessage]) -> set[int]:
    return {message.id for message in held if message.suspect and message.started and message.running is not False}


def _return(rows: Sequence[tuple[int, int, bool, bool]]) -> list[int]:
    if not rows:
        return []

    def transition() -> list[Any]:
        with transaction.atomic(using=database()):
            returned = sql.RETURN_TO_LINE.rows(
                ids=[id for id, *_ in rows],
                deliveries=[delivery for _, delivery, *_ in rows],
                counted=[counted for _, _, counted, _ in rows],
                suspects=[suspect for *_, suspect in rows],
                lost=queue.LOST,
            )
            there = {row.id for row in returned}
            if rest := [(id, delivery) for id, delivery, *_ in rows if id not in there]:
                _settle_marked(rest)
            return returned

    returned = retrying(transition)
    wake.wake_after_commit((row.queue, row.priority, row.suspect, row.position) for row in returned)
    return [row.id for row in returned]


def release_lapsed(ids: Iterable[int], lease: float) -> list[int]:
    """
    Put messages whose lease lapsed back into the line as suspects, and return them.

    Each is tested again under its lock: one that was renewed meanwhile stays. Locks: messages (skipping).
    """
    wanted = sorted(set(ids))

    def transition() -> list[Any]:
        with transaction.atomic(using=database()):
            released = sql.RELEASE_LAPSED.rows(ids=wanted, lease=f"{lease} seconds", lost=queue.LOST)
            there = {row.id for row in released}
            if rest := [(id, None) for id in wanted if id not in there]:
                _settle_marked(rest, lease)
            return released

    released = retrying(transition) if wanted else []
    wake.wake_after_commit((row.queue, row.priority, row.suspect, row.position) for row in released)
    return [row.id for row in released]


def _settle_marked(pairs: Sequence[tuple[int, int | None]], lease: float = 0.0) -> list[int]:
    rows = sql.SETTLE_MARKED.rows(
        ids=[id for id, _ in pairs], deliveries=[delivery for _, delivery in pairs], lease=f"{lease} seconds"
    )
    return [row.id for row in rows]


# --- leave --------------------------------------------------------------------------------------------


def succeed(successes: Sequence[Success], now: float) -> set[int]:
    """
    Archive runs that returned, and return the ids of those whose delivery was still the newest.

    `now` is the monotonic time of this call. Locks: messages.
    """
    ordered = sorted(successes, key=lambda success: success.delivery.id)
    rows = retrying(
        lambda: sql.SUCCEED.tuples(
            ids=numbers([s.delivery.id for s in ordered]),
            deliveries=numbers([s.delivery.delivery for s in ordered]),
            results=texts([s.result for s in ordered]),
            ran_for=numbers([s.ran_for for s in ordered]),
            ended_ago=numbers([max(0.0, now - s.ended) for s in ordered]),
        )
    )
    return {id for (id,) in rows}


def put_off(puts: Sequence[PutOff], now: float) -> dict[int, bool]:
    """
    Delay runs that failed or snoozed, and return {id: discarded instead} of those still the newest delivery.

    Locks: messages.
    """
    ordered = sorted(puts, key=lambda put: put.delivery.id)
    rows = retrying(
        lambda: sql.PUT_OFF.tuples(
            ids=[p.delivery.id for p in ordered],
            deliveries=[p.delivery.delivery for p in ordered],
            delays=[p.delay for p in ordered],
            reasons=[p.reason for p in ordered],
            errors=[p.error for p in ordered],
            ran_for=[p.ran_for for p in ordered],
            ended_ago=[max(0.0, now - p.ended) for p in ordered],
        )
    )
    return dict(rows)


def give_up(gave_up: Sequence[GaveUp], now: float) -> dict[int, bool]:
    """
    Make dead letters, and return {id: discarded instead} of those still the newest delivery.

    Locks: messages.
    """
    ordered = sorted(gave_up, key=lambda gone: gone.delivery.id)
    rows = retrying(
        lambda: sql.GIVE_UP.tuples(
            ids=[g.delivery.id for g in ordered],
            deliveries=[g.delivery.delivery for g in ordered],
            reasons=[g.reason for g in ordered],
            not_run=[int(g.not_run) for g in ordered],
            errors=[g.error for g in ordered],
            ran_for=[g.ran_for for g in ordered],
            ended_ago=[max(0.0, now - g.ended) for g in ordered],
        )
    )
    return dict(rows)


def settled_before(deliveries: Sequence[Delivery]) -> set[int]:
    """Return the ids whose settlement under this very delivery is stored: a COMMIT whose reply was lost."""
    mine = {d.id: d.delivery for d in deliveries}
    return {row.id for row in sql.SETTLED.rows(ids=sorted(mine)) if mine[row.id] == row.delivery}


def discard(ids: Iterable[int]) -> Discarded:
    """
    Settle waiting tasks as discarded and mark running ones, and return which is which.

    A running one is told with its worker's next beat. A task that moves meanwhile is looked for again.
    Locks: messages, delayed.
    """
    asked = frozenset(ids)
    wanted = sorted(asked)
    settled: set[int] = set()
    marked: set[int] = set()
    for _ in range(3):
        if not wanted:
            break
        settled |= {row.id for row in retrying(lambda: sql.DISCARD_READY.rows(ids=wanted))}  # noqa: B023
        marked |= {row.id for row in retrying(lambda: sql.MARK_DISCARD.rows(ids=wanted))}  # noqa: B023
        settled |= {row.id for row in retrying(lambda: sql.DISCARD_DELAYED.rows(ids=wanted))}  # noqa: B023
        if wanted := sorted(asked - settled - marked):
            # Looked for without a lock: a second round would lock messages after delayed, so only if one has moved.
            wanted = [row.id for row in sql.WAITING_OR_RUNNING.rows(ids=wanted)]
    return Discarded(settled=frozenset(settled), marked=frozenset(marked - settled), gone=asked - settled - marked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Which tasks were settled, which are running and only marked, and which had left before."""

    settled: frozenset[int]
    marked: frozenset[int]
    gone: frozenset[int]


def discard_dead(ids: Iterable[int]) -> list[int]:
    """Settle dead letters as discarded and return those that were there. Locks: dead_letters."""
    wanted = sorted(set(ids))
    return [row.id for row in retrying(lambda: sql.DISCARD_DEAD.rows(ids=wanted))]


def fail_timed_out(id: int, delivery: int, *, max_attempts: int, ran_for: float, worker: str) -> None:
    """
    Settle a run that had to be ended with its process: it failed as timed out (semantics 8.5).

    Called by the supervisor once the process is gone. Locks: messages.
    """
    row = FIND.row(id=id)
    if row is None or row.state != "running" or row.delivery != delivery:
        return
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
    )
    signals.task_timed_out.send_robust(sender=None, delivery=held, hard=True)
    if row.attempts >= max_attempts:
        give_up([GaveUp(delivery=held, reason="exhausted", error=error, ran_for=ran_for, ended=0.0)], 0.0)
    else:
        put_off(
            [
                PutOff(
                    delivery=held,
                    delay=backoff.default_delay(row.attempts),
                    reason="retry",
                    error=error,
                    ran_for=ran_for,
                    ended=0.0,
                )
            ],
            0.0,
        )


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
