"""The guard that follows every lifecycle call and every sweep: what each locks, and in which order."""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_pgbus import Batch
from django_pgbus.models import (
    ConsumerGroup,
    Cursor,
    EntryException,
    EventCount,
    Message,
    ProcessedEvent,
    Semaphore,
    Slot,
    StreamLog,
    UniquenessKey,
)
from django_pgbus.postgres import LOCK_ORDER
from django_pgbus.queues import sql
from django_pgbus.queues.line import Line
from django_pgbus.streams import appending, logs
from django_pgbus.tasks import lifecycle
from django_pgbus.worker.sweeps import SWEEPS
from tests.architecture.statements import LockGuard, LockOrderBroken
from tests.constrained import alone, enqueue, make_parked_due, one, silence, unique_and_one, unique_or_error
from tests.eventful import claim_events, publish_once
from tests.jobs import noop
from tests.line import (
    COMMITTED,
    DEFAULT,
    LEASE,
    claim,
    fail,
    give_up,
    hand_back,
    lapse,
    long_up,  # noqa: F401
    make_due,
    put,
    succeed,
    work,
)
from tests.races.guards import as_if_it_died_before_it_looked
from tests.sessions import execute

pytestmark = COMMITTED


def test_the_guard_sees_an_inversion() -> None:
    with connection.execute_wrapper(LockGuard()), pytest.raises(LockOrderBroken, match="messages locked after levels"):
        with transaction.atomic():
            sql.ANNOUNCE_LEVELS.count(queues=["a"], priorities=[0], suspects=[False])
            sql.MARK_DISCARD.count(ids=[1])


def test_two_transactions_are_two_orders() -> None:
    guard = LockGuard()
    with connection.execute_wrapper(guard):
        sql.ANNOUNCE_LEVELS.count(queues=["a"], priorities=[0], suspects=[False])
        sql.MARK_DISCARD.count(ids=[1])
    assert guard.seen == ["levels", "messages"]


class World:
    """One message in each place."""

    def __init__(self) -> None:
        put(8)
        (
            self.running,
            self.failing,
            self.marked,
            self.lapsed,
            self.snoozed,
            self.late,
            self.dead,
            self.done,
        ) = claim()
        lifecycle.discard([self.marked.id])
        lapse(self.lapsed.id)
        fail(self.snoozed, delay=3600)
        fail(self.late)
        make_due(self.late.id)
        give_up(self.dead)
        succeed(self.done)
        (self.ready,) = put()
        lifecycle.pause_queue("paused")
        ids = {name: getattr(self, name).id for name in ("running", "failing", "marked", "lapsed", "snoozed", "dead")}
        self.all = [self.ready, *ids.values()]
        self._constrain()
        self._claim_events()
        self.ended, self.deserted = self._end_a_batch(), self._desert_a_batch()

    def _constrain(self) -> None:
        """Tasks that hold a slot and a key in each place, and some that are parked behind them."""
        running = [enqueue(unique_and_one, name) for name in ("runs", "fails", "silent", "over", "gone")]
        self.handed_back = enqueue(unique_and_one, "back")
        self.limited_dead = enqueue(unique_or_error, "dead")
        for key in ("limit-runs", "limit-silent", "limit-gone"):
            enqueue(one, key)
        self.parked_until_due = enqueue(one, "limit-runs", after=3600)
        make_parked_due(self.parked_until_due)
        by_id = {delivery.id: delivery for delivery in claim()}
        lifecycle.pick_up([by_id[id] for id in [*running, self.handed_back, self.limited_dead]])
        self.limited_running, self.limited_failing, self.silent, self.over, self.gone = (by_id[id] for id in running)
        give_up(by_id[self.limited_dead])
        hand_back(by_id[self.handed_back])
        silence(self.silent)
        lapse(self.over.id)
        enqueue(alone, "runs")

    def _claim_events(self) -> None:
        """Copies of events that are claimed in each place, one whose claim is taken, and one nobody has claimed."""
        events = [publish_once() for _ in range(4)]
        claimed = {delivery.event: delivery for delivery in claim_events()}
        self.event_running, self.event_failing, self.event_marked, back = (claimed[event] for event in events)
        lifecycle.pick_up([*claimed.values()])
        lifecycle.discard([self.event_marked.id])
        self.event_back = back.id
        lifecycle.hand_back([(back.id, back.delivery)], even_running=True)
        execute("UPDATE pgbus_messages SET delivery = delivery - 1 WHERE id = %s", [back.id])
        publish_once(self.event_running.event)
        publish_once()

    @staticmethod
    def _end_a_batch() -> int:
        """Let the only member of a batch end, without anybody having looked."""
        with as_if_it_died_before_it_looked():
            with Batch(key="ended") as batch:
                id = int(noop.enqueue().id)
            lifecycle.discard([id])
        assert batch.id is not None
        return batch.id

    @staticmethod
    def _desert_a_batch() -> int:
        """Let the only member of a batch be nowhere."""
        with Batch(key="deserted") as batch:
            id = int(noop.enqueue().id)
        Message.objects.filter(id=id).delete()
        assert batch.id is not None
        return batch.id

    def make_room(self) -> None:
        """Let slot and key of `gone` be free, without anybody having looked."""
        Slot.objects.filter(message_id=self.gone.id).delete()

    def leave_behind(self) -> None:
        """Leave what only a restore leaves behind, and what is old."""
        old = timezone.now() - timedelta(days=100)
        ProcessedEvent.objects.create(event_id=uuid.uuid4(), handler="old", message_id=1, delivery=1, completed_at=old)
        for _ in range(2):
            EventCount.objects.create(status="unrouted", name="old", last_at=old)
        Slot.objects.create(message_id=10**15, key="lost", ordinal=1, duration=900)
        UniquenessKey.objects.create(key="lost", message_id=10**15, strategy="until_executed", queue="default")
        Semaphore.objects.create(key="unused", capacity=1)
        self._fill_logs()
        self._leave_a_group(old)

    @staticmethod
    def _leave_a_group(old: Any) -> None:
        """A group whose worker ended before it wrote how far it is, with a failed entry that nobody has looked at."""
        logs.ensure("left", retention=None, partition_size=100)
        group = ConsumerGroup.objects.create(stream=StreamLog.objects.get(name="left"), name="left", handler="left")
        Cursor.objects.create(group=group, claimed=5, fence=1, epoch="")
        EntryException.objects.create(group=group, position=1, status="dead", failed_at=old, payload="{}")

    @staticmethod
    def _fill_logs() -> None:
        """One log that lacks a partition and has one to drop, and one that is short."""
        for name, size in ("long", 2), ("short", 100):
            logs.ensure(name, retention=timedelta(0), partition_size=size)
            for _ in range(4):
                appending.append(name, "1")


def held(*deliveries: Any) -> list[lifecycle.HeldMessage]:
    return [lifecycle.HeldMessage(id=d.id, delivery=d.delivery, started=True) for d in deliveries]


def pairs(*deliveries: Any) -> list[tuple[int, int]]:
    return [(d.id, d.delivery) for d in deliveries]


# One case for each public function of `tasks/lifecycle.py`; a function without one fails below.
CALLS: dict[str, Callable[[World], Any]] = {
    "enqueue": lambda w: lifecycle.enqueue(work(due=timedelta(hours=1))),
    "enqueue_many": lambda w: lifecycle.enqueue_many(work(), ["{}"] * 3),
    "enter": lambda w: unique_or_error.enqueue("new"),
    "redrive": lambda w: lifecycle.redrive([w.dead.id, w.limited_dead]),
    "let_in": lambda w: (w.make_room(), lifecycle.let_in(["limit-gone"], ["runs"])),
    "let_in_after_commit": lambda w: lifecycle.let_in_after_commit(["limit-gone"]),
    "finish_batches": lambda w: lifecycle.finish_batches([w.ended]),
    "repair_batches": lambda w: lifecycle.repair_batches([w.deserted]),
    "pick_up": lambda w: lifecycle.pick_up(claim()),
    "presume_dead": lambda w: lifecycle.presume_dead(10),
    "release": lambda w: lifecycle.release("limit-runs", even_running=True),
    "settled": lambda w: lifecycle.settled([w.limited_running.id], claimed=pairs(w.event_running)),
    "discard_parked": lambda w: lifecycle.discard_parked("limit-runs"),
    "claim": lambda w: lifecycle.claim(Line(), [DEFAULT], 10, uuid.uuid4(), LEASE),
    "move_due": lambda w: lifecycle.move_due(["default"]),
    "run_now": lambda w: lifecycle.run_now([w.snoozed.id, w.parked_until_due, w.ready]),
    "hand_back_running": lambda w: lifecycle.hand_back_running(
        [w.running.id, w.marked.id, w.limited_running.id, w.event_running.id]
    ),
    "hand_back": lambda w: lifecycle.hand_back(
        pairs(w.running, w.marked, w.limited_running, w.event_running, w.event_marked)
    ),
    "reap": lambda w: lifecycle.reap(held(w.running, w.marked, w.limited_running, w.event_running)),
    "release_lapsed": lambda w: lifecycle.release_lapsed([w.lapsed.id, w.marked.id, w.over.id], LEASE),
    "succeed": lambda w: succeed(w.running, w.marked, w.limited_running, w.event_running),
    "put_off": lambda w: fail(w.running, w.marked, w.limited_failing, w.event_failing),
    "give_up": lambda w: give_up(w.running, w.marked, w.limited_running, w.event_running),
    "settled_before": lambda w: lifecycle.settled_before([w.running, w.done]),
    "discard": lambda w: lifecycle.discard([*w.all, w.handed_back, w.event_back]),
    "discard_dead": lambda w: lifecycle.discard_dead([w.dead.id]),
    "fail_timed_out": lambda w: lifecycle.fail_timed_out(
        w.limited_running.id, w.limited_running.delivery, max_attempts=5, ran_for=1, worker="w"
    ),
    "find": lambda w: lifecycle.find(w.running.id),
    "pause_queue": lambda w: lifecycle.pause_queue("other"),
    "resume_queue": lambda w: lifecycle.resume_queue("paused"),
}
# The same for a copy of an event, where one call has to do with one kind of message.
OF_EVENTS: dict[str, Callable[[World], Any]] = {
    "pick_up": lambda w: lifecycle.pick_up(claim_events()),
    "fail_timed_out": lambda w: lifecycle.fail_timed_out(
        w.event_running.id, w.event_running.delivery, max_attempts=5, ran_for=1, worker="w"
    ),
}
FUNCTIONS = {
    name: value
    for name, value in vars(lifecycle).items()
    if inspect.isfunction(value) and value.__module__ == lifecycle.__name__ and not name.startswith("_")
}


def test_every_transition_has_a_case() -> None:
    assert set(CALLS) == set(FUNCTIONS)


def locked_by(call: Callable[[], Any], doc: str) -> list[str]:
    """
    Return what a call locks, in order, having followed the order of each transaction.

    Inside a caller's transaction, where everything it locks stays locked until the end; unless it says that it makes
    transactions of its own.
    """
    guard = LockGuard()
    with connection.execute_wrapper(guard):
        if "of its own" in doc:
            call()
            return sorted(set(guard.seen), key=list(LOCK_ORDER).index)
        with transaction.atomic():
            call()
            return list(guard.held)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_transition_locks_what_it_says_and_in_order(name: str) -> None:
    world, doc = World(), FUNCTIONS[name].__doc__ or ""
    locked = locked_by(lambda: CALLS[name](world), doc)
    if name in OF_EVENTS:
        locked += [table for table in locked_by(lambda: OF_EVENTS[name](world), doc) if table not in locked]
    (promised,) = re.findall(r"Locks: ([^.]*)\.", doc) or ["none"]
    tables = [table for table in re.sub(r"\(.*?\)", "", promised).replace(" ", "").split(",") if table != "none"]
    assert locked == tables
    assert tables == [table for table in LOCK_ORDER if table in tables]


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_a_sweep_locks_what_it_says_and_in_order(sweep: Any) -> None:
    world = World()
    world.leave_behind()
    text = sweep.function.__doc__ or ""
    locked = locked_by(sweep.function, text)
    assert locked
    assert set(locked) <= set(re.findall(r"\w+", text.split("Locks:")[1])), "its docstring says less"
