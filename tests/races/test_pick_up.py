"""
A claimed job that is constrained starts only once it is known that it may.

The consumer claims, then picks up, then fills the buffer. Whatever fails before, nothing runs and no attempt is lost.
"""

from __future__ import annotations

import pytest
from django.db import OperationalError, transaction

from django_pgbus.models import BlockedExecution, Message, Slot
from django_pgbus.queues import queue, sql
from django_pgbus.tasks import lifecycle
from django_pgbus.worker.consumer import Consumer
from tests import jobs
from tests.constrained import alone, alone_and_one, alone_or_none, enqueue, keys, one, parked, slots, two, unique
from tests.line import COMMITTED, claim, lapse, put, release, state, succeed
from tests.races.guards import as_if_it_died_before_it_looked, fails_if, started, without
from tests.running import a_worker
from tests.sessions import execute, sessions, until
from tests.worker.test_consumer import worker  # noqa: F401  (a fixture)

pytestmark = [COMMITTED, pytest.mark.races]


def buffered(w):
    return [delivery.id for delivery in w.shelf.buffer]


def test_what_may_not_run_never_reaches_the_buffer(worker):  # noqa: F811
    first, second, third = enqueue(alone, "k"), enqueue(alone, "k"), enqueue(alone_or_none, "k")
    (free,) = put()
    w = worker()
    w.settle()
    assert buffered(w) == [first, free]
    assert (len(w.held), parked(), state(third)) == (2, [second], "discarded")


def nothing_goes_back(monkeypatch):
    """if what failed at the pick-up is forgotten"""
    monkeypatch.setattr(Consumer, "_hand_back", lambda self, deliveries: None)


@pytest.mark.parametrize("when", ["before the commit", "after it, and the reply was lost"])
@fails_if(nothing_goes_back)
def test_a_pick_up_that_fails_runs_nothing_and_costs_nothing(when, worker):  # noqa: F811
    """Slot and key are given back with the delivery, whether they were taken or not; what is not limited goes back too."""
    first, second = enqueue(alone_and_one, "k", "s"), enqueue(alone_and_one, "k", "t")
    (free,) = put()
    w = worker()
    with pytest.MonkeyPatch.context() as patch:
        real = lifecycle.pick_up

        def fails(deliveries):
            patch.setattr(lifecycle, "pick_up", real)
            if when != "before the commit":
                with as_if_it_died_before_it_looked():
                    real(deliveries)
            raise OperationalError("server closed the connection unexpectedly")

        patch.setattr(lifecycle, "pick_up", fails)
        with pytest.raises(OperationalError):
            w.settle()
    assert buffered(w) == []
    w.settle()
    if when == "before the commit":
        assert (sorted(buffered(w)), parked()) == (sorted([first, free]), [second])
    assert free in buffered(w)
    assert len(keys()) == 1
    rows = {row.id: row for row in Message.objects.all()}
    assert {row.attempts for row in rows.values()} == {1}, "the run that comes now"
    assert all(row.delivery == 3 for row in rows.values() if row.leased_until), "claimed, handed back, claimed"
    assert BlockedExecution.objects.get().attempts == 0


def test_a_hand_back_between_claim_and_pick_up_keeps_the_slot():
    id = enqueue(one, "a")
    (delivery,) = claim()
    assert lifecycle.hand_back([(delivery.id, delivery.delivery)]) == [id]
    assert lifecycle.pick_up([delivery]).lost == [delivery]
    assert slots("a") == {id: 1}
    assert Slot.objects.get().leased_until is None


def every_delivery_is_still_leased(monkeypatch):
    """if the pick-up does not ask for the lease"""
    asked = type("Asked", (), {"tuples": staticmethod(lambda ids, deliveries, patience: [(id,) for id in ids])})()
    monkeypatch.setattr(sql, "LOCK_LEASED", asked)


@fails_if(every_delivery_is_still_leased)
def test_a_delivery_that_was_superseded_before_its_pick_up_takes_nothing():
    """Its process stood still between claim and pick-up; another has claimed the job meanwhile."""
    id = enqueue(alone_and_one, "k", "s")
    (old,) = claim()
    lapse(id)
    release(id)
    (new,) = claim()
    assert lifecycle.pick_up([old]).lost == [old]
    assert keys() == {}
    assert Slot.objects.get().leased_until is None
    assert lifecycle.pick_up([new]).taken == [new]


def test_a_discard_between_claim_and_pick_up_is_told_with_the_next_beat_and_holds_its_slot():
    id = enqueue(one, "a")
    waiting = enqueue(one, "a")
    (delivery,) = claim()
    assert lifecycle.discard([id]).marked == {id}
    assert lifecycle.pick_up([delivery]).taken == [delivery]
    assert lifecycle.hand_back([(id, delivery.delivery)]) == []
    assert (state(id), slots("a")) == ("discarded", {waiting: 1})


def test_two_of_one_claim_that_want_one_key_and_the_first_has_it():
    ids = [enqueue(alone, "k") for _ in range(3)]
    picked = lifecycle.pick_up(claim())
    assert [d.id for d in picked.taken] == ids[:1]
    assert parked() == ids[1:]


def test_a_pick_up_of_many_limited_jobs_is_one_statement_for_their_slots(django_assert_max_num_queries):
    ids = [enqueue(two, f"key-{number}") for number in range(20)]
    deliveries = claim()
    assert len(deliveries) == len(ids)
    with django_assert_max_num_queries(6):  # BEGIN, lock, lease, park nothing, COMMIT, and one to spare
        assert len(lifecycle.pick_up(deliveries).taken) == 20


def test_a_paused_queue_gives_back_what_was_picked_up_with_its_key(worker):  # noqa: F811
    first, second = enqueue(alone, "k"), enqueue(alone, "k")
    w = worker()
    w.settle()
    assert buffered(w) == [first]
    queue.pause("default")
    w.settle()
    assert (buffered(w), keys(), state(first)) == ([], {}, "ready")
    queue.resume("default")
    lifecycle.let_in((), ["k"])
    assert state(second) == "ready"


def test_a_worker_runs_them_all_one_at_a_time():
    """The whole way: claimed, picked up, run, settled, the next let in."""
    jobs.calls.clear()
    ids = [enqueue(alone_and_one, "k", "s") for _ in range(5)] + [enqueue(one, "a") for _ in range(5)]
    with a_worker(threads=4):
        until(lambda: all(state(id) == "succeeded" for id in ids))
    assert (keys(), slots(), parked()) == ({}, {}, [])


def test_a_slot_is_freed_by_the_transaction_of_a_transactional_job():
    delivery = started(one, "a")
    waiting = enqueue(one, "a")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        succeed(delivery)
        1 / 0  # noqa: B018
    assert slots("a") == {delivery.id: 1}
    with transaction.atomic():
        succeed(delivery)
        assert state(waiting) == "parked"
    assert slots("a") == {waiting: 1}


@fails_if(without("concurrency.DISCARD", ("WHERE blocked.id = ANY", "WHERE false AND blocked.id = ANY")))
def test_a_discard_that_meets_a_pick_up_that_parks_settles_the_parked_row():
    """It waits for the message and finds it gone; it looks among the parked after that, in a statement of its own."""
    started(alone, "k")
    id = enqueue(alone, "k")
    (delivery,) = claim()
    with sessions(2) as (picks_up, person):
        picks_up.open()
        assert picks_up.do(lifecycle.pick_up, [delivery]).parked == [delivery]
        discard = person.begin(lifecycle.discard, [id])
        person.wait_until_blocked()
        picks_up.commit()
        assert discard.result(20).settled == {id}
    assert state(id) == "discarded"


def test_a_pick_up_waits_for_no_callers_transaction():
    """
    One namespace: a task that is unique until executed may be enqueued, under a key that another needs to run.

    Who needs it asks again: whether anybody holds the key is not known before that transaction has ended.
    """
    id = enqueue(alone, "k")
    (delivery,) = claim()
    with sessions(2) as (caller, picks_up):
        caller.open()
        caller.do(enqueue, unique, "k")
        assert picks_up.do(lifecycle.pick_up, [delivery]).contested == [delivery]
        caller.roll_back()
    assert (state(id), keys()) == ("running", {})
    assert lifecycle.pick_up([delivery]).taken == [delivery]


def test_a_key_that_a_caller_holds_keeps_no_other_job_of_the_claim_from_running():
    held, free = enqueue(alone, "k"), enqueue(alone, "free")
    deliveries = claim()
    with sessions(2) as (caller, picks_up):
        caller.open()
        caller.do(enqueue, unique, "k")
        picked = picks_up.do(lifecycle.pick_up, deliveries)
        caller.commit()
    assert [d.id for d in picked.contested] == [held]
    assert [d.id for d in picked.taken] == [free]


def test_a_pick_up_leaves_the_settings_of_its_transaction_as_they_were():
    """It may be the transaction of a project's test, which goes on after it."""
    enqueue(alone, "k")
    with transaction.atomic():
        before = execute("SHOW lock_timeout")
        assert lifecycle.pick_up(claim()).taken
        assert execute("SHOW lock_timeout") == before
