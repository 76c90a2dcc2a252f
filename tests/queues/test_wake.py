"""Waking after commit: who is told, who is not told twice, and what is left to polls."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import OperationalError, transaction

from django_pgbus.models import Level as LevelRow
from django_pgbus.queues import wake
from django_pgbus.queues.message import Level
from django_pgbus.tasks import lifecycle
from tests.line import COMMITTED, claim_one, give_up, hand_back, lapse, put, release, work
from tests.sessions import sessions, until

pytestmark = COMMITTED


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(wake, "time", clock)
    return clock


@pytest.fixture
def notes(monkeypatch, clock):
    sent: list[list] = []
    monkeypatch.setattr(wake, "notify", sent.extend)
    return sent


def test_a_note_names_queue_priority_and_lowest_position(notes):
    with transaction.atomic():
        put(3, queue="mail", priority=7)
        put(2, queue="mail", priority=7)
    with sessions() as other:
        ((lowest,),) = other.sql("SELECT min(position) FROM pgbus_messages")
    assert notes == [["ready", "mail", 7, False, lowest]]


def test_sends_that_follow_closely_are_not_told_again(notes, clock):
    """A woken worker looks on for 55 ms, and what was committed within 50 ms is among what it finds."""
    for pause in (0, 0.015, 0.030):
        clock.now += pause
        put()
    assert len(notes) == 1
    clock.now += 0.006
    put()
    assert len(notes) == 2


def test_each_queue_and_priority_is_told_of(notes):
    put(queue="a")
    put(queue="b")
    put(queue="b", priority=1)
    assert [note[1:3] for note in notes] == [["a", 0], ["b", 0], ["b", 1]]


def test_a_long_transaction_wakes_even_if_another_has_just_done_so(notes, clock):
    """Its position is older than what the worker may have passed meanwhile."""
    with transaction.atomic():
        put()
        clock.now += 0.5
        with sessions() as other:
            other.do(put)
    assert len(notes) == 2


def test_the_length_of_a_transaction_counts_from_its_first_enqueue(notes, clock):
    with transaction.atomic():
        clock.now += 10
        put()
    put()
    assert len(notes) == 1


def test_levels_are_announced_once_a_minute_and_process(notes, clock):
    put()
    LevelRow.objects.all().delete()
    clock.now += 59
    put()
    assert not LevelRow.objects.exists()
    clock.now += 2
    put()
    assert LevelRow.objects.get().queue == "default"


def test_levels_are_written_after_the_commit_in_a_transaction_of_their_own(notes):
    """Two producers of one new queue would wait for each other's transactions otherwise."""
    with sessions(2) as (one, two):
        for producer in (one, two):
            producer.open()
            producer.do(put, queue="new")
        assert not LevelRow.objects.exists()
        for producer in (two, one):
            producer.commit()
    assert LevelRow.objects.get().queue == "new"


def test_levels_are_announced_anew_when_their_table_was_emptied(notes):
    """As between two tests of a project whose worker runs: for a minute it would not find what is enqueued."""
    put()
    call_command("flush", interactive=False, verbosity=0)
    assert not LevelRow.objects.exists()
    put()
    assert LevelRow.objects.count() == 1


def test_an_announcement_that_failed_is_made_again(notes, monkeypatch):
    real = wake.write_levels

    def lost(levels):
        monkeypatch.setattr(wake, "write_levels", real)
        raise OperationalError("gone")

    monkeypatch.setattr(wake, "write_levels", lost)
    put()
    assert not LevelRow.objects.exists()
    put()
    assert LevelRow.objects.exists()


def test_a_delayed_task_announces_its_level_and_wakes_only_if_it_is_due_soon(notes):
    lifecycle.enqueue(work(queue="later", due=timedelta(hours=1)))
    assert LevelRow.objects.get().queue == "later"
    assert notes == []
    lifecycle.enqueue(work(queue="soon", due=timedelta(seconds=0.5)))
    ((kind, queue, seconds),) = notes
    assert (kind, queue) == ("due", "soon")
    assert 0.4 < seconds <= 0.5


def test_the_soonest_of_a_transaction_is_told_as_it_is_at_the_commit(notes, clock):
    with transaction.atomic():
        lifecycle.enqueue(work(due=timedelta(seconds=30)))
        lifecycle.enqueue(work(due=timedelta(seconds=20)))
        clock.now += 19
    ((kind, _, seconds),) = notes
    assert kind == "due"
    assert seconds == pytest.approx(1, abs=0.1)


def test_one_that_came_due_before_its_commit_is_told_of_at_once(notes, clock):
    with transaction.atomic():
        lifecycle.enqueue(work(due=timedelta(seconds=20)))
        clock.now += 100
    assert notes == [["due", "default", 0.0]]


@pytest.mark.parametrize("way", ["redrive", "hand back", "lapse"])
def test_whatever_comes_back_into_the_line_is_told_of(way, notes):
    (id,) = put()
    delivery = claim_one()
    notes.clear()
    if way == "redrive":
        give_up(delivery)
        lifecycle.redrive([id])
    elif way == "hand back":
        hand_back(delivery)
    else:
        lapse(id)
        release(id)
    with sessions() as other:
        ((position,),) = other.sql("SELECT position FROM pgbus_messages")
    assert notes == [["ready", "default", 0, way == "lapse", position]]
    assert LevelRow.objects.filter(suspect=way == "lapse").exists()


@pytest.mark.needs_session("it listens itself", listen="none")
def test_notes_arrive_where_somebody_listens():
    with sessions() as listener:
        session = listener.do(_listening)
        try:
            put(queue="mail")
            until(lambda: ["ready", "mail"] in [note[:2] for note in listener.do(session.wait, 0.1)])
        finally:
            listener.do(session.close)


def _listening():
    from django_pgbus.postgres.listen import Listener

    session = Listener()
    session.open()
    return session


def test_the_memory_of_what_was_said_is_bounded(clock):
    sent = wake._Sent()
    for number in range(10_500):
        sent.should_wake((f"q{number}", 0), clock.now)
        sent.note_announced([Level(f"q{number}", 0)], clock.now)
    assert len(sent.woken) <= 10_001
    assert len(sent.announced) <= 10_001
