"""
Every transition of a constrained job, a row each, and all that it changes or leaves alone.

Each row is taken twice: by a job whose key is held until it is executed, and by one whose key is held while it runs.
Another job waits behind each for the slot. What the columns say: the place of the message; by how much its delivery
number rose; its attempts; whether it holds a slot, and the slot's lease; whether its key is held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from django_pgbus import Batch, ensures_uniqueness, limits_concurrency, task
from django_pgbus.models import BlockedExecution, Message, Slot, UniquenessKey
from django_pgbus.queues import heartbeat
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.outcomes import HeldMessage
from tests.constrained import (
    alone,
    alone_and_one,
    enqueue,
    lapse_slots,
    make_parked_due,
    one,
    silence,
    unique,
)
from tests.line import (
    COMMITTED,
    LEASE,
    claim,
    fail,
    give_up,
    hand_back,
    holding,
    lapse,
    long_up,  # noqa: F401
    release,
    snooze,
    state,
    succeed,
)
from tests.races.guards import as_if_it_died_before_it_looked

pytestmark = COMMITTED

UNTIL, WHILE = "until_executed", "while_executing"
ARGS = ("a", "limit-a")


def _key(key: str, *args: Any) -> str:
    return key


def _limit(key: str, limit: str, *args: Any) -> str:
    return limit


@ensures_uniqueness(key=_key)
@limits_concurrency(to=1, key=_limit)
@task
def until(key: str, limit: str) -> None: ...


@ensures_uniqueness(key=_key)
@limits_concurrency(to=1, key=_limit, on_conflict="raise")
@task
def until_or_error(key: str, limit: str) -> None: ...


@ensures_uniqueness(key=_key, strategy=WHILE)
@limits_concurrency(to=1, key=_limit, on_conflict="raise")
@task
def alone_or_error(key: str, limit: str) -> None: ...


@ensures_uniqueness(key=_key, strategy=WHILE, on_conflict="log")
@limits_concurrency(to=1, key=_limit)
@task
def alone_or_dropped(key: str, limit: str) -> None: ...


UNLIMITED = {UNTIL: unique, WHILE: alone}
BLOCKED = {UNTIL: until, WHILE: alone_and_one}
DECIDED = {UNTIL: until_or_error, WHILE: alone_or_error}


def look(id: int) -> tuple[Any, ...]:
    """Return (place, delivery, attempts, slot's lease or '-' without a slot, whether a key is held)."""
    found = lifecycle.find(id)
    slot = Slot.objects.filter(message_id=id).first()
    return (
        found.state,
        found.delivery,
        found.attempts,
        "-" if slot is None else "NULL" if slot.leased_until is None else "set",
        UniquenessKey.objects.filter(message_id=id).exists(),
    )


class Job:
    """The job that goes through a transition, brought to where it starts from."""

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self.id = 0
        self.delivery: Any = None
        self.behind: int | None = None

    # --- where it starts from

    def nowhere(self) -> None: ...

    def parked(self) -> None:
        with as_if_it_died_before_it_looked():
            self.id = enqueue(BLOCKED[self.strategy], *ARGS)

    def parked_until_due(self) -> None:
        self.running()
        snooze(self.delivery)

    def ready(self) -> None:
        self.id = enqueue(BLOCKED[self.strategy], *ARGS)
        self.behind = enqueue(BLOCKED[self.strategy], "b", "limit-a")

    def claimed(self) -> None:
        self.ready()
        (self.delivery,) = claim()

    def running(self) -> None:
        self.claimed()
        assert lifecycle.pick_up([self.delivery]).taken == [self.delivery]

    def started(self) -> None:
        self.running()
        self.delivery.started = True
        heartbeat.renew(holding(self.delivery), LEASE)

    def delayed(self) -> None:
        self.running()
        fail(self.delivery, delay=60)

    def dead(self) -> None:
        self.running()
        give_up(self.delivery)

    def marked(self) -> None:
        self.started()
        assert lifecycle.discard([self.id]).marked == {self.id}

    def unlimited(self) -> None:
        self.id = enqueue(UNLIMITED[self.strategy], *ARGS)
        (self.delivery,) = claim()
        assert lifecycle.pick_up([self.delivery]).taken == [self.delivery]

    def dropping(self) -> None:
        enqueue(alone, "a")
        (holder,) = claim()
        lifecycle.pick_up([holder])
        self.id = enqueue(alone_or_dropped, *ARGS)
        self.behind = enqueue(alone_or_dropped, "b", "limit-a")
        (self.delivery,) = claim()

    # --- what is done with it

    def enqueue(self, tasks: Any, after: float | None = None) -> None:
        with as_if_it_died_before_it_looked():
            self.id = enqueue(tasks[self.strategy], *ARGS, after=after)

    def pick_up(self) -> Any:
        return lifecycle.pick_up([self.delivery])

    def find_the_slot_gone(self) -> None:
        Slot.objects.filter(message_id=self.id).update(message_id=-1)
        assert self.pick_up().parked == [self.delivery]
        Slot.objects.all().delete()

    def find_the_key_held(self) -> None:
        UniquenessKey.objects.create(key="a", message_id=-1, strategy=UNTIL, queue="default")
        assert self.pick_up().parked == [self.delivery]

    def beat(self) -> None:
        lapse_slots(self.id)
        before = Slot.objects.get(message_id=self.id).leased_until
        message = Message.objects.get(id=self.id).leased_until
        assert heartbeat.renew(holding(self.delivery), LEASE).superseded == []
        assert Slot.objects.get(message_id=self.id).leased_until > before
        assert Message.objects.get(id=self.id).leased_until > message

    def reap(self) -> None:
        held = HeldMessage(id=self.id, delivery=self.delivery.delivery, started=self.delivery.started, running=True)
        assert lifecycle.reap([held]) == [self.id]
        assert Message.objects.get(id=self.id).suspect

    def released_by_a_look(self) -> None:
        position = Message.objects.get(id=self.id).position
        lapse(self.id)
        assert release(self.id) == [self.id]
        row = Message.objects.get(id=self.id)
        assert (row.suspect, row.position > position) == (True, True)
        if self.strategy == WHILE:
            assert lifecycle.keys.silent(["a"], LEASE), "it can be taken over"

    def presumed_dead(self) -> None:
        silence(self.delivery)
        lifecycle.presume_dead(10)

    def lapse(self) -> None:
        lapse(self.id)
        release(self.id)

    def redrive(self) -> None:
        assert lifecycle.redrive([self.id]).ids == [self.id]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table: from where, by what, and how all of it is then. `until` and `executing` tell of the key."""

    start: Callable[[Job], None]
    do: Callable[[Job], Any]
    place: str
    delivery: int
    attempts: int
    slot: str  # its lease; "-" is no slot
    until: bool
    executing: bool
    promotes: bool | None = None  # whether the next has a slot then; None if nobody waits
    only: str | None = None  # the strategy that can come here


GONE: dict[str, Any] = {"slot": "-", "until": False, "executing": False, "promotes": True}
TABLE = {
    "enqueue, no limit": Row(
        start=Job.nowhere, do=lambda job: job.enqueue(UNLIMITED), place="ready", delivery=0, attempts=0,
        slot="-", until=True, executing=False,
    ),
    "enqueue, no limit, delayed": Row(
        start=Job.nowhere, do=lambda job: job.enqueue(UNLIMITED, after=60), place="delayed", delivery=0, attempts=0,
        slot="-", until=True, executing=False,
    ),
    "enqueue, block": Row(
        start=Job.nowhere, do=lambda job: job.enqueue(BLOCKED), place="parked", delivery=0, attempts=0,
        slot="-", until=True, executing=False,
    ),
    "enqueue, block, delayed": Row(
        start=Job.nowhere, do=lambda job: job.enqueue(BLOCKED, after=60), place="parked", delivery=0, attempts=0,
        slot="-", until=True, executing=False,
    ),
    "enqueue, discard / raise": Row(
        start=Job.nowhere, do=lambda job: job.enqueue(DECIDED), place="ready", delivery=0, attempts=0,
        slot="NULL", until=True, executing=False,
    ),
    "enqueue, discard / raise, delayed": Row(
        start=Job.nowhere, do=lambda job: job.enqueue(DECIDED, after=60), place="delayed", delivery=0, attempts=0,
        slot="NULL", until=True, executing=False,
    ),
    "promote": Row(
        start=Job.parked, do=lambda job: lifecycle.let_in(["limit-a"]), place="ready", delivery=0, attempts=0,
        slot="NULL", until=True, executing=False,
    ),
    "promote one that ran before": Row(
        start=Job.parked_until_due,
        do=lambda job: (lifecycle.discard([job.behind]), make_parked_due(job.id), lifecycle.move_due(["default"])),
        place="ready", delivery=0, attempts=0, slot="NULL", until=True, executing=False,
    ),
    "promote one that is not due": Row(
        start=Job.parked_until_due, do=lambda job: (lifecycle.discard([job.behind]), lifecycle.let_in(["limit-a"])),
        place="parked", delivery=0, attempts=0, slot="-", until=True, executing=False,
    ),
    "claim": Row(
        start=Job.ready, do=lambda job: claim(), place="running", delivery=1, attempts=1,
        slot="NULL", until=True, executing=False, promotes=False,
    ),
    "pick up, slot and key free": Row(
        start=Job.claimed, do=Job.pick_up, place="running", delivery=0, attempts=1,
        slot="set", until=True, executing=True, promotes=False,
    ),
    "pick up, slot busy": Row(
        start=Job.claimed, do=Job.find_the_slot_gone, place="parked", delivery=1, attempts=0,
        slot="-", until=True, executing=False, promotes=False,
    ),
    "pick up, key busy": Row(
        start=Job.claimed, do=Job.find_the_key_held, place="parked", delivery=1, attempts=0,
        slot="-", until=True, executing=False, promotes=True, only=WHILE,
    ),
    "pick up, key busy, discard / log": Row(
        start=Job.dropping, do=Job.pick_up, place="discarded", delivery=0, attempts=0, **GONE, only=WHILE,
    ),
    "beat": Row(
        start=Job.started, do=Job.beat, place="running", delivery=0, attempts=1,
        slot="set", until=True, executing=True, promotes=False,
    ),
    "succeed": Row(
        start=Job.running, do=lambda job: succeed(job.delivery), place="succeeded", delivery=0, attempts=1, **GONE
    ),
    "fail": Row(
        start=Job.running, do=lambda job: fail(job.delivery, delay=60), place="delayed", delivery=0, attempts=1,
        slot="NULL", until=True, executing=False, promotes=False,
    ),
    "snooze, limited": Row(
        start=Job.running, do=lambda job: snooze(job.delivery), place="parked", delivery=0, attempts=0,
        slot="-", until=True, executing=False, promotes=True,
    ),
    "snooze, not limited": Row(
        start=Job.unlimited, do=lambda job: snooze(job.delivery), place="delayed", delivery=0, attempts=0,
        slot="-", until=True, executing=False,
    ),
    "hand back": Row(
        start=Job.running, do=lambda job: hand_back(job.delivery), place="ready", delivery=1, attempts=0,
        slot="NULL", until=True, executing=False, promotes=False,
    ),
    "hand back before the pick-up": Row(
        start=Job.claimed, do=lambda job: hand_back(job.delivery), place="ready", delivery=1, attempts=0,
        slot="NULL", until=True, executing=False, promotes=False,
    ),
    "hand back by a person": Row(
        start=Job.started, do=lambda job: lifecycle.hand_back_running([job.id]), place="ready", delivery=1, attempts=0,
        slot="NULL", until=True, executing=False, promotes=False,
    ),
    "hand back by a person, marked": Row(
        start=Job.marked, do=lambda job: lifecycle.hand_back_running([job.id]), place="running", delivery=0, attempts=1,
        slot="set", until=True, executing=True, promotes=False,
    ),
    "run now, delayed": Row(
        start=Job.delayed, do=lambda job: lifecycle.run_now([job.id]), place="ready", delivery=0, attempts=1,
        slot="NULL", until=True, executing=False, promotes=False,
    ),
    "run now, parked until due": Row(
        start=Job.parked_until_due, do=lambda job: (lifecycle.discard([job.behind]), lifecycle.run_now([job.id])),
        place="ready", delivery=0, attempts=0, slot="NULL", until=True, executing=False,
    ),
    "run now, parked until due, slot busy": Row(
        start=Job.parked_until_due, do=lambda job: lifecycle.run_now([job.id]), place="parked", delivery=0, attempts=0,
        slot="-", until=True, executing=False, promotes=True,
    ),
    "run now, parked": Row(
        start=Job.parked, do=lambda job: lifecycle.run_now([job.id]), place="parked", delivery=0, attempts=0,
        slot="-", until=True, executing=False,
    ),
    "child reaped, started": Row(
        start=Job.started, do=Job.reap, place="ready", delivery=1, attempts=1,
        slot="NULL", until=True, executing=False, promotes=False,
    ),
    "child reaped, not started": Row(
        start=Job.running, do=Job.reap, place="ready", delivery=1, attempts=0,
        slot="NULL", until=True, executing=False, promotes=False,
    ),
    "silent, released by a look, started": Row(
        start=Job.started, do=Job.released_by_a_look, place="ready", delivery=0, attempts=1,
        slot="set", until=True, executing=True, promotes=False,
    ),
    "silent, released by a look, not started": Row(
        start=Job.running, do=Job.released_by_a_look, place="ready", delivery=0, attempts=0,
        slot="set", until=True, executing=True, promotes=False,
    ),
    "presumed dead, started": Row(
        start=Job.started, do=Job.presumed_dead, place="ready", delivery=1, attempts=1,
        slot="-", until=True, executing=False, promotes=True,
    ),
    "presumed dead, not started": Row(
        start=Job.running, do=Job.presumed_dead, place="ready", delivery=1, attempts=0,
        slot="-", until=True, executing=False, promotes=True,
    ),
    "give up": Row(start=Job.running, do=lambda job: give_up(job.delivery), place="dead", delivery=0, attempts=1, **GONE),
    "discard, ready": Row(
        start=Job.ready, do=lambda job: lifecycle.discard([job.id]), place="discarded", delivery=0, attempts=0, **GONE
    ),
    "discard, delayed": Row(
        start=Job.delayed, do=lambda job: lifecycle.discard([job.id]), place="discarded", delivery=0, attempts=1, **GONE
    ),
    "discard, parked": Row(
        start=Job.parked, do=lambda job: lifecycle.discard([job.id]), place="discarded", delivery=0, attempts=0,
        slot="-", until=False, executing=False,
    ),
    "discard, running": Row(
        start=Job.started, do=lambda job: (lifecycle.discard([job.id]), job.beat()), place="running", delivery=0,
        attempts=1, slot="set", until=True, executing=True, promotes=False,
    ),
    "redrive, block": Row(
        start=Job.dead, do=Job.redrive, place="parked", delivery=1, attempts=0,
        slot="-", until=True, executing=False, promotes=True,
    ),
    "succeed, marked": Row(
        start=Job.marked, do=lambda job: succeed(job.delivery), place="succeeded", delivery=0, attempts=1, **GONE
    ),
    "fail, marked": Row(
        start=Job.marked, do=lambda job: fail(job.delivery), place="discarded", delivery=0, attempts=1, **GONE
    ),
    "snooze, marked": Row(
        start=Job.marked, do=lambda job: snooze(job.delivery), place="discarded", delivery=0, attempts=0, **GONE
    ),
    "give up, marked": Row(
        start=Job.marked, do=lambda job: give_up(job.delivery), place="discarded", delivery=0, attempts=1, **GONE
    ),
    "hand back, marked": Row(
        start=Job.marked, do=lambda job: hand_back(job.delivery), place="discarded", delivery=0, attempts=1, **GONE
    ),
    "child reaped, marked": Row(
        start=Job.marked,
        do=lambda job: lifecycle.reap([HeldMessage(id=job.id, delivery=job.delivery.delivery, started=True)]),
        place="discarded", delivery=0, attempts=1, **GONE,
    ),
    "silent, marked": Row(start=Job.marked, do=Job.lapse, place="discarded", delivery=0, attempts=1, **GONE),
    "presumed dead, marked": Row(
        start=Job.marked, do=Job.presumed_dead, place="discarded", delivery=0, attempts=1, **GONE
    ),
    "pick up, slot busy, marked": Row(
        start=Job.claimed, do=lambda job: (lifecycle.discard([job.id]), job.find_the_slot_gone()), place="discarded",
        delivery=0, attempts=0, slot="-", until=False, executing=False, promotes=False,
    ),
}  # fmt: skip


CASES = [(name, strategy) for name, row in TABLE.items() for strategy in (UNTIL, WHILE) if row.only in (None, strategy)]


@pytest.mark.parametrize(("name", "strategy"), CASES, ids=" - ".join)
def test_the_transition(name: str, strategy: str) -> None:
    row = TABLE[name]
    job = Job(strategy)
    row.start(job)
    before = look(job.id)[1] if job.id else 0
    row.do(job)
    key = row.until if strategy == UNTIL else row.executing
    assert look(job.id) == (row.place, before + row.delivery, row.attempts, row.slot, key)
    if row.promotes is not None:
        assert job.behind is not None
        assert (state(job.behind), Slot.objects.filter(message_id=job.behind).exists()) == (
            ("ready", True) if row.promotes else ("parked", False)
        )


@pytest.mark.parametrize("strategy", [UNTIL, WHILE])
def test_a_redrive_under_raise_has_its_slot_or_stays(strategy: str) -> None:
    job = Job(strategy)
    job.id = enqueue(DECIDED[strategy], *ARGS)
    (job.delivery,) = claim()
    job.pick_up()
    give_up(job.delivery)
    before = look(job.id)[1]
    job.redrive()
    assert look(job.id) == ("ready", before + 1, 0, "NULL", strategy == UNTIL)
    give_up(*lifecycle.pick_up(claim()).taken)
    enqueue(DECIDED[strategy], "b", "limit-a")
    assert lifecycle.redrive([job.id]).ids == []
    assert state(job.id) == "dead"


@pytest.mark.proves("parked-never-ages-out")
def test_a_parked_row_carries_all_that_the_message_had() -> None:
    """Errors, suspicion and the time it was enqueued come back with it."""
    with Batch():
        id = enqueue(one, "a")
    fail(*lifecycle.pick_up(claim()).taken, delay=0)
    lifecycle.move_due(["default"])
    (delivery,) = claim()
    lifecycle.reap([HeldMessage(id=id, delivery=delivery.delivery, started=True)])
    before = Message.objects.values().get(id=id)
    Slot.objects.all().delete()
    (delivery,) = claim()
    with as_if_it_died_before_it_looked():
        assert lifecycle.pick_up([delivery]).parked == [delivery]
    parked = BlockedExecution.objects.values().get(id=id)
    lifecycle.let_in(["a"])
    after = Message.objects.values().get(id=id)
    assert before["batch_id"] is not None
    same = (
        "queue",
        "priority",
        "task",
        "backend",
        "payload",
        "errors",
        "constraints",
        "batch_id",
        "enqueued_at",
        "suspect",
    )
    for field in same:
        assert before[field] == parked[field] == after[field], field
    assert len(after["errors"]) == 2
