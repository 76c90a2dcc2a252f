"""
A `while_executing` key binds while its delivery is under a lease; who takes it over fences the old holder out first.

Locked means live. Whatever the old holder comes back with, it finds itself superseded and frees nothing.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_pgbus import signals
from django_pgbus.concurrency import slots as slots_module
from django_pgbus.models import BlockedExecution, Message, Slot, UniquenessKey
from django_pgbus.queues import heartbeat
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.sweeps import GoOn
from tests.constrained import (
    alone,
    alone_and_one,
    alone_or_none,
    claim_and_pick_up,
    enqueue,
    keys,
    one,
    parked,
    run,
    silence,
    slots,
    unique,
)
from tests.line import (
    COMMITTED,
    LEASE,
    changed,
    claim,
    claim_one,
    fail,
    give_up,
    hand_back,
    holding,
    lapse,
    placed,
    release,
    server_started,
    snooze,
    state,
    succeed,
)
from tests.races.guards import (
    as_if_it_died_before_it_looked,
    at_once,
    at_the_same_time,
    fails_if,
    patient,  # noqa: F401  (a fixture for all tests here)
    started,
    waits,
    without,
)
from tests.sessions import execute, sessions

pytestmark = [COMMITTED, pytest.mark.races]

OLDER = "message.delivery = outcome.delivery", "true"
OLDER_HELD = "message.delivery = held.delivery", "true"
RELEASED = "message.leased_until IS NOT NULL", "true"
ENDINGS = {
    "success": (succeed, "SUCCEED", OLDER),
    "failure": (fail, "PUT_OFF", OLDER),
    "snooze": (snooze, "PUT_OFF", OLDER),
    "giving up": (give_up, "GIVE_UP", OLDER),
    "hand back": (hand_back, "RETURN_TO_LINE", OLDER_HELD),
}


def renew(delivery):
    return heartbeat.renew(holding(delivery), LEASE)


def fenced_in():
    return [id for (id,) in execute("SELECT id FROM pgbus_messages WHERE leased_until > clock_timestamp() ORDER BY id")]


def silent_holder_and_next():
    """Return a run that holds the key and fell silent, and the claimed delivery of the next."""
    old = started(alone, "a")
    enqueue(alone, "a")
    new = claim_one()
    lapse(old.id)
    return old, new


# --- against its holder -------------------------------------------------------------------------------


def no_ending_is_fenced(monkeypatch):
    """without the fences of its statements"""
    for _, name, older in ENDINGS.values():
        for guard in (older, RELEASED):
            if guard[0] in getattr(*placed(name)).sql:
                monkeypatch.setattr(*placed(name), changed(name, *guard))


@pytest.mark.proves("fenced-out-before-taken-over")
@pytest.mark.parametrize("ending", ENDINGS)
@fails_if(no_ending_is_fenced)
def test_a_holder_that_comes_back_during_the_take_over_finds_itself_superseded(ending):
    old, new = silent_holder_and_next()
    with sessions(2) as (taker, worker):
        taker.open()
        assert taker.do(lifecycle.pick_up, [new]).taken == [new]
        begun = worker.begin(ENDINGS[ending][0], old)
        assert waits(worker, begun)
        taker.commit()
        assert not begun.result(20)
    assert keys() == {"a": new.id}
    assert fenced_in() == [new.id]
    assert Message.objects.get(id=old.id).delivery == old.delivery + 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_holder_that_ends_first_has_ended_and_the_next_has_the_key(ending):
    """Its lease lapsed and nobody had taken over: that end counts. Who wants the key waits for it, and no longer."""
    old, new = silent_holder_and_next()
    with sessions(2) as (worker, taker):
        worker.open()
        assert worker.do(ENDINGS[ending][0], old)
        begun = taker.begin(lifecycle.pick_up, [new])
        taker.wait_until_blocked()
        worker.commit()
        assert begun.result(20).taken == [new]
    assert keys() == {"a": new.id}
    where = {"success": "succeeded", "giving up": "dead", "hand back": "ready"}
    assert state(old.id) == where.get(ending, "delayed")


@pytest.mark.proves("fenced-out-before-taken-over")
@fails_if(
    without("LOCK_QUIET", "SKIP LOCKED"),
    without("uniqueness.TAKE_AWAY", ("message.leased_until IS NOT NULL", "false")),
)
def test_a_holder_whose_message_is_locked_is_alive():
    """Somebody is about to settle or to renew it; what can be seen of its lease is old. Who wants the key parks."""
    old, new = silent_holder_and_next()
    with sessions(2) as (worker, taker):
        worker.open()
        worker.sql("SELECT 1 FROM pgbus_messages WHERE id = %s FOR UPDATE", old.id)
        assert at_once(taker, lifecycle.pick_up, [new]).parked == [new]
        assert keys() == {"a": old.id}
        assert worker.do(succeed, old) == {old.id}
        worker.commit()
    assert (state(new.id), keys()) == ("ready", {"a": new.id})  # kept for it until it is picked up


@pytest.mark.proves("a-lapsed-lease-is-never-renewed")
@fails_if(without("RENEW", ("message.leased_until > statement_timestamp()", "true")))
def test_the_beat_of_a_silent_holder_brings_nothing_back():
    """A lapsed lease is never renewed, so the test of silence that the taker made holds."""
    old, new = silent_holder_and_next()
    renew(old)
    assert lifecycle.pick_up([new]).taken == [new]
    assert renew(old).superseded == [old]
    assert keys() == {"a": new.id}


@fails_if(without("RENEW", "SKIP LOCKED"))
def test_the_beat_of_the_process_waits_for_no_take_over():
    """Its other runs are renewed, though one of them is being taken over."""
    old, new = silent_holder_and_next()
    other = started(one, "b")
    old_and_other = holding(old, other)
    with sessions(2) as (taker, heart):
        taker.open()
        # Seen as not lapsed by the beat: the moment in which both look.
        execute(
            "UPDATE pgbus_messages SET leased_until = clock_timestamp() + interval '1 hour' WHERE id = %s", [old.id]
        )
        taker.sql("SELECT 1 FROM pgbus_messages WHERE id = %s FOR UPDATE", old.id)
        before = Message.objects.get(id=other.id).leased_until
        assert at_once(heart, heartbeat.renew, old_and_other, LEASE).superseded == []
        assert Message.objects.get(id=other.id).leased_until > before
        taker.roll_back()
    assert new


@fails_if(
    at_the_same_time(
        without("uniqueness.SILENT", ("message.leased_until >= statement_timestamp()", "false")),
        without("uniqueness.TAKE_AWAY", ("message.leased_until IS NOT NULL", "false")),
    ),
)
def test_a_holder_that_beats_keeps_its_key():
    holder = started(alone, "a")
    second = enqueue(alone, "a")
    with sessions(2) as (heart, taker):
        heart.open()
        assert heart.do(renew, holder).superseded == []
        new = claim_one()
        # The test of silence says no, and the row of the key is the holder's; nobody waits for the beat.
        picked = at_once(taker, lifecycle.pick_up, [new])
        heart.commit()
    assert [d.id for d in picked.parked] == [second]
    assert keys() == {"a": holder.id}


@pytest.mark.proves("a-restart-of-postgresql-costs-no-run")
def test_after_a_restart_no_key_is_taken_over_for_the_length_of_a_lease(monkeypatch):
    old, new = silent_holder_and_next()
    monkeypatch.undo()
    server_started(monkeypatch, "10 seconds")
    assert lifecycle.pick_up([new]).parked == [new]
    assert renew(old).superseded == []
    assert keys() == {"a": old.id}


@pytest.mark.proves("fenced-out-before-taken-over")
@fails_if(without("RETURN_TO_LINE", "delivery = message.delivery + 1,"))
def test_the_old_holder_is_fenced_out_before_the_new_one_runs():
    old, new = silent_holder_and_next()
    assert lifecycle.pick_up([new]).taken == [new]
    assert (state(old.id), lifecycle.find(old.id).delivery) == ("ready", old.delivery + 1)
    again = claim()
    assert [d.id for d in again] == [old.id]
    assert lifecycle.pick_up(again).parked == again


def test_a_take_over_is_announced():
    told = []

    def note(key, **kwargs):
        told.append(key)

    signals.key_taken_over.connect(note)
    try:
        _, new = silent_holder_and_next()
        lifecycle.pick_up([new])
    finally:
        signals.key_taken_over.disconnect(note)
    assert told == ["a"]


@pytest.mark.parametrize("gone", ["released by a look", "claimed again and not yet picked up"])
def test_a_holder_that_is_under_no_lease_of_its_delivery_holds_nothing(gone):
    old = started(alone, "a")
    enqueue(alone, "a")
    new = claim_one()
    lapse(old.id)
    release(old.id)
    if gone != "released by a look":
        again = claim_one()
        assert again.id == old.id
    assert lifecycle.pick_up([new]).taken == [new]
    assert keys() == {"a": new.id}
    if gone != "released by a look":
        assert lifecycle.pick_up([again]).parked == [again]


@pytest.mark.proves("until-executed-is-never-taken-over")
@pytest.mark.parametrize("how", ["lapsed", "released"])
@fails_if(
    at_the_same_time(
        without("uniqueness.SILENT", "AND held.strategy = 'while_executing'"),
        without(
            "uniqueness.TAKE_AWAY",
            "AND held.delivery IS NOT DISTINCT FROM silent.delivery",
            "AND held.strategy = 'while_executing'",
        ),
    ),
)
def test_a_key_that_is_held_until_executed_is_never_taken_over(how):
    held = started(unique, "a")
    enqueue(alone, "a")
    new = claim_one()
    UniquenessKey.objects.update(created_at=timezone.now() - timedelta(hours=1))
    lapse(held.id)
    if how == "released":
        release(held.id)
    assert lifecycle.pick_up([new]).parked == [new]
    assert keys() == {"a": held.id}
    assert Message.objects.get(id=held.id).delivery == held.delivery


# --- two takers ---------------------------------------------------------------------------------------


KEY_OF_ANYBODY = without(
    "uniqueness.TAKE",
    "WHERE held.message_id = excluded.message_id\n      AND held.strategy = 'while_executing'",
    ("SET delivery", "SET message_id = excluded.message_id,\n        delivery"),
)


@fails_if(KEY_OF_ANYBODY)
def test_of_two_who_take_over_one_has_the_key():
    old, new = silent_holder_and_next()
    enqueue(alone, "a")
    third = claim_one()
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(lifecycle.pick_up, [new]).taken == [new]
        begun = bob.begin(lifecycle.pick_up, [third])
        bob.wait_until_blocked()
        ann.commit()
        assert begun.result(20).parked == [third]
    assert keys() == {"a": new.id}
    assert fenced_in() == [new.id]
    assert old.id not in parked()


@pytest.mark.proves("one-run-per-key")
@fails_if(KEY_OF_ANYBODY)
def test_of_two_who_want_a_free_key_one_has_it():
    enqueue(alone, "a")
    enqueue(alone, "a")
    first, second = claim()
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(lifecycle.pick_up, [first]).taken == [first]
        begun = bob.begin(lifecycle.pick_up, [second])
        bob.wait_until_blocked()
        ann.commit()
        assert begun.result(20).parked == [second]
    assert keys() == {"a": first.id}


def test_a_task_that_drops_is_dropped_by_a_live_holder_only():
    """Behind a silent one it runs."""
    old = started(alone_or_none, "a")
    enqueue(alone_or_none, "a")
    new = claim_one()
    lapse(old.id)
    assert lifecycle.pick_up([new]).taken == [new]
    assert lifecycle.pick_up(claim()).taken == []
    assert state(old.id) == "discarded"


# --- slot and key -------------------------------------------------------------------------------------


def slots_are_kept(monkeypatch):
    """if who waits for a key keeps its slot"""
    monkeypatch.setattr(slots_module, "free", lambda ids: [])


@pytest.mark.proves("slot-and-key-together-or-neither")
@fails_if(slots_are_kept)
def test_who_waits_for_the_key_gives_its_slot_to_the_next():
    running = started(alone_and_one, "k", "x")
    waits_for_key = enqueue(alone_and_one, "k", "s")
    waits_for_slot = enqueue(alone_and_one, "other", "s")
    assert (state(waits_for_slot), slots("s")) == ("parked", {waits_for_key: 1})
    assert [d.id for d in claim_and_pick_up().parked] == [waits_for_key]
    assert slots("s") == {waits_for_slot: 1}
    assert running


def every_pick_up_finds_a_slot(monkeypatch):
    """if who has no slot is let in"""
    monkeypatch.setattr(slots_module, "start_leases", set)


@fails_if(every_pick_up_finds_a_slot)
def test_crossed_waits_hold_nobody_up():
    """
    One has lost its slot and wants a key that is free, the other has the slot and wants the same key.

    The first takes neither, so the second goes, though the first's pick-up is not committed yet.
    """
    with as_if_it_died_before_it_looked():
        first, second = enqueue(alone_and_one, "k", "s"), enqueue(alone_and_one, "k", "s")
        lifecycle.let_in(["s"])
        first_delivery = claim_one()
        Slot.objects.all().delete()
        lifecycle.let_in(["s"])
        second_delivery = claim_one()
    assert slots("s") == {second: 1}
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(lifecycle.pick_up, [first_delivery]).parked == [first_delivery]
        assert at_once(bob, lifecycle.pick_up, [second_delivery]).taken == [second_delivery]
        ann.commit()
    assert (keys(), slots()) == ({"k": second}, {second: 1})
    row = BlockedExecution.objects.get()
    assert (row.id, row.waits_for, row.key) == (first, "semaphore", "s")
    succeed(second_delivery)
    assert run().id == first


def test_two_pick_ups_of_many_in_opposite_order_do_not_deadlock():
    for key in "abc":
        enqueue(alone, key)
    for key in "cba":
        enqueue(alone, key)
    claimed = claim()
    with sessions(3) as (between, ann, bob):
        between.open()
        between.do(enqueue, unique, "b")
        first = ann.begin(lifecycle.pick_up, claimed[:3])
        ann.wait_until_blocked()
        second = bob.begin(lifecycle.pick_up, list(claimed[3:]))
        bob.wait_until_blocked()
        between.roll_back()
        assert first.result(20).taken == claimed[:3]
        assert second.result(20).parked == claimed[3:]


def test_a_waiter_that_finds_no_slot_waits_for_that_and_the_next_has_the_key():
    holder = started(alone_and_one, "k", "x")
    blocked_by = started(one, "s")
    Slot.objects.filter(message_id=blocked_by.id).update(key="s")
    with as_if_it_died_before_it_looked():
        ids = []
        for limit in ("s2", "t"):
            ids.append(enqueue(alone_and_one, "k", limit))
            lifecycle.let_in([limit])
            assert [d.id for d in claim_and_pick_up().parked] == ids[-1:]
    Slot.objects.filter(message_id=blocked_by.id).update(key="s2")  # the place of the first waiter is another's now
    succeed(holder)
    first, second = ids
    assert (state(first), state(second)) == ("parked", "ready")
    row = BlockedExecution.objects.get()
    assert (row.waits_for, row.key) == ("semaphore", "s2")
    succeed(blocked_by)
    assert GoOn().sweep() in (0, 1)
    assert slots("t") == {second: 1}


# --- who waits behind a silent holder -----------------------------------------------------------------


@pytest.mark.parametrize("released", [False, True], ids=["lapsed", "released by a look"])
def test_the_sweep_lets_in_who_waits_behind_a_silent_holder(released):
    old = started(alone, "a")
    waiting = enqueue(alone, "a")
    claim_and_pick_up()
    assert parked() == [waiting]
    silence(old)
    if released:
        release(old.id)
    GoOn().sweep()
    assert state(waiting) == "ready"
    assert succeed(old) == set()
    assert keys() == {"a": waiting}


def test_a_holder_that_beats_is_left_alone_by_the_sweep():
    holder = started(alone, "a")
    waiting = enqueue(alone, "a")
    claim_and_pick_up()
    assert GoOn().sweep() == 0
    assert (state(waiting), keys()) == ("parked", {"a": holder.id})
    assert succeed(holder) == {holder.id}
