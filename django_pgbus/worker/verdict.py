"""
Whether everything works, in a word and with reasons: OK, DEGRADED or STALLED.

STALLED: work waits, and nobody can be expected to do it. DEGRADED: it is done, but something needs a person, or soon will.
A reason says what is so and since when; what to do about it stands in the admin and in `pgbus_doctor`. One number is not
enough for STALLED: a job that was enqueued this moment, or a queue whose workers are all busy, is nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from django.db import DatabaseError, transaction

from django_pgbus.concurrency import stats as concurrency_stats
from django_pgbus.conf import database
from django_pgbus.events import stats as event_stats
from django_pgbus.postgres import stats as database_stats
from django_pgbus.postgres.retrying import is_connection_loss
from django_pgbus.queues import stats as queue_stats
from django_pgbus.queues.stats import Count, QueueStats, Totals
from django_pgbus.streams import stats as stream_stats
from django_pgbus.worker import hindrances
from django_pgbus.worker import stats as worker_stats
from django_pgbus.worker.stats import WorkerStats

T = TypeVar("T")

UNTOUCHED: Final = 60.0  # seconds that a job may wait although those who serve its queue run nothing
BEHIND: Final = 300.0  # seconds that a job may wait while they are busy
OVERDUE: Final = 60.0  # seconds within which what is due has moved into the line
MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86400
NAMED: Final = 3
MOST_REASONS: Final = 50


class Status(StrEnum):
    """The word."""

    OK = "OK"
    DEGRADED = "DEGRADED"
    STALLED = "STALLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why it is not OK, in a sentence, and how bad that is."""

    status: Status
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The word, the reasons (the worst first), and the numbers it was made of; what could not be looked at is None."""

    status: Status
    reasons: Sequence[str]
    queues: Sequence[QueueStats] | None
    workers: Sequence[WorkerStats] | None
    parked: Count | None
    oldest_transaction: float | None

    @property
    def totals(self) -> Totals | None:
        """Return the sums over the queues."""
        return None if self.queues is None else queue_stats.totals(self.queues)


Reasons = Iterator[Reason]


def verdict() -> Verdict:
    """Return how everything is; asks a fixed number of times, and a look that fails keeps no other from being made."""
    found: list[Reason] = []
    workers = _look(found, "The workers", worker_stats.workers)
    queues = _look(found, "The queues", queue_stats.queues)
    parked = _look(found, "The parked jobs", lambda: concurrency_stats.parked())
    alarms = _look(found, "The streams", stream_stats.alarms)
    subscribed = _look(found, "The subscriptions", lambda: event_stats.subscriptions())
    oldest = _look(found, "The open transactions", lambda: database_stats.transactions().oldest)
    if workers is not None:
        found += _of_workers(workers)
    if workers is not None and queues is not None:
        found += _of_queues(queues, workers)
    if workers is not None and subscribed is not None:
        found += _of_subscriptions({one.queue for one in subscribed}, queues or (), workers)
    if alarms is not None:
        found += _of_streams(alarms.refusing, alarms.paused, alarms.dead)
    if oldest is not None and oldest > hindrances.HELD_LONG:
        found.append(_degraded(f"A transaction has been open for {age(oldest)}: it keeps vacuum from cleaning up."))
    worst = [reason.text for reason in found if reason.status is Status.STALLED]
    others = [reason.text for reason in found if reason.status is Status.DEGRADED]
    return Verdict(
        status=Status.STALLED if worst else Status.DEGRADED if others else Status.OK,
        reasons=_bounded(worst + others),
        queues=queues,
        workers=workers,
        parked=None if parked is None else sum((of_kind.number for of_kind in parked), Count(0)),
        oldest_transaction=oldest,
    )


def _bounded(reasons: list[str]) -> tuple[str, ...]:
    more = len(reasons) - MOST_REASONS
    return tuple(reasons) if more <= 0 else (*reasons[:MOST_REASONS], f"And {more:,} more reasons.")


def age(seconds: float) -> str:
    """Return a duration in its two largest units, in English."""
    whole = round(max(0.0, seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def many(count: Count | int, one: str, more: str = "") -> str:
    """Return a number with its noun, in English."""
    count = count if isinstance(count, Count) else Count(count)
    return f"{count} {one if count == Count(1) else more or one + 's'}"


def _look(found: list[Reason], subject: str, look: Callable[[], T]) -> T | None:
    try:
        with transaction.atomic(using=database()):  # one that fails must not end the transaction it stands in
            return look()
    except DatabaseError as error:
        if is_connection_loss(error):
            raise
        found.append(_degraded(f"{subject} could not be looked at ({type(error).__name__})."))
        return None


def _of_workers(workers: Sequence[WorkerStats]) -> Reasons:
    if silent := hindrances.silent(workers):
        since = age(min(worker.silent_for for worker in silent))
        yield _degraded(f"{many(len(silent), 'worker')} fell silent, the last one {since} ago: {_names(silent)}.")
    if deaf := hindrances.deaf(workers):
        hears = "hears no notifications and only polls" if len(deaf) == 1 else "hear no notifications and only poll"
        yield _degraded(f"{many(len(deaf), 'worker')} {hears}: {_names(deaf)}.")
    taking = [worker for worker in workers if worker.takes_jobs]
    if taking and not any(worker.dispatcher for worker in workers):
        yield _degraded("No worker is the dispatcher: sweeps and repairs wait until one is elected.")


def _of_queues(queues: Sequence[QueueStats], workers: Sequence[WorkerStats]) -> Reasons:
    totals = queue_stats.totals(queues)
    if dead := totals.dead:
        yield _degraded(f"{many(dead, 'dead letter')} {'waits' if dead == Count(1) else 'wait'} for a person.")
    for queue in hindrances.held_up(queues):
        by = f" by {queue.paused_by}" if queue.paused_by else ""
        yield _degraded(f"Queue {queue.name} is paused{by}: {_what_waits(queue)}.")
    waiting = [queue for queue in queues if not queue.paused and (queue.ready or _is_overdue(queue))]
    if hindrances.nobody(workers):
        if waiting:
            names = _listed([queue.name for queue in waiting])
            for_how_long = "" if totals.oldest_ready is None else f", the oldest for {age(totals.oldest_ready)}"
            yield _stalled(f"No worker takes jobs, and work waits in {names}{for_how_long}.")
        else:
            yield _degraded("No worker takes jobs: whatever is enqueued waits.")
        return
    unserved = {queue.name for queue in hindrances.unserved(waiting, workers)}
    for queue in waiting:
        if queue.name in unserved:
            yield _degraded(f"No running worker serves queue {queue.name}: {_what_waits(queue)}.")
        else:
            yield from _of_queue(queue, worker_stats.serving(queue.name, workers))


def _of_queue(queue: QueueStats, serving: Sequence[WorkerStats]) -> Reasons:
    waits = queue.oldest_ready or 0.0
    if _is_overdue(queue):
        yield _stalled(
            f"Queue {queue.name}: delayed jobs are overdue by {age(-(queue.next_due or 0.0))}, and nobody moves them into "
            "the line."
        )
    if not queue.ready or waits < UNTOUCHED:
        return
    if not queue.running and not any(worker.running for worker in serving):
        yield _stalled(f"Queue {queue.name}: {_what_waits(queue)}, and the workers that serve it run nothing.")
    elif waits > BEHIND:
        yield _degraded(f"Queue {queue.name} is behind: {_what_waits(queue)}.")


def _of_subscriptions(subscribed: set[str], queues: Sequence[QueueStats], workers: Sequence[WorkerStats]) -> Reasons:
    if hindrances.nobody(workers):
        return  # said already
    said = {queue.name for queue in queues if queue.ready}
    if unserved := hindrances.unheard(subscribed - said, workers):
        yield _degraded(f"Handlers are subscribed, and no running worker serves their queue: {_listed(unserved)}.")


def _of_streams(refusing: Sequence[str], paused: Sequence[str], dead: Count) -> Reasons:
    if refusing:
        yield _degraded(f"A cursor does not fit its log, so a consumer group refuses to work: {_listed(refusing)}.")
    if paused:
        yield _degraded(f"{many(len(paused), 'consumer group')} paused: {_listed(paused)}.")
    if dead:
        waits = "waits" if dead == Count(1) else "wait"
        yield _degraded(f"{many(dead, 'dead letter')} of streams {waits} for a person.")


def _is_overdue(queue: QueueStats) -> bool:
    return queue.next_due is not None and queue.next_due < -OVERDUE


def _what_waits(queue: QueueStats) -> str:
    if not queue.ready:
        return f"{many(queue.delayed, 'delayed job')} there"
    oldest = "" if queue.oldest_ready is None else f", the oldest for {age(queue.oldest_ready)}"
    return f"{many(queue.ready, 'ready job')} there{oldest}"


def _names(workers: Sequence[WorkerStats]) -> str:
    return _listed([worker.name for worker in workers])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


def _stalled(text: str) -> Reason:
    return Reason(status=Status.STALLED, text=text)


def _degraded(text: str) -> Reason:
    return Reason(status=Status.DEGRADED, text=text)
