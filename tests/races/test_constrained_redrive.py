"""A redriven dead letter takes its key and its slot again, or stays and says why: it comes in by the door of an enqueue."""

from __future__ import annotations

import pytest

from django_pgbus import ConcurrencyLimitExceeded, JobNotUnique
from django_pgbus.models import DeadLetter
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.outcomes import HeldElsewhere, LimitReached
from tests.constrained import enqueue, keys, one, one_or_error, parked, run, slots, unique, unique_and_one
from tests.line import COMMITTED, give_up, state, succeed
from tests.races.guards import at_once, came_to, fails_if, started, waits, without
from tests.sessions import sessions

pytestmark = [COMMITTED, pytest.mark.races]


def dead(task, *args):
    delivery = started(task, *args)
    give_up(delivery)
    return delivery.id


def enqueue_came_to(key):
    try:
        return enqueue(unique, key)
    except JobNotUnique:
        return JobNotUnique


def redrive(*ids):
    return lifecycle.redrive(ids)


@pytest.mark.proves("a-redrive-takes-key-and-slot-again")
@fails_if(without("LOCK_DEAD", "FOR UPDATE OF letter"))
def test_two_who_redrive_and_it_is_there_once():
    id = dead(one, "a")
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(redrive, id).ids == [id]
        begun = bob.begin(redrive, id)
        bob.wait_until_blocked()
        ann.commit()
        came = came_to(begun)
        assert not isinstance(came, type)
        assert came.ids == []
    assert slots("a") == {id: 1}
    assert not DeadLetter.objects.exists()


LETS_ALL_IN = "tasks.ENTER", ("OR asked.id IN (SELECT message_id FROM taken)", "OR true")


@pytest.mark.parametrize("end", ["commits", "rolls back"])
@fails_if(without(*LETS_ALL_IN))
def test_an_enqueue_waits_for_a_redrive_that_takes_its_key(end):
    id = dead(unique, "a")
    with sessions(2) as (person, web):
        person.open()
        assert person.do(redrive, id).ids == [id]
        begun = web.begin(enqueue, unique, "a")
        assert waits(web, begun)
        person.commit() if end == "commits" else person.roll_back()
        came = came_to(begun)
    assert (came is JobNotUnique) == (end == "commits")
    assert enqueue_came_to("a") is JobNotUnique
    assert keys() == {"a": id if end == "commits" else came}
    assert state(id) == ("ready" if end == "commits" else "dead")


@pytest.mark.proves("a-redrive-takes-key-and-slot-again")
@pytest.mark.parametrize("end", ["commits", "rolls back"])
@fails_if(without(*LETS_ALL_IN))
def test_a_redrive_waits_for_an_enqueue_that_takes_its_key(end):
    id = dead(unique, "a")
    with sessions(2) as (web, person):
        web.open()
        other = web.do(enqueue, unique, "a")
        begun = person.begin(redrive, id)
        assert waits(person, begun)
        web.commit() if end == "commits" else web.roll_back()
        redriven = begun.result(20)
    if end == "commits":
        assert redriven.refused == {id: HeldElsewhere(key="a", holder=other)}
    else:
        assert redriven.ids == [id]
    assert state(id) == ("dead" if end == "commits" else "ready")
    assert enqueue_came_to("a") is JobNotUnique


def test_a_redrive_and_an_enqueue_that_want_the_last_place():
    id = dead(one_or_error, "a")
    with sessions(2) as (person, web):
        person.open()
        assert person.do(redrive, id).ids == [id]
        begun = web.begin(enqueue, one_or_error, "a")
        web.wait_until_blocked()
        person.commit()
        assert came_to(begun) is ConcurrencyLimitExceeded
    assert slots("a") == {id: 1}


def test_of_many_each_is_judged_for_itself():
    free, held, full, plain = dead(unique, "a"), dead(unique, "b"), dead(one_or_error, "c"), dead(one, "d")
    holder = enqueue(unique, "b")
    enqueue(one_or_error, "c")
    redriven = redrive(free, held, full, plain)
    assert redriven.ids == [free, plain]
    assert redriven.refused == {held: HeldElsewhere(key="b", holder=holder), full: LimitReached(key="c", to=1)}
    assert [state(id) for id in (free, held, full, plain)] == ["ready", "dead", "dead", "ready"]


def test_two_dead_letters_of_one_key_and_the_first_has_it():
    first, second = dead(unique, "a"), dead(unique, "a")
    redriven = redrive(second, first)
    assert redriven.ids == [first]
    assert redriven.refused == {second: HeldElsewhere(key="a", holder=first)}


def test_a_redrive_makes_no_completion_wait():
    running = started(one_or_error, "a")
    give_up(running)
    id, other = running.id, started(one, "a")
    assert redrive(id).refused == {id: LimitReached(key="a", to=1)}
    with sessions(2) as (person, worker):
        person.open()
        assert person.do(redrive, id).ids == []
        assert at_once(worker, succeed, other) == {other.id}
        assert person.do(redrive, id).ids == [id]
        waiting = at_once(worker, enqueue, one, "a")
        person.commit()
    assert (slots("a"), parked()) == ({id: 1}, [waiting])


def test_the_run_that_died_cannot_come_back_after_the_redrive():
    delivery = started(unique_and_one, "a")
    give_up(delivery)
    redrive(delivery.id)
    assert succeed(delivery) == set()
    assert (keys(), slots()) == ({"a": delivery.id}, {delivery.id: 1})
    assert run().delivery > delivery.delivery + 1
