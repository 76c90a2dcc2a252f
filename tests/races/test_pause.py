"""Pausing a queue stops claims; what runs finishes, and nothing that waits is lost or counted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgbus.models import Archived, Message
from django_pgbus.queues import queue
from django_pgbus.queues.line import Line
from django_pgbus.tasks import lifecycle
from tests import jobs
from tests.line import COMMITTED, DEFAULT, LEASE, claim_one, put, succeed, work
from tests.running import a_worker
from tests.sessions import sessions, until

pytestmark = [COMMITTED, pytest.mark.races]


def paused(line=None):
    return (line or Line()).poll([], [], LEASE).levels


@pytest.mark.proves("pause-holds-within-a-poll")
def test_a_poll_sees_a_pause_once_it_is_committed():
    put()
    with sessions() as person:
        person.open()
        person.do(lifecycle.pause_queue, "default", by="ann")
        assert paused() == {DEFAULT: False}
        person.commit()
    assert paused() == {DEFAULT: True}
    assert lifecycle.resume_queue("default") is True
    assert paused() == {DEFAULT: False}


def test_a_claim_before_the_pause_may_finish():
    put()
    delivery = claim_one()
    lifecycle.pause_queue("default")
    assert succeed(delivery) == {delivery.id}


def test_two_who_pause_and_the_first_is_remembered():
    with sessions(2) as (ann, bob):
        ann.open()
        ann.do(lifecycle.pause_queue, "default", by="ann")
        late = bob.begin(lifecycle.pause_queue, "default", by="bob")
        bob.wait_until_blocked()
        ann.commit()
        late.result(20)
        assert bob.sql("SELECT paused_by FROM pgbus_queue_states") == [("ann",)]
        assert ann.do(lifecycle.resume_queue, "default") is True
        assert bob.do(lifecycle.resume_queue, "default") is False


def test_a_worker_does_not_take_the_first_message_ever_of_a_paused_queue():
    """It learns of the queue by the wake-up, which does not say whether it is paused."""
    with a_worker() as worker:
        jobs.noop.enqueue()
        until(lambda: Archived.objects.count() == 1)
        queue.pause("fresh")
        until(lambda: "fresh" in worker.process._consumer._paused)
        jobs.noop.using(queue_name="fresh").enqueue()
        jobs.noop.enqueue()  # whose wake-up is read after that of the other
        until(lambda: Archived.objects.count() >= 2)
        assert Message.objects.get(queue="fresh").delivery == 0
        lifecycle.resume_queue("fresh")
        until(lambda: Archived.objects.count() == 3)


def test_a_worker_does_not_take_the_first_delayed_message_of_a_paused_queue():
    """It moves what is due, and knows nothing yet of the part of the line it has moved it to."""
    queue.pause("mail")
    with a_worker("mail: 2; default: 1"):
        lifecycle.enqueue(work(queue="mail", due=timedelta(seconds=0.1)))
        until(lambda: Message.objects.filter(queue="mail").exists())
        jobs.noop.enqueue()
        until(lambda: Archived.objects.exists())
        assert Message.objects.get(queue="mail").delivery == 0
        lifecycle.resume_queue("mail")
        until(lambda: not Message.objects.exists())
