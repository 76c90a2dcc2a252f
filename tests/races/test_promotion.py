"""
A slot is handed out under the semaphore's lock, counted after it, and to a parked job that nobody else has.

Who wants a semaphore that another has locked passes over it, and that one looks again after its commit; only an
enqueue that has to be decided at once waits.
"""

from __future__ import annotations

import pytest
from django.db import OperationalError

from django_pgbus import ConcurrencyLimitExceeded, JobNotUnique, concurrency, enqueue_many
from django_pgbus.concurrency import slots as slots_module
from django_pgbus.concurrency import sql
from django_pgbus.models import DeadLetter, Semaphore
from django_pgbus.postgres.retrying import sqlstate
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.sweeps import GoOn
from django_pgbus.tasks.sweeps import SemaphoreForgetter as Forgetter
from tests import constrained
from tests.constrained import (
    claim_and_pick_up,
    enqueue,
    keys,
    make_parked_due,
    one,
    one_or_error,
    one_or_none,
    parked,
    slots,
    two,
    unique_or_error,
)
from tests.line import COMMITTED, changed, give_up, state, succeed
from tests.races.guards import (
    as_if_it_died_before_it_looked,
    at_once,
    came_to,
    fails_if,
    nobody_looks_again,
    started,
    waits,
    without,
)
from tests.sessions import sessions, strict_session

pytestmark = [COMMITTED, pytest.mark.races]


def park(task, *args, number=1):
    """Park, and let nobody in yet."""
    with as_if_it_died_before_it_looked():
        return [enqueue(task, *args) for _ in range(number)]


# --- promote against promote --------------------------------------------------------------------------


@pytest.mark.proves("at-most-n-hold-a-slot")
@fails_if(without("concurrency.LOCK_FREE", "FOR UPDATE SKIP LOCKED"), without("concurrency.LOCK_FREE", "SKIP LOCKED"))
def test_of_two_who_promote_one_passes_over():
    """Without the lock both hand out the same place; without SKIP LOCKED the second waits for the first's commit."""
    Semaphore.objects.create(key="a", capacity=1)
    first, second = park(one, "a", number=2)
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(lifecycle.let_in, ["a"]) == 1
        assert at_once(bob, lifecycle.let_in, ["a"]) == 0
        ann.commit()
    assert (slots("a"), parked()) == ({first: 1}, [second])


def test_who_promotes_and_dies_leaves_nothing_behind():
    first, second = park(one, "a", number=2)
    with sessions() as ann:
        ann.open()
        assert ann.do(lifecycle.let_in, ["a"]) == 1
        ann.roll_back()
    assert (slots(), parked()) == ({}, [first, second])
    assert GoOn().sweep() == 1
    assert slots("a") == {first: 1}


@fails_if(without("concurrency.CANDIDATES", "SKIP LOCKED"))
def test_what_a_person_discards_is_passed_over_and_the_next_goes():
    first, second = park(one, "a", number=2)
    with sessions(2) as (person, worker):
        person.open()
        assert person.do(lifecycle.discard, [first]).settled == {first}
        assert at_once(worker, lifecycle.let_in, ["a"]) == 1
        person.commit()
    assert (state(first), slots("a")) == ("discarded", {second: 1})


@fails_if(without("WAITING_OR_RUNNING", ("ORDER BY id", "ORDER BY id LIMIT 0")))
def test_a_discard_that_meets_a_promotion_looks_again_and_frees_the_slot():
    """The parked row is gone when the discard has its lock: the job stands in the line now, with a slot."""
    first, second = park(one, "a", number=2)
    with sessions(2) as (worker, person):
        worker.open()
        assert worker.do(lifecycle.let_in, ["a"]) == 1
        discard = person.begin(lifecycle.discard, [first])
        person.wait_until_blocked()
        worker.commit()
        assert discard.result(20).settled == {first}
    assert (state(first), slots("a")) == ("discarded", {second: 1})


@pytest.mark.proves("discard-takes-only-what-was-shown")
@fails_if(without("concurrency.PARKED_OF_KEY", "SKIP LOCKED"))
def test_discard_parked_passes_over_what_is_being_promoted():
    first, *others = park(one, "a", number=3)
    with sessions(2) as (worker, person):
        worker.open()
        assert worker.do(lifecycle.let_in, ["a"]) == 1
        assert at_once(person, concurrency.discard_parked, "a") == 2
        worker.commit()
    assert [state(id) for id in (first, *others)] == ["ready", "discarded", "discarded"]


@fails_if(without("concurrency.CANDIDATES", "SKIP LOCKED"))
def test_a_promotion_passes_over_what_discard_parked_settles():
    ids = park(one, "a", number=3)
    with sessions(2) as (person, worker):
        person.open()
        assert person.do(lambda: concurrency.discard_parked("a", up_to=ids[-1])) == 3
        assert at_once(worker, lifecycle.let_in, ["a"]) == 0
        person.commit()
    assert {state(id) for id in ids} == {"discarded"}
    assert slots() == {}


@fails_if(without("concurrency.MAKE_DUE", "SKIP LOCKED"))
def test_two_who_move_what_is_due_pass_each_other_over():
    later = enqueue(one, "a", after=60)
    make_parked_due(later)
    with sessions(2) as (ann, bob):
        ann.open()
        ann.do(lifecycle.move_due, ["default"])
        at_once(bob, lifecycle.move_due, ["default"])
        ann.commit()
    assert slots("a") == {later: 1}


# --- decided at once ----------------------------------------------------------------------------------


def counted_with_the_lock(monkeypatch):
    """if slots were counted before the lock is had"""
    real = slots_module._held

    def lock(**params):
        early = real(params["keys"])
        monkeypatch.setattr(slots_module, "_held", lambda keys: early)
        return lock_real.tuples(**params)

    lock_real = sql.LOCK
    monkeypatch.setattr(sql, "LOCK", type("Lock", (), {"tuples": staticmethod(lock)})())


@pytest.mark.proves("decided-at-enqueue-under-the-lock")
@fails_if(without("concurrency.LOCK", "FOR UPDATE"), counted_with_the_lock)
def test_of_two_that_raise_the_second_waits_and_counts_the_first():
    """What it counts dates from after the wait: counted in the statement that waited, both would have the last place."""
    Semaphore.objects.create(key="a", capacity=1)
    with sessions(2) as (ann, bob):
        ann.open()
        first = ann.do(enqueue, one_or_error, "a")
        begun = bob.begin(enqueue, one_or_error, "a")
        assert waits(bob, begun)
        ann.commit()
        assert came_to(begun) is ConcurrencyLimitExceeded
    assert slots("a") == {first: 1}


@pytest.mark.parametrize("there", [True, False], ids=["the semaphore is there", "it is made first"])
def test_if_the_first_rolls_back_the_second_has_its_place(there):
    if there:
        Semaphore.objects.create(key="a", capacity=1)
    with sessions(2) as (ann, bob):
        ann.open()
        ann.do(enqueue, one_or_error, "a")
        begun = bob.begin(enqueue, one_or_error, "a")
        bob.wait_until_blocked()
        ann.roll_back()
        second = begun.result(20)
    assert slots("a") == {second: 1}


@pytest.mark.parametrize("task", [one_or_error, one_or_none])
def test_who_makes_a_semaphore_is_waited_for_by_who_must_be_decided(task):
    """Its row cannot be seen yet; the advisory lock is there."""
    with sessions(2) as (ann, bob):
        ann.open()
        first = ann.do(enqueue, one_or_error, "a")
        begun = bob.begin(lambda: task.enqueue("a"))
        bob.wait_until_blocked()
        ann.commit()
        came = came_to(begun)
    assert came is ConcurrencyLimitExceeded or came.status == "FAILED"
    assert slots("a") == {first: 1}


@fails_if(
    without("concurrency.TRY_TO_CREATE", ("WHERE pg_try_advisory_xact_lock(hashtextextended(missing.key, 20618))", ""))
)
def test_who_makes_a_semaphore_is_passed_over_by_a_promotion():
    """It may be a caller's transaction; without the advisory lock, inserting the same row would wait for its end."""
    with sessions(2) as (caller, web):
        caller.open()
        first = caller.do(enqueue, one_or_error, "a")
        waiting = at_once(web, enqueue, one, "a")
        assert state(waiting) == "parked"
        caller.commit()
    assert (slots("a"), state(waiting)) == ({first: 1}, "parked")


def test_a_refusal_holds_no_lock_until_its_callers_transaction_ends():
    delivery = started(one_or_error, "a")
    waiting = enqueue(one, "a")
    with sessions(2) as (caller, worker):
        caller.open()
        assert caller.do(lambda: one_or_none.enqueue("a").status) == "FAILED"
        assert came_to(caller.begin(enqueue, one_or_error, "a")) is ConcurrencyLimitExceeded
        assert at_once(worker, succeed, delivery) == {delivery.id}
        assert state(waiting) == "ready", "its semaphore is free, though the caller's transaction is open"
        caller.commit()


def test_a_place_that_was_kept_for_a_job_whose_key_is_held_is_given_back():
    """Both or neither: the next of the batch has the place."""
    enqueue(unique_or_error, "a")
    give_up(claim_and_pick_up().taken[0])
    dead = DeadLetter.objects.get().id
    holder = enqueue(constrained.unique, "a")
    redriven = lifecycle.redrive([dead])
    assert redriven.refused[dead].holder == holder
    assert (slots(), keys()) == ({}, {"a": holder})
    refused = enqueue_many(unique_or_error, [(("a",), {})])
    assert isinstance(refused[0], JobNotUnique)
    assert slots() == {}


# --- a limit that changes in mid-flight ---------------------------------------------------------------


def declare(monkeypatch, task, to):
    """Let the code of this process allow so many from now on."""
    values = {field: getattr(task, field) for field in task.__dataclass_fields__}
    limit = type(task.limit)(to=to, key=task.limit.key)
    monkeypatch.setattr(constrained, task.name, type(task)(**values | {"limit": limit}))


@pytest.mark.proves("a-changed-limit-is-honoured")
def test_a_limit_that_is_lowered_is_honoured_at_the_next_promotion(monkeypatch):
    """Who runs goes on; nobody is let in until fewer run than are allowed now."""
    first, second = [enqueue(two, "a") for _ in range(2)]
    third = enqueue(two, "a")
    deliveries = {delivery.id: delivery for delivery in claim_and_pick_up().taken}
    declare(monkeypatch, two, to=1)
    succeed(deliveries[first])
    assert (state(third), slots("a")) == ("parked", {second: 2})
    succeed(deliveries[second])
    assert (state(third), slots("a")) == ("ready", {third: 1})
    assert Semaphore.objects.get().capacity == 1


@fails_if(nobody_looks_again)
def test_a_limit_that_is_raised_is_honoured_with_the_next_look_of_anybody(monkeypatch_of_code):
    running = started(one, "a")
    waiting = park(one, "a", number=3)
    monkeypatch_of_code(one, to=3)
    newcomer = enqueue(one, "a")
    assert slots("a") == {running.id: 1, waiting[0]: 2, waiting[1]: 3}
    assert parked() == [waiting[2], newcomer]


@pytest.fixture
def monkeypatch_of_code():
    with pytest.MonkeyPatch.context() as patch:
        yield lambda task, to: declare(patch, task, to)


@pytest.mark.proves("at-most-n-hold-a-slot")
def test_two_processes_with_different_code_never_hand_out_a_place_twice(monkeypatch):
    """A rolling deploy: the old code allows two, the new one; each honours its own, and a place is one row."""
    ids = park(two, "a", number=4)
    with sessions(2) as (old, new):
        old.open()
        assert old.do(lifecycle.let_in, ["a"]) == 2
        declare(monkeypatch, two, to=1)
        assert at_once(new, lifecycle.let_in, ["a"]) == 0
        old.commit()
        assert new.do(lifecycle.let_in, ["a"]) == 0
    assert slots("a") == {ids[0]: 1, ids[1]: 2}


# --- semaphores that are swept ------------------------------------------------------------------------


def test_a_semaphore_that_is_swept_meanwhile_is_made_anew():
    Semaphore.objects.create(key="a", capacity=1)
    with sessions(2) as (sweeper, web):
        sweeper.open()
        assert sweeper.do(Forgetter().forget) == 1
        begun = web.begin(enqueue, one_or_error, "a")
        web.wait_until_blocked()
        sweeper.commit()
        first = begun.result(20)
    assert slots("a") == {first: 1}


@fails_if(
    without(
        "concurrency.FORGET",
        "AND NOT EXISTS (SELECT 1 FROM pgbus_semaphore_slots AS slot WHERE slot.key = semaphore.key)",
    )
)
def test_a_semaphore_that_is_used_meanwhile_stays():
    """It was unused when it was looked at; under its lock it is looked at again."""
    Semaphore.objects.create(key="a", capacity=1)
    enqueue(one_or_error, "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sql,
            "UNUSED",
            changed(
                "concurrency.UNUSED",
                "AND NOT EXISTS (SELECT 1 FROM pgbus_semaphore_slots AS slot WHERE slot.key = semaphore.key)",
            ),
        )
        assert Forgetter().forget() == 0
    assert Semaphore.objects.exists()


@fails_if(without("concurrency.LOCK_FREE", "SKIP LOCKED"))
def test_the_sweep_of_semaphores_waits_for_no_caller():
    Semaphore.objects.create(key="a", capacity=1)
    with sessions(2) as (caller, sweeper):
        caller.open()
        caller.do(enqueue, one_or_error, "a")
        assert at_once(sweeper, Forgetter().forget) == 0
        caller.commit()


@fails_if(nobody_looks_again)
def test_a_job_parked_while_its_semaphore_is_swept_is_let_in_after_its_commit():
    """The enqueue found the semaphore locked and passed over; who had swept it looks again once that is committed."""
    Semaphore.objects.create(key="a", capacity=1)
    with sessions(2) as (sweeper, web):
        sweeper.open()
        assert sweeper.do(Forgetter().forget) == 1
        waiting = at_once(web, enqueue, one, "a")
        sweeper.commit()
    assert state(waiting) == "ready"


# --- a caller's stricter isolation --------------------------------------------------------------------


def repeatable_read(session):
    """Begin a transaction that goes on seeing what it saw first."""
    session.open()
    session.sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.sql("SELECT 1 FROM pgbus_semaphores")


@pytest.mark.parametrize("task", [one_or_error, constrained.unique], ids=["limited", "unique"])
def test_a_caller_under_repeatable_read_is_told_to_try_again(task):
    """It cannot see who came first: neither lets it in beside the other, nor fails in another way than PostgreSQL's own."""
    Semaphore.objects.create(key="a", capacity=1)
    with sessions(2) as (caller, other):
        repeatable_read(caller)
        first = other.do(enqueue, task, "a")
        refused = caller.begin(enqueue, task, "a").exception(20)
        caller.roll_back()
    assert isinstance(refused, OperationalError)
    assert sqlstate(refused) == "40001"
    assert (slots("a") or keys()) in ({first: 1}, {"a": first})
    assert len(claim_and_pick_up().taken) == 1


@pytest.mark.parametrize("number", [1, 2], ids=["the same candidate", "the next candidate"])
def test_a_connection_that_is_set_to_repeatable_read_never_hands_out_a_place_twice(number):
    """What it counts may date from before the lock; the place is taken, PostgreSQL says 40001, and it begins anew."""
    Semaphore.objects.create(key="a", capacity=number)
    ids = park(one if number == 1 else two, "a", number=4)
    with sessions() as other, strict_session() as strict, pytest.MonkeyPatch.context() as patch:
        real = sql.LOCK_FREE

        class Meanwhile:
            def tuples(self, **params):
                patch.setattr(sql, "LOCK_FREE", real)
                assert other.do(lifecycle.let_in, ["a"]) == number
                return real.tuples(**params)

        patch.setattr(sql, "LOCK_FREE", Meanwhile())
        assert came_to(strict.begin(lifecycle.let_in, ["a"])) == 0
    assert slots("a") == {id: place for place, id in enumerate(ids[:number], start=1)}
    assert parked() == ids[number:]
