"""A person lets delayed jobs run now: each goes into the line once, under the rules of one that is due."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgbus.models import BlockedExecution, Delayed, Message, Slot
from django_pgbus.queues import delayed, wake
from django_pgbus.tasks import lifecycle
from tests.constrained import enqueue, make_parked_due, one
from tests.line import COMMITTED, claim, claim_one, fail, make_due, put, snooze, state, succeed, work
from tests.running import a_worker
from tests.sessions import PATIENCE, sessions, until

pytestmark = [COMMITTED, pytest.mark.races]


def later(seconds=3600.0, **more):
    return lifecycle.enqueue(work(due=timedelta(seconds=seconds), **more)).id


def parked_until_due(key="a"):
    """Return a job that snoozed: it has given its slot back and is parked until it is due."""
    id = enqueue(one, key)
    (delivery,) = lifecycle.pick_up(claim()).taken
    snooze(delivery, delay=3600)
    assert BlockedExecution.objects.get(id=id).due_at is not None
    return id


def test_it_stands_in_the_line_with_all_it_carries_and_behind_who_was_there():
    (id,) = put(queue="mail", priority=4)
    fail(claim_one(levels=[lifecycle.Level("mail", 4)]), delay=3600)
    before = Delayed.objects.values().get(id=id)
    (waiting,) = put(queue="mail", priority=4)
    assert lifecycle.run_now([id]).in_line == {id}
    after = Message.objects.values().get(id=id)
    kept = before.keys() - {"due_at", "reason"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert (after["attempts"], len(after["errors"]), after["suspect"]) == (1, 1, False)
    assert [d.id for d in claim(levels=[lifecycle.Level("mail", 4)])] == [waiting, id]


def test_each_is_told_apart():
    parked_one, delayed_one = parked_until_due(), later()
    running, ready = put(2)
    assert claim(limit=1)[0].id == running
    told = lifecycle.run_now([ready, running, delayed_one, parked_one, 10**9])
    assert (told.in_line, told.parked, told.left) == ({delayed_one}, {parked_one}, {ready, running, 10**9})


def test_a_worker_asleep_is_told(monkeypatch):
    monkeypatch.setattr(wake, "wakes_for_delay", lambda seconds: seconds < 60)
    id = later()
    with a_worker(poll=30.0) as worker:
        until(lambda: worker.process._consumer._line.floors)
        lifecycle.run_now([id])
        until(lambda: state(id) == "succeeded")


def test_while_a_mover_has_it_the_person_waits_and_it_is_in_the_line_once():
    id = later()
    make_due(id)
    with sessions(2) as (mover, person):
        mover.open()
        assert len(mover.do(lifecycle.move_due, ["default"])) == 1
        asked = person.begin(lifecycle.run_now, [id])
        person.wait_until_blocked()
        mover.commit()
        assert asked.result(PATIENCE).left == {id}
    assert [d.id for d in claim()] == [id]


def test_a_mover_that_rolls_back_leaves_it_to_the_person():
    id = later()
    make_due(id)
    with sessions(2) as (mover, person):
        mover.open()
        mover.do(lifecycle.move_due, ["default"])
        asked = person.begin(lifecycle.run_now, [id])
        person.wait_until_blocked()
        mover.roll_back()
        assert asked.result(PATIENCE).in_line == {id}
    assert [d.id for d in claim()] == [id]


def test_a_mover_passes_over_what_a_person_moves():
    mine, other = later(), later()
    make_due(mine, other)
    with sessions() as person:
        person.open()
        assert person.do(lifecycle.run_now, [mine]).in_line == {mine}
        assert len(delayed.move_due(["default"])) == 1
        assert [d.id for d in claim()] == [other], "nobody sees it before the commit"
        person.commit()
    assert delayed.move_due(["default"]) == []
    assert [d.id for d in claim()] == [mine]


def test_of_two_people_one_moves_it():
    ids = [later() for _ in range(3)]
    with sessions(2) as (one_person, other):
        one_person.open()
        assert one_person.do(lifecycle.run_now, ids[:2]).in_line == {*ids[:2]}
        asked = other.begin(lifecycle.run_now, ids[::-1])
        other.wait_until_blocked()
        one_person.commit()
        told = asked.result(PATIENCE)
    assert (told.in_line, told.left) == ({ids[2]}, {*ids[:2]})
    assert sorted(d.id for d in claim()) == ids


@pytest.mark.parametrize("first", ["discard", "run now"])
def test_a_discard_and_run_now_meet(first):
    id = later()
    calls = {"discard": lifecycle.discard, "run now": lifecycle.run_now}
    (second,) = calls.keys() - {first}
    with sessions(2) as (one_person, other):
        one_person.open()
        one_person.do(calls[first], [id])
        asked = other.begin(calls[second], [id])
        other.wait_until_blocked()
        one_person.commit()
        told = asked.result(PATIENCE)
    # A discard looks for what has moved meanwhile; there is nothing left to run of what was discarded.
    assert (told.settled if first == "run now" else told.left) == {id}
    assert state(id) == "discarded"


def test_one_that_rolls_back_leaves_everything_as_it_was():
    id, parked_one = later(), parked_until_due()
    before = Delayed.objects.values().get(id=id), BlockedExecution.objects.values().get(id=parked_one)
    with sessions() as person:
        person.open()
        person.do(lifecycle.run_now, [id, parked_one])
        person.roll_back()
    assert (Delayed.objects.values().get(id=id), BlockedExecution.objects.values().get(id=parked_one)) == before


def test_what_a_worker_claimed_meanwhile_is_left_to_it():
    id = later()
    make_due(id)
    lifecycle.move_due(["default"])
    delivery = claim_one()
    assert lifecycle.run_now([id]).left == {id}
    assert succeed(delivery) == {id}


def test_one_that_is_tried_again_runs_with_the_slot_that_it_kept():
    id = enqueue(one, "a")
    other = enqueue(one, "a")
    fail(*lifecycle.pick_up(claim()).taken, delay=3600)
    assert lifecycle.run_now([id]).in_line == {id}
    assert [d.id for d in lifecycle.pick_up(claim()).taken] == [id]
    assert (state(other), Slot.objects.get().message_id) == ("parked", id)


def test_one_that_is_parked_gets_no_slot_that_is_taken():
    id = parked_until_due()
    other = enqueue(one, "a")
    (running,) = lifecycle.pick_up(claim()).taken
    assert running.id == other
    assert lifecycle.run_now([id]).parked == {id}
    assert (state(id), BlockedExecution.objects.get(id=id).due_at) == ("parked", None)
    succeed(running)
    assert [d.id for d in lifecycle.pick_up(claim()).taken] == [id]


def test_one_that_is_parked_is_let_in_where_there_is_room():
    id = parked_until_due()
    assert lifecycle.run_now([id]).parked == {id}
    assert [d.id for d in lifecycle.pick_up(claim()).taken] == [id]


def test_while_a_mover_makes_it_due_the_person_waits_and_one_slot_is_given():
    id = parked_until_due()
    make_parked_due(id)
    with sessions(2) as (mover, person):
        mover.open()
        mover.do(lifecycle.move_due, ["default"])
        asked = person.begin(lifecycle.run_now, [id])
        person.wait_until_blocked()
        mover.commit()
        assert asked.result(PATIENCE).left == {id}
    until(lambda: state(id) == "ready")
    assert Slot.objects.get().message_id == id
