"""The beat renews everything of its process in one statement, and waits for nobody."""

from __future__ import annotations

import time

import pytest
from django.db import connection

from django_pgbus.models import Message
from django_pgbus.queues import heartbeat
from tests.line import COMMITTED, LEASE, claim, claim_one, fails_without, holding, leased_for, put, succeed
from tests.sessions import execute, sessions

pytestmark = [COMMITTED, pytest.mark.races]


def shorten(*ids):
    execute(
        "UPDATE pgbus_messages SET leased_until = statement_timestamp() + interval '5 s' WHERE id = ANY (%s)",
        [list(ids)],
    )


@pytest.mark.proves("a-beat-is-one-statement")
def test_it_waits_for_nobody_and_calls_nobody_superseded_who_is_only_locked():
    first, second = put(2)
    locked, free = claim()
    shorten(first, second)
    held = holding(locked, free)
    locked.confirmed_at = free.confirmed_at = 0.0
    with sessions() as person:
        person.open()
        person.sql("SELECT 1 FROM pgbus_messages WHERE id = %s FOR UPDATE", first)
        execute("SET lock_timeout = '1s'")
        beat = heartbeat.renew(held, LEASE)
        execute("RESET lock_timeout")
        assert leased_for(first) < 6
        assert leased_for(second) > LEASE - 5
        assert (beat.superseded, locked.superseded) == ([], False)
        assert (locked.confirmed_at, free.confirmed_at > 0) == (0.0, True)
        person.commit()
    heartbeat.renew(held, LEASE)
    assert leased_for(first) > LEASE - 5
    assert locked.confirmed_at > 0


def test_a_person_who_reads_for_update_is_not_kept_waiting_by_keys():
    """It takes the weaker lock: a foreign key to the line, if somebody makes one, does not stop beats."""
    put()
    delivery = claim_one()
    shorten(delivery.id)
    with sessions() as person:
        person.open()
        person.sql("SELECT 1 FROM pgbus_messages FOR KEY SHARE")
        heartbeat.renew(holding(delivery), LEASE)
        assert leased_for(delivery.id) > LEASE - 5
        person.commit()


@pytest.mark.proves("a-beat-is-one-statement")
def test_one_statement_for_however_many():
    put(50)
    held = holding(*claim())
    seen = []
    with connection.execute_wrapper(lambda run, *args: seen.append(args[0]) or run(*args)):
        heartbeat.renew(held, LEASE)
    assert len(seen) == 1


def test_what_was_settled_here_meanwhile_is_not_called_superseded():
    put()
    delivery = claim_one()
    held = holding(delivery)
    deliveries = held.all
    held.all = lambda: (deliveries(), succeed(delivery), held.drop([delivery]))[0]
    assert heartbeat.renew(held, LEASE).superseded == []
    assert not delivery.superseded


def test_it_says_which_runs_have_started():
    put(2)
    started, buffered = claim()
    started.started = True
    heartbeat.renew(holding(started, buffered), LEASE)
    assert dict(Message.objects.values_list("id", "started")) == {started.id: True, buffered.id: False}


@fails_without("RENEW", "message.started OR mine.started", "mine.started")
def test_a_start_once_said_stays_said():
    """A suspect counts as started from its claim on, whatever its worker has got to."""
    put()
    delivery = claim_one()
    execute("UPDATE pgbus_messages SET started = true")
    heartbeat.renew(holding(delivery), LEASE)
    assert Message.objects.get().started


def test_confirmed_means_before_the_statement_was_sent():
    put()
    delivery = claim_one()
    before = time.monotonic()
    heartbeat.renew(holding(delivery), LEASE)
    assert before <= delivery.confirmed_at <= time.monotonic()


def test_nothing_held_is_no_statement():
    seen = []
    with connection.execute_wrapper(lambda run, *args: seen.append(args[0]) or run(*args)):
        heartbeat.renew(holding(), LEASE)
    assert seen == []


def test_a_newer_delivery_of_the_same_message_takes_the_place_of_the_older():
    """Claimed again by the process that still runs the old one: the old one's end does not drop the new one."""
    put()
    old = claim_one()
    held = holding(old)
    execute("UPDATE pgbus_messages SET leased_until = NULL")
    new = claim_one()
    held.add([new])
    assert held.all() == [new]
    assert held.drop([old]) == [], "the supervisor is not told that this message is held no more"
    assert held.has(new)
    assert heartbeat.renew(held, LEASE).superseded == []
