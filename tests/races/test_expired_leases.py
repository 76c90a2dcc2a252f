"""A lease that lapsed is found wherever it stands, by any worker's look, and released once."""

from __future__ import annotations

import pytest

from django_pgbus.models import Message
from django_pgbus.queues import heartbeat
from django_pgbus.queues.line import Line
from tests.line import (
    COMMITTED,
    DEFAULT,
    LEASE,
    SUSPECTS,
    claim,
    claim_one,
    fails_without,
    holding,
    lapse,
    leased_for,
    make_due,
    put,
    release,
    server_started,
    snooze,
    state,
    succeed,
)
from tests.sessions import execute, sessions, until

pytestmark = [COMMITTED, pytest.mark.races]


def look(line, levels=(DEFAULT, SUSPECTS)):
    line.look_soon()
    return line.poll(list(levels), ["default"], LEASE)


def looks(line, number=5):
    for _ in range(number):
        polled = look(line)
    return polled


def held_below_the_base(line):
    """One message leased for long, many others done: the base has passed it."""
    put(20)
    first, *others = claim(line)
    succeed(*others)
    until(lambda: look(line) and line.floors[DEFAULT].base >= first.position)
    return first


def test_a_lease_that_lapses_below_the_base_is_found():
    line = Line()
    held = held_below_the_base(line)
    assert looks(line).lapsed == []
    lapse(held.id)
    assert look(line).lapsed == [held.id]


def test_a_lease_that_lapses_between_base_and_floor_is_found():
    line = Line()
    with sessions() as older:
        older.open()
        older.sql("SELECT pg_current_xact_id()")  # keeps the base where it is
        put()
        held = claim_one(line=line)
        looks(line)
        assert line.floors[DEFAULT].base < held.position <= line.floors[DEFAULT].reach()
        lapse(held.id)
        assert look(line).lapsed == [held.id]


@pytest.mark.proves("a-lapsed-lease-is-found")
def test_an_idle_worker_finds_the_lapsed_lease_of_another():
    """It never claimed anything: the lease stands above its floor, and later, when it is idle for long, below."""
    idle = Line()
    put()
    held = claim_one()
    assert looks(idle, 1).lapsed == []
    lapse(held.id)
    assert look(idle).lapsed == [held.id]
    looks(idle)
    assert look(idle).lapsed == [held.id]


def test_a_lapsed_lease_that_is_locked_just_now_is_released_later():
    """The release waits for nobody. What it passed over below the base must not be forgotten."""
    line = Line()
    held = held_below_the_base(line)
    lapse(held.id)
    with sessions() as person:
        person.open()
        person.sql("SELECT 1 FROM pgbus_messages WHERE id = %s FOR UPDATE", held.id)
        assert look(line).lapsed == [held.id]
        assert release(held.id) == []
        person.commit()
    assert looks(line).lapsed == [held.id]
    assert release(held.id) == [held.id]
    assert looks(line).lapsed == []


def test_two_looks_release_it_once():
    put()
    held = claim_one()
    lapse(held.id)
    with sessions(2) as (one, two):
        one.open()
        assert one.do(release, held.id) == [held.id]
        assert two.do(release, held.id) == []
        one.commit()
    message = Message.objects.get()
    assert (message.delivery, message.attempts, message.suspect) == (1, 0, True)


@pytest.mark.proves("a-lapsed-lease-is-found")
def test_a_lease_renewed_between_look_and_release_stays():
    line = Line()
    put()
    held = claim_one(line=line)
    lapse(held.id)
    assert look(line).lapsed == [held.id]
    execute("UPDATE pgbus_messages SET leased_until = statement_timestamp() + interval '30 s'")
    assert release(held.id) == []
    assert state(held.id) == "running"


def test_a_released_message_is_claimed_again_from_the_end_of_the_line():
    line = Line()
    held = held_below_the_base(line)
    put()
    lapse(held.id)
    release(held.id)
    again = claim_one(line=line, levels=[SUSPECTS])
    assert (again.id, again.delivery, again.level) == (held.id, held.delivery + 1, SUSPECTS)
    assert again.position > held.position


@pytest.mark.proves("a-lapsed-lease-is-never-renewed")
@fails_without("RENEW", "message.leased_until > statement_timestamp()", "true")
def test_a_lapsed_lease_is_never_renewed():
    """Not by its own holder either: somebody may have seen it lapsed, and be about to release it."""
    put()
    delivery = claim_one()
    lapse(delivery.id)
    beat = heartbeat.renew(holding(delivery), LEASE)
    assert leased_for(delivery.id) < 0
    assert not beat.superseded, "nobody has taken over yet: its process gives up when its own clock says so"


@pytest.fixture
def just_started(monkeypatch):
    monkeypatch.undo()
    server_started(monkeypatch, "5 s")


@pytest.mark.proves("a-restart-of-postgresql-costs-no-run")
def test_after_a_restart_no_lease_lapses_for_the_length_of_a_lease(just_started):
    line = Line()
    put()
    delivery = claim_one(line=line)
    lapse(delivery.id)
    assert look(line).lapsed == []
    assert look(Line()).lapsed == []
    assert release(delivery.id) == []
    assert state(delivery.id) == "running"


@pytest.mark.proves("a-restart-of-postgresql-costs-no-run")
def test_after_a_restart_the_living_renew_what_has_lapsed_meanwhile(just_started):
    put()
    delivery = claim_one()
    lapse(delivery.id)
    heartbeat.renew(holding(delivery), LEASE)
    assert leased_for(delivery.id) > LEASE - 5


def test_after_a_restart_a_released_message_is_not_renewed(just_started):
    """Released before the server went down: no longer leased to anybody."""
    put()
    delivery = claim_one()
    execute("UPDATE pgbus_messages SET leased_until = NULL")
    assert heartbeat.renew(holding(delivery), LEASE).superseded == [delivery]


def test_the_grace_after_a_restart_ends_with_one_lease(monkeypatch):
    monkeypatch.undo()
    server_started(monkeypatch, "31 s")
    put()
    delivery = claim_one()
    lapse(delivery.id)
    heartbeat.renew(holding(delivery), LEASE)
    assert leased_for(delivery.id) < 0
    assert release(delivery.id) == [delivery.id]


def test_a_delayed_message_has_no_lease_to_lapse():
    put()
    delivery = claim_one()
    snooze(delivery, delay=3600)
    line = Line()
    assert looks(line).lapsed == []
    assert release(delivery.id) == []
    make_due(delivery.id)
    assert state(delivery.id) == "delayed"
    assert claim() == []
