"""
Parked jobs are never stranded beside a free slot, and whoever parks or settles one waits for no caller's transaction.

Park, commit, look again; free, commit, look again: whoever commits last sees both. What a process that died in
between has not looked at, the sweep does.
"""

from __future__ import annotations

import itertools
import json

import pytest
from django.db import OperationalError, transaction

from django_pgbus import limits_concurrency, task
from django_pgbus.models import BlockedExecution, Message, Semaphore, Slot, UniquenessKey
from django_pgbus.tasks import entrance, lifecycle
from django_pgbus.tasks import sql as tasks_sql
from django_pgbus.tasks.sweeps import GoOn, SlotReaper
from django_pgbus.worker.sweeps import SWEEPS
from tests import constrained
from tests.constrained import (
    alone,
    alone_and_one,
    claim_and_pick_up,
    enqueue,
    keys,
    make_parked_due,
    one,
    one_or_error,
    parked,
    run,
    silence,
    slots,
    two,
    unique_and_one,
    unique_or_error,
)
from tests.line import COMMITTED, claim_one, give_up, snooze, state, succeed
from tests.races.guards import (
    as_if_it_died_before_it_looked,
    at_once,
    fails_if,
    nobody_looks_again,
    patient,  # noqa: F401  (a fixture for all tests here)
    started,
    without,
)
from tests.sessions import sessions

pytestmark = [COMMITTED, pytest.mark.races]


@limits_concurrency(to=2, key=lambda key: key, on_conflict="raise")
@task
def two_or_error(key): ...


# --- park while somebody frees ------------------------------------------------------------------------

STEPS = ("settle", "its commit", "park", "the park's commit")
ORDERS = [
    order
    for order in itertools.permutations(STEPS)
    if order.index("settle") < order.index("its commit") and order.index("park") < order.index("the park's commit")
]


@pytest.mark.proves("nobody-is-stranded-behind-a-free-slot")
@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
@fails_if(nobody_looks_again)
def test_a_job_that_is_parked_while_the_slot_is_freed_is_let_in(order):
    """Whichever way park and release overlap (rails/solid_queue#689); without the look after a commit it is stranded."""
    delivery = started(one, "a")
    with sessions(2) as (worker, web):
        ids = []
        for step in order:
            match step:
                case "settle":
                    worker.open()
                    assert worker.do(succeed, delivery) == {delivery.id}
                case "its commit":
                    worker.commit()
                case "park":
                    web.open()
                    ids.append(web.do(enqueue, one, "a"))
                case "the park's commit":
                    web.commit()
    (second,) = ids
    assert (state(second), slots("a")) == ("ready", {second: 1})


@pytest.mark.proves("nobody-is-stranded-behind-a-free-slot")
@pytest.mark.parametrize("end", ["succeed", "snooze", "give up", "discard", "presumed dead", "release"])
@fails_if(nobody_looks_again)
def test_whatever_frees_a_slot_lets_in_who_was_parked_meanwhile(end):
    """The park is not committed yet when the slot is freed; without the looks it is stranded."""
    delivery = started(one, "a")
    ends = {
        "succeed": lambda: succeed(delivery),
        "snooze": lambda: snooze(delivery),
        "give up": lambda: give_up(delivery),
        "discard": lambda: (lifecycle.hand_back([(delivery.id, delivery.delivery)]), lifecycle.discard([delivery.id])),
        "presumed dead": lambda: (silence(delivery), lifecycle.presume_dead(10)),
        "release": lambda: lifecycle.release("a", even_running=True),
    }
    with sessions() as web:
        web.open()
        second = web.do(enqueue, one, "a")
        ends[end]()
        assert slots() == {}
        web.commit()
    assert (state(second), slots("a")) == ("ready", {second: 1})


@fails_if(nobody_looks_again)
def test_a_job_that_is_parked_for_a_key_while_it_is_freed_is_let_in():
    """The pick-up sees the key held and parks; its holder, who waits for that, frees it. Without the looks: stranded."""
    holder = started(alone, "a")
    second = enqueue(alone, "a")
    with sessions(2) as (other, worker):
        other.open()
        assert [d.id for d in other.do(claim_and_pick_up).parked] == [second]
        settlement = worker.begin(succeed, holder)
        worker.wait_until_blocked()
        other.commit()
        assert settlement.result(20) == {holder.id}
    assert state(second) == "ready"


def test_a_pick_up_that_meets_a_settlement_waits_and_has_the_key():
    holder = started(alone, "a")
    second = enqueue(alone, "a")
    with sessions(2) as (worker, other):
        worker.open()
        worker.do(succeed, holder)
        picking = other.begin(claim_and_pick_up)
        other.wait_until_blocked()
        worker.commit()
        assert [d.id for d in picking.result(20).taken] == [second]


# --- a process that died in between -------------------------------------------------------------------


@pytest.mark.proves("a-sweep-repairs-what-a-crash-left")
def test_the_sweep_lets_in_whom_a_process_parked_and_died():
    with as_if_it_died_before_it_looked():
        ids = [enqueue(one, key) for key in "aab"]
    assert parked() == ids
    assert GoOn().sweep() == 2
    assert [state(id) for id in ids] == ["ready", "parked", "ready"]


@pytest.mark.proves("a-sweep-repairs-what-a-crash-left")
def test_the_sweep_lets_in_who_waits_for_what_a_process_freed_and_died():
    running, alone_there = started(one, "a"), started(alone, "k")
    waits_for_slot, waits_for_key = enqueue(one, "a"), enqueue(alone, "k")
    claim_and_pick_up()
    with as_if_it_died_before_it_looked():
        succeed(running, alone_there)
    assert parked() == [waits_for_slot, waits_for_key]
    assert GoOn().sweep() == 2
    assert [state(waits_for_slot), state(waits_for_key)] == ["ready", "ready"]


def test_the_sweep_lets_in_what_is_due_and_nobody_looked_at():
    later = enqueue(one, "a", after=60)
    make_parked_due(later)
    GoOn().sweep()
    assert state(later) == "ready"


@fails_if(without("concurrency.LOCK_FREE", "SKIP LOCKED"))
def test_the_sweep_is_correct_when_two_run_it():
    Semaphore.objects.create(key="a", capacity=2)
    with as_if_it_died_before_it_looked():
        ids = [enqueue(two, "a") for _ in range(4)]
    with sessions(2) as (first, second):
        first.open()
        assert first.do(GoOn().sweep) == 2
        assert at_once(second, GoOn().sweep) == 0
        first.commit()
        assert second.do(GoOn().sweep) == 0
    assert (slots("a"), parked()) == ({ids[0]: 1, ids[1]: 2}, ids[2:])


# --- a caller's transaction ---------------------------------------------------------------------------


def every_job_decides_at_once(monkeypatch):
    """if enqueueing took the slot"""
    monkeypatch.setattr(entrance.Entrant, "decides_at_once", property(lambda self: self.work.constraints.limit))


@pytest.mark.proves("a-hot-key-holds-up-no-caller")
@fails_if(every_job_decides_at_once)
def test_an_enqueue_waits_for_no_callers_transaction():
    """Both park a row of their own; if enqueueing took the slot, the second would wait for the first's commit."""
    enqueue(two, "a")
    with sessions(2) as (ann, bob):
        ann.open()
        first = ann.do(enqueue, two, "a")
        second = at_once(bob, enqueue, two, "a")
        assert state(second) == "ready"
        ann.commit()
    assert state(first) == "parked"


@pytest.mark.proves("a-hot-key-holds-up-no-caller")
@fails_if(without("concurrency.LOCK_FREE", "SKIP LOCKED"), nobody_looks_again)
def test_a_completion_waits_for_no_callers_transaction():
    """
    The caller holds the semaphore, since it had to be decided at once whether its job is let in.

    A completion that locked the semaphore would wait until the caller is through; one that passes over it relies on the
    caller's look after the commit.
    """
    delivery = started(two_or_error, "a")
    with sessions(2) as (caller, worker):
        caller.open()
        accepted = caller.do(enqueue, two_or_error, "a")
        third = at_once(worker, enqueue, two, "b")
        waiting = at_once(worker, enqueue, two, "a")
        assert state(waiting) == "parked"
        assert at_once(worker, succeed, delivery) == {delivery.id}
        assert state(waiting) == "parked", "its semaphore is the caller's"
        caller.commit()
    assert slots("a") == {accepted: 2, waiting: 1}
    assert slots("b") == {third: 1}


def test_whoever_held_the_semaphore_and_rolled_back_leaves_it_to_the_sweep():
    with sessions() as caller:
        caller.open()
        caller.do(enqueue, one_or_error, "a")
        waiting = enqueue(one, "a")
        assert state(waiting) == "parked"
        caller.roll_back()
    GoOn().sweep()
    assert (state(waiting), slots("a")) == ("ready", {waiting: 1})


# --- delivery numbers ---------------------------------------------------------------------------------


@pytest.mark.proves("the-number-only-rises")
@fails_if(without("concurrency.PARK", ("delivery + raised", "delivery")))
def test_a_parked_delivery_has_settled_nothing():
    """Its number is raised: a settlement that is repeated does not take the parked row for its own."""
    enqueue(alone, "a")
    run()
    enqueue(alone, "a")
    (old,) = claim_and_pick_up().parked
    assert lifecycle.settled_before([old]) == set()
    assert succeed(old) == set()


@pytest.mark.proves("the-number-only-rises")
@pytest.mark.parametrize("through", ["parked for a slot", "parked for a key", "snoozed", "redriven"])
def test_no_way_round_repeats_a_delivery_number(through):
    """Each run of a job has a number that no other run of it had, whatever way it took in between."""
    task, args = (alone, ("a",)) if through == "parked for a key" else (one, ("a",))
    id = enqueue(task, *args)
    numbers = []
    for _ in range(3):
        delivery = claim_one()
        numbers.append(delivery.delivery)
        if through == "parked for a slot":
            Slot.objects.update(message_id=-1)
            assert lifecycle.pick_up([delivery]).parked == [delivery]
            Slot.objects.all().delete()
            lifecycle.let_in(["a"])
        elif through == "parked for a key":
            UniquenessKey.objects.all().delete()  # what was kept for it
            UniquenessKey.objects.create(key="a", message_id=-1, strategy="until_executed", queue="default")
            assert lifecycle.pick_up([delivery]).parked == [delivery]
            UniquenessKey.objects.all().delete()
            lifecycle.let_in((), ["a"])
        elif through == "snoozed":
            assert lifecycle.pick_up([delivery]).taken == [delivery]
            snooze(delivery)
            make_parked_due(id)
            lifecycle.move_due(["default"])
        else:
            give_up(delivery)
            assert lifecycle.redrive([id]).ids == [id]
        assert succeed(delivery) == set()
        where = BlockedExecution.objects.filter(id=id).first() or Message.objects.get(id=id)
        assert where.delivery >= delivery.delivery
    assert numbers == sorted(set(numbers))


# --- nothing else ends it -----------------------------------------------------------------------------


@pytest.mark.proves("parked-never-ages-out")
def test_a_parked_job_never_ages_out():
    """Whatever its age and whichever sweep runs: the ways out are promotion and a person's discard."""
    holder = started(one, "a")
    waiting = [enqueue(one, "a"), enqueue(one, "a", after=3600)]
    BlockedExecution.objects.update(parked_at="2000-01-01T00:00Z", enqueued_at="2000-01-01T00:00Z")
    for sweep in SWEEPS:
        sweep.function()
    assert [state(id) for id in waiting] == ["parked", "parked"]
    assert slots("a") == {holder.id: 1}
    succeed(holder)
    assert state(waiting[0]) == "ready"


@pytest.mark.proves("settled-in-one-transaction")
@pytest.mark.parametrize("end", [succeed, give_up, snooze])
def test_a_settlement_that_rolls_back_leaves_slot_and_key_as_they_were(end):
    """Slot, key and message are one transaction: a process that dies in it has settled nothing."""
    delivery = started(alone_and_one, "k", "s")
    waiting = enqueue(alone_and_one, "k", "s")
    before = (slots(), keys(), parked(), Slot.objects.get().leased_until)
    with sessions() as worker:
        worker.open()
        assert worker.do(end, delivery)
        worker.roll_back()
    assert (slots(), keys(), parked(), Slot.objects.get().leased_until) == before
    assert end(delivery)
    assert state(waiting) == "ready"


class Died(BaseException):
    """The process ended here."""


@pytest.mark.proves("settled-in-one-transaction")
@pytest.mark.parametrize("end", [succeed, give_up, snooze])
@pytest.mark.parametrize("step", ["slots.free", "keys.free", "counts.settled"])
def test_a_process_that_dies_while_it_settles_has_settled_nothing(step, end, monkeypatch):
    """At whatever step, in a transaction of its own: no caller's keeps it together."""
    delivery = started(alone_and_one, "k", "s")
    before = (state(delivery.id), slots(), keys())
    module, function = step.split(".")

    def dies(*args, **kwargs):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(getattr(lifecycle, module), function, dies)
        with pytest.raises(Died):
            end(delivery)
    assert (state(delivery.id), slots(), keys()) == before
    assert end(delivery)


@pytest.mark.parametrize("task", [unique_and_one, unique_or_error], ids=["block", "raise"])
def test_an_enqueue_whose_commit_was_not_answered_is_there_with_all_it_took(task, monkeypatch):
    """The caller sees an error and the job is there: key and slot are kept beside it, and it runs."""
    real = tasks_sql.ENTER

    class LosesItsReply:
        def rows(self, **params):
            real.rows(**params)
            raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(tasks_sql, "ENTER", LosesItsReply())
        if task is unique_and_one:  # in autocommit the statement has taken effect
            with pytest.raises(OperationalError):
                task.enqueue("a")
        else:  # in a transaction nothing has
            with pytest.raises(OperationalError):
                task.enqueue("a")
    GoOn().sweep()
    if task is unique_and_one:
        delivery = run()
        assert keys() == {"a": delivery.id}
        assert slots() == {delivery.id: 1}
        succeed(delivery)
    assert (keys(), slots(), parked()) == ({}, {}, [])
    task.enqueue("a")


def test_a_job_whose_code_is_gone_is_promoted_and_its_key_goes_with_it(monkeypatch):
    holder = started(unique_and_one, "a")
    UniquenessKey.objects.update(key="z")  # another job of the key, for the same slot
    waiting = enqueue(unique_and_one, "a")
    assert state(waiting) == "parked"
    monkeypatch.delattr(constrained, "unique_and_one")
    succeed(holder)
    assert state(waiting) == "ready"
    give_up(run())
    assert (state(waiting), keys(), slots()) == ("dead", {}, {})


def test_an_enqueue_in_a_savepoint_that_rolls_back_takes_no_look_with_it():
    """Each look is bound to the outermost block that its job is sure to be committed with."""
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            enqueue(one, "a")
            1 / 0  # noqa: B018
        first = enqueue(one, "a")
        with transaction.atomic():
            second = enqueue(one, "b")
        third = enqueue(one, "a")
    assert [state(id) for id in (first, second, third)] == ["ready", "ready", "parked"]


# --- a row that cannot be read ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "constraints",
    [{"limit": {"key": "a"}}, {"limit": None}, [], "a newer version's"],
    ids=["a field is missing", "no limit", "not an object", "a field more"],
)
def test_a_parked_row_that_cannot_be_read_never_stops_the_others(constraints):
    """Damaged by hand, or written by a newer version during a rolling deploy."""
    with as_if_it_died_before_it_looked():
        bad, good = enqueue(one, "a"), enqueue(one, "b")
    if isinstance(constraints, str):
        constraints = json.loads(BlockedExecution.objects.get(id=bad).constraints)
        constraints["limit"]["newer"] = 1
    BlockedExecution.objects.filter(id=bad).update(constraints=json.dumps(constraints))
    GoOn().sweep()
    assert state(good) == "ready"


@pytest.mark.parametrize("place", ["its own", "another's"])
def test_a_slot_that_a_restore_left_behind_stops_no_promotion(place):
    with as_if_it_died_before_it_looked():
        bad, good = enqueue(one, "a"), enqueue(one, "b")
    Slot.objects.create(message_id=bad, key="a" if place == "its own" else "c", ordinal=1, duration=900)
    GoOn().sweep()
    assert state(good) == "ready"
    SlotReaper().reap()
    assert state(bad) == "ready"
