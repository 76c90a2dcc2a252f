"""
At no moment are more than N runs of a key fenced in; a slot is freed once, by whoever settles its own message.

A run that lost its lease may go on computing. It was told to stop, can write nothing, frees no slot and promotes
nobody, whatever it comes back with; and the limit is what it was at once.
"""

from __future__ import annotations

import pytest

from django_pgbus.concurrency import slots as slots_module
from django_pgbus.concurrency import sweeps
from django_pgbus.models import BlockedExecution, Message, Slot, UniquenessKey
from django_pgbus.queues import heartbeat
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.sweeps import GoOn, SlotReaper
from tests.constrained import (
    alone_and_one,
    claim_and_pick_up,
    enqueue,
    lapse_slots,
    one,
    parked,
    silence,
    slots,
    two,
)
from tests.line import (
    COMMITTED,
    LEASE,
    changed,
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
from tests.races.guards import as_if_it_died_before_it_looked, at_once, fails_if, started, waits, without
from tests.sessions import execute, sessions

pytestmark = [COMMITTED, pytest.mark.races]

OLDER = "message.delivery = outcome.delivery", "true"
OLDER_HELD = "message.delivery = held.delivery", "true"
RELEASED = "message.leased_until IS NOT NULL", "true"


def fenced_in(key="a"):
    """Return the runs that hold a place and could write something."""
    return [
        id
        for (id,) in execute(
            "SELECT message.id FROM pgbus_messages AS message"
            " WHERE message.leased_until > clock_timestamp()"
            " AND message.constraints->'limit'->>'key' = %s ORDER BY message.id",
            [key],
        )
    ]


def slot_lease(id):
    return Slot.objects.get(message_id=id).leased_until


def renew(*deliveries):
    return heartbeat.renew(holding(*deliveries), LEASE)


def everything():
    """Return all that constrains: slots, keys and parked jobs, each row whole."""
    return [list(model.objects.order_by("pk").values()) for model in (Slot, UniquenessKey, BlockedExecution)]


# --- the beat -----------------------------------------------------------------------------------------


@pytest.mark.proves("a-silent-holder-is-presumed-dead")
def test_a_beat_renews_the_slot_with_the_message():
    delivery = started(one, "a")
    lapse_slots(delivery.id)
    before = slot_lease(delivery.id)
    assert renew(delivery).superseded == []
    assert slot_lease(delivery.id) > before


@fails_if(without("concurrency.RENEW", "SKIP LOCKED"))
def test_a_beat_waits_for_no_slot_and_renews_it_with_the_next_one():
    delivery, other = started(one, "a"), started(one, "b")
    before = slot_lease(delivery.id), slot_lease(other.id)
    with sessions(2) as (somebody, heart):
        somebody.open()
        somebody.sql("SELECT 1 FROM pgbus_semaphore_slots WHERE message_id = %s FOR UPDATE", delivery.id)
        assert at_once(heart, renew, delivery, other).superseded == []
        assert slot_lease(delivery.id) == before[0]
        assert slot_lease(other.id) > before[1]
        somebody.commit()
        heart.do(renew, delivery)
    assert slot_lease(delivery.id) > before[0]


@fails_if(without("concurrency.RENEW", OLDER_HELD))
def test_an_older_delivery_renews_no_slot_of_its_successor():
    old = started(one, "a")
    lapse(old.id)
    release(old.id)
    assert claim_and_pick_up().taken
    before = slot_lease(old.id)
    slots_module.renew_leases([old])
    assert slot_lease(old.id) == before


@fails_if(without("concurrency.RENEW", ("message.leased_until > statement_timestamp()", "true")))
def test_a_run_that_lost_its_lease_renews_no_slot():
    delivery = started(one, "a")
    lapse(delivery.id)
    before = slot_lease(delivery.id)
    assert renew(delivery).superseded == []  # nobody took over yet; it is not confirmed either
    slots_module.renew_leases([delivery])
    assert slot_lease(delivery.id) == before


@fails_if(without("concurrency.RENEW", "AND slot.leased_until IS NOT NULL"))
def test_a_beat_starts_no_lease_before_the_pick_up():
    """Claimed, not yet picked up: its slot has no lease yet, and a job that waits must not seem to run."""
    id = enqueue(one, "a")
    renew(claim_one())
    assert slot_lease(id) is None


# --- a superseded delivery ----------------------------------------------------------------------------

# How a run may end, and the statement whose guards fence it.
ENDINGS = {
    "succeed": (succeed, "SUCCEED", OLDER),
    "fail": (fail, "PUT_OFF", OLDER),
    "snooze": (snooze, "concurrency.PARK", OLDER_HELD),
    "give up": (give_up, "GIVE_UP", OLDER),
    "hand back": (hand_back, "RETURN_TO_LINE", OLDER_HELD),
}


@pytest.mark.proves("a-superseded-run-frees-nothing")
@pytest.mark.parametrize("guarded", [True, False], ids=["holds", "fails without its guards"])
@pytest.mark.parametrize("supersede", ["released", "runs again", "presumed dead"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_superseded_delivery_frees_nothing_and_lets_nobody_in(ending, supersede, guarded, monkeypatch):
    end, statement, older = ENDINGS[ending]
    old = started(alone_and_one, "k", "a")
    with as_if_it_died_before_it_looked():
        waiting = [enqueue(alone_and_one, "k", "a"), enqueue(alone_and_one, "k", "a")]
    if supersede == "presumed dead":
        silence(old)
        assert lifecycle.presume_dead(10) == 1
        assert list(slots("a")) == waiting[:1]
    else:
        lapse(old.id)
        assert release(old.id) == [old.id]
    if supersede == "runs again":
        assert [d.id for d in claim_and_pick_up().taken] == [old.id]
    before = everything()
    if not guarded:
        monkeypatch.setattr(*placed(statement), changed(statement, *older))
        monkeypatch.setattr(*placed(statement), changed(statement, *RELEASED))
    untouched = not end(old) and everything() == before
    assert untouched is guarded


# --- presumed dead ------------------------------------------------------------------------------------


@pytest.mark.proves("a-silent-holder-is-presumed-dead")
@fails_if(without("LOCK_QUIET", "SKIP LOCKED"))
def test_a_holder_that_beats_at_this_moment_is_not_presumed_dead():
    """Its beat is not committed yet, and what can be seen is silence: locked means live."""
    delivery = started(one, "a")
    waiting = enqueue(one, "a")
    lapse_slots(delivery.id)
    with sessions(2) as (heart, sweeper):
        heart.open()
        assert heart.do(renew, delivery).superseded == []
        assert at_once(sweeper, lifecycle.presume_dead, 10) == 0
        heart.commit()
        assert sweeper.do(lifecycle.presume_dead, 10) == 0
    assert (state(waiting), slots("a")) == ("parked", {delivery.id: 1})
    assert succeed(delivery) == {delivery.id}


@fails_if(without("LOCK_QUIET", "SKIP LOCKED"))
def test_a_holder_that_settles_at_this_moment_is_not_presumed_dead():
    """Its lease and its slot's have passed and nobody took over: it may still complete, and is doing it."""
    delivery = started(one, "a")
    waiting = enqueue(one, "a")
    silence(delivery)
    with sessions(2) as (worker, sweeper):
        worker.open()
        assert worker.do(succeed, delivery) == {delivery.id}
        assert at_once(sweeper, lifecycle.presume_dead, 10) == 0
        worker.commit()
        assert sweeper.do(lifecycle.presume_dead, 10) == 0
    assert (state(delivery.id), slots("a")) == ("succeeded", {waiting: 1})


def no_ending_is_fenced(monkeypatch):
    """without the fences of its statements"""
    for _, name, older in ENDINGS.values():
        for guard in (older, RELEASED):
            if guard[0] in getattr(*placed(name)).sql:
                monkeypatch.setattr(*placed(name), changed(name, *guard))


@pytest.mark.parametrize("ending", ENDINGS)
@fails_if(no_ending_is_fenced)
def test_a_holder_that_was_presumed_dead_comes_back_and_changes_nothing(ending):
    """It waits for the transaction that fences it out, and finds itself superseded."""
    end = ENDINGS[ending][0]
    delivery = started(one, "a")
    waiting = enqueue(one, "a")
    silence(delivery)
    with sessions(2) as (sweeper, worker):
        sweeper.open()
        assert sweeper.do(lifecycle.presume_dead, 10) == 1
        begun = worker.begin(end, delivery)
        assert waits(worker, begun)
        sweeper.commit()
        assert not begun.result(20)
    assert (state(delivery.id), slots("a")) == ("ready", {waiting: 1})
    assert Message.objects.get(id=delivery.id).delivery > delivery.delivery


@fails_if(without("RENEW", "SKIP LOCKED"))
def test_the_beat_of_a_holder_that_is_being_fenced_out_waits_for_nobody_and_is_told_with_the_next():
    delivery = started(one, "a")
    with sessions(2) as (person, heart):
        person.open()
        assert person.do(lambda: lifecycle.release("a", even_running=True)) == 1
        assert at_once(heart, renew, delivery).superseded == []
        person.commit()
        assert heart.do(renew, delivery).superseded == [delivery]


@fails_if(without("RETURN_TO_LINE", "delivery = message.delivery + 1,"))
def test_who_is_presumed_dead_is_fenced_out_before_the_next_is_let_in():
    """Its number is raised by the transaction that frees its slot, so that its supervisor's hand-back comes too late."""
    delivery = started(one, "a")
    enqueue(one, "a")
    silence(delivery)
    assert lifecycle.presume_dead(10) == 1
    assert lifecycle.find(delivery.id).delivery == delivery.delivery + 1


def test_after_a_restart_no_holder_is_presumed_dead_for_the_length_of_a_lease(monkeypatch):
    delivery = started(one, "a")
    silence(delivery)
    monkeypatch.undo()
    server_started(monkeypatch, "10 seconds")
    assert lifecycle.presume_dead(10) == 0
    assert slots("a") == {delivery.id: 1}
    assert renew(delivery).superseded == []
    monkeypatch.undo()
    server_started(monkeypatch, "1 day")
    lapse_slots(delivery.id)
    assert lifecycle.presume_dead(10) == 0, "it was renewed in that time"


def test_the_sweep_presumes_dead_and_lets_in_the_next(monkeypatch):
    """rails/solid_queue#735, janbjorge/pgqueuer#475: a dead holder's slot and its job are both free again."""
    delivery = started(one, "a")
    waiting = enqueue(one, "a")
    assert GoOn().sweep() == 0
    silence(delivery)
    assert GoOn().sweep() == 1
    assert (state(delivery.id), slots("a")) == ("ready", {waiting: 1})
    succeed(*claim_and_pick_up().taken)
    assert slots("a") == {delivery.id: 1}


# --- the cascade --------------------------------------------------------------------------------------


def every_pick_up_finds_a_slot(monkeypatch):
    """if the limit is not tested again at pick-up"""
    monkeypatch.setattr(slots_module, "start_leases", set)


@pytest.mark.proves("the-limit-is-checked-again-at-pick-up")
@pytest.mark.parametrize("comes_back_by", ["beat", "completion", "failure", "hand back"])
@fails_if(every_pick_up_finds_a_slot)
def test_one_lapsed_lease_never_becomes_a_chain_of_runs(comes_back_by):
    """
    A holder loses its lease, is presumed dead, and comes back while the next runs.

    A counter would be lowered twice, and two would run from then on. Without the test at pick-up the old job would run
    again beside the next.
    """
    old = started(one, "a")
    following = [enqueue(one, "a") for _ in range(3)]
    silence(old)
    assert fenced_in() == []
    assert lifecycle.presume_dead(10) == 1
    picked = claim_and_pick_up()
    assert fenced_in() == following[:1]
    assert [d.id for d in picked.taken] == following[:1]
    if comes_back_by == "beat":
        assert renew(old).superseded == [old]
    else:
        assert not {"completion": succeed, "failure": fail, "hand back": hand_back}[comes_back_by](old)
    assert slots("a") == {following[0]: 1}
    assert claim_and_pick_up().taken == []
    assert fenced_in() == following[:1], "the limit is one at once"
    done, running = [], picked.taken
    while running:
        assert len(fenced_in()) == 1
        done += succeed(*running)
        running = claim_and_pick_up().taken
    assert sorted(done) == sorted([old.id, *following])
    assert (slots(), parked()) == ({}, [])


@pytest.mark.proves("a-superseded-run-frees-nothing")
@fails_if(without("SUCCEED", OLDER), without("LEASES", ("message.delivery,", "1 AS delivery,")))
def test_a_job_that_is_taken_over_keeps_its_slot_and_runs_once_fenced_in():
    """Its lease lapsed and a look released it; it is claimed again, with the slot it has. The old run is over."""
    old = started(one, "a")
    waiting = enqueue(one, "a")
    lapse(old.id)
    release(old.id)
    (new,) = claim_and_pick_up().taken
    assert fenced_in() == [old.id]
    assert succeed(old) == set()
    assert renew(old).superseded == [old]
    assert slots("a") == {old.id: 1}
    assert succeed(new) == {old.id}
    assert slots("a") == {waiting: 1}


@pytest.mark.proves("the-limit-is-checked-again-at-pick-up")
@fails_if(every_pick_up_finds_a_slot)
def test_the_limit_holds_in_the_first_second_after_everything_was_killed():
    """rails/solid_queue#735: all holders died at once, and a worker claims whatever stands in the line."""
    deliveries = [started(two, "a") for _ in range(2)]
    with as_if_it_died_before_it_looked():
        waiting = [enqueue(two, "a") for _ in range(3)]
    Slot.objects.filter(message_id=deliveries[1].id).update(message_id=-1)  # as if another holder lived
    lapse(*(d.id for d in deliveries))
    release(*(d.id for d in deliveries))
    picked = claim_and_pick_up()
    assert [d.id for d in picked.taken] == [deliveries[0].id]
    assert len(fenced_in()) == 1
    assert len(slots("a")) == 2
    assert set(waiting) < set(parked())


# --- finish against sweep, and the reaper -------------------------------------------------------------


def test_a_run_that_finishes_while_the_sweep_looks():
    delivery = started(one, "a")
    waiting = [enqueue(one, "a") for _ in range(2)]
    with sessions(2) as (worker, sweeper):
        worker.open()
        worker.do(succeed, delivery)
        assert at_once(sweeper, GoOn().sweep) == 0
        worker.commit()
        assert sweeper.do(GoOn().sweep) == 0
    assert (slots("a"), parked()) == ({waiting[0]: 1}, waiting[1:])


def it_looks_only_once(monkeypatch):
    """if who held the semaphore does not look again"""
    monkeypatch.setattr(slots_module, "ROUNDS", 1)


@fails_if(it_looks_only_once)
def test_a_run_that_finishes_while_somebody_lets_in():
    """The completion finds the semaphore locked and passes over; who held it looks again after its commit."""
    first, second = started(two, "a"), started(two, "a")
    with as_if_it_died_before_it_looked():
        waiting = [enqueue(two, "a") for _ in range(3)]
        succeed(first)
    with sessions() as worker, pytest.MonkeyPatch.context() as patch:
        real = slots_module._let_in

        def meanwhile(*args):
            patch.setattr(slots_module, "_let_in", real)
            moved = real(*args)
            assert at_once(worker, succeed, second) == {second.id}
            return moved

        patch.setattr(slots_module, "_let_in", meanwhile)
        lifecycle.let_in(["a"])
    assert (sorted(slots("a")), parked()) == (waiting[:2], waiting[2:])


@fails_if(
    without(
        "concurrency.REAP",
        "AND NOT EXISTS (SELECT 1 FROM pgbus_messages AS message WHERE message.id = slot.message_id)",
    )
)
def test_the_reaper_leaves_a_slot_whose_message_came_back_meanwhile():
    """It stood nowhere when it was looked at; its slot is locked, and then looked at again in a second statement."""
    id = enqueue(one, "a")
    message = Message.objects.values().get(id=id)
    Message.objects.filter(id=id).delete()
    with pytest.MonkeyPatch.context() as patch:
        real = sweeps.sql.LOCK_UNOWNED

        def meanwhile(**params):
            Message.objects.create(**message)
            return real.tuples(**params)

        patch.setattr(sweeps.sql, "LOCK_UNOWNED", type("Meanwhile", (), {"tuples": staticmethod(meanwhile)})())
        assert SlotReaper().reap() == 0
    assert slots("a") == {id: 1}


@fails_if(without("concurrency.LOCK_UNOWNED", "SKIP LOCKED"))
def test_the_reaper_waits_for_nobody():
    id = enqueue(one, "a")
    waiting = enqueue(one, "a")
    Message.objects.filter(id=id).delete()
    with sessions(2) as (somebody, reaper):
        somebody.open()
        somebody.sql("SELECT 1 FROM pgbus_semaphore_slots WHERE message_id = %s FOR UPDATE", id)
        assert at_once(reaper, SlotReaper().reap) == 0
        somebody.commit()
        assert reaper.do(SlotReaper().reap) == 1
    assert slots("a") == {waiting: 1}


def test_a_slot_of_nobody_keeps_nobody_out_for_ever():
    """Only a restore or a hand in psql leaves one; what waits behind it is let in."""
    Slot.objects.create(message_id=2**40, key="a", ordinal=1, duration=900)
    with as_if_it_died_before_it_looked():
        waiting = enqueue(one, "a")
    assert GoOn().sweep() == 0
    assert SlotReaper().reap() == 1
    assert (state(waiting), slots("a")) == ("ready", {waiting: 1})
