"""Sending later: due by the database's clock, apart from the line, in the order asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import time_machine

from django_pgbus.models import Delayed, Message
from django_pgbus.queues import delayed
from django_pgbus.tasks import lifecycle
from tests.line import COMMITTED, claim, make_due, put, state, work
from tests.sessions import execute

pytestmark = COMMITTED


def due_in(id):
    ((seconds,),) = execute(
        "SELECT extract(epoch FROM due_at - enqueued_at)::float8 FROM pgbus_delayed WHERE id = %s", [id]
    )
    return seconds


def test_a_delay_counts_from_the_databases_clock():
    id = lifecycle.enqueue(work(due=timedelta(seconds=90))).id
    assert due_in(id) == pytest.approx(90, abs=0.001)


@pytest.mark.proves("the-databases-clock")
@pytest.mark.parametrize("off", [timedelta(minutes=-10), timedelta(minutes=10)])
def test_a_host_whose_clock_is_wrong_changes_nothing(off):
    with time_machine.travel(datetime.now(UTC) + off):
        id = lifecycle.enqueue(work(due=timedelta(seconds=90))).id
        ready = lifecycle.enqueue(work()).id
        claimed = claim()
    assert due_in(id) == pytest.approx(90, abs=0.001)
    assert [d.id for d in claimed] == [ready]
    assert execute("SELECT leased_until > now() + interval '25 s' FROM pgbus_messages") == [(True,)]


def test_a_moment_is_kept_to_the_microsecond():
    moment = datetime(2090, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    id = lifecycle.enqueue(work(due=moment)).id
    assert Delayed.objects.get(id=id).due_at == moment


def test_many_keep_their_order_and_their_ids():
    payloads = [f'{{"args": [{n}], "kwargs": {{}}}}' for n in range(2500)]
    sent = lifecycle.enqueue_many(work(due=timedelta(hours=1)), payloads)
    stored = dict(execute("SELECT id, payload::text FROM pgbus_delayed"))
    assert [stored[one.id] for one in sent] == payloads
    assert [one.id for one in sent] == sorted(one.id for one in sent)


def test_many_that_are_due_already_keep_their_order_in_the_line():
    payloads = [f'{{"args": [{n}], "kwargs": {{}}}}' for n in range(20)]
    sent = lifecycle.enqueue_many(work(due=timedelta(0)), payloads)
    assert [(d.id, d.payload) for d in claim()] == [(one.id, text) for one, text in zip(sent, payloads, strict=True)]


def test_the_id_stays_when_it_is_moved():
    sent = lifecycle.enqueue(work(due=timedelta(hours=1), queue="q", priority=9))
    make_due(sent.id)
    ((queue, priority, suspect, position),) = delayed.move_due(["q"])
    message = Message.objects.get(id=sent.id)
    assert (queue, priority, suspect, position) == ("q", 9, False, message.position)
    assert message.enqueued_at == sent.enqueued_at


def test_no_queue_no_statement(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert delayed.move_due([]) == []


def test_a_far_future_does_not_slow_those_that_are_due():
    """The mover reads by (queue, due time): what is not due yet is not looked at."""
    lifecycle.enqueue_many(work(due=timedelta(days=1)), ["{}"] * 1000)
    id = lifecycle.enqueue(work(due=timedelta(hours=1))).id
    make_due(id)
    assert len(delayed.move_due(["default"])) == 1
    assert (state(id), put() != []) == ("ready", True)
