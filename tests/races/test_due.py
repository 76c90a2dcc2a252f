"""A delayed task goes into the line once, when it is due by the database's clock, whoever moves it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from django_pgbus.models import Archived, Delayed, Message
from django_pgbus.queues import delayed, sql, sweeps, wake
from django_pgbus.tasks import lifecycle
from tests.line import COMMITTED, claim, claim_one, fail, make_due, put, state, work
from tests.running import a_worker
from tests.sessions import execute, sessions, until

pytestmark = [COMMITTED, pytest.mark.races]


def later(seconds=3600.0, **more):
    return lifecycle.enqueue(work(due=timedelta(seconds=seconds), **more)).id


@pytest.mark.parametrize(
    "due", [timedelta(0), timedelta(seconds=-1), timezone.now() - timedelta(days=400)], ids=["now", "past", "long past"]
)
def test_what_is_due_already_goes_into_the_line_at_once(due):
    id = lifecycle.enqueue(work(due=due)).id
    assert state(id) == "ready"
    assert claim_one().id == id


@pytest.mark.proves("due-tasks-are-moved-once")
def test_due_exactly_now_is_due():
    """The instant itself counts: `<=`, by the clock of the statement."""
    id = later()
    with transaction.atomic(), sessions():
        execute("UPDATE pgbus_delayed SET due_at = statement_timestamp()")
        assert len(lifecycle.move_due(["default"])) == 1
    assert state(id) == "ready"


@pytest.mark.proves("due-tasks-are-moved-once")
def test_one_moment_before_is_not():
    id = later()
    assert lifecycle.move_due(["default"]) == []
    assert state(id) == "delayed"


@pytest.mark.proves("due-tasks-are-moved-once")
def test_two_movers_take_different_rows():
    ids = [later() for _ in range(6)]
    make_due(*ids)
    with sessions(2) as (one, two):
        one.open()
        first = one.do(delayed.move_due, ["default"], 2)
        second = two.do(delayed.move_due, ["default"], 10)
        one.commit()
    assert (len(first), len(second)) == (2, 4)
    assert sorted(Message.objects.values_list("id", flat=True)) == ids
    assert not Delayed.objects.exists()


def test_a_mover_that_rolls_back_moved_nothing():
    id = later()
    make_due(id)
    with sessions() as mover:
        mover.open()
        mover.do(lifecycle.move_due, ["default"])
        mover.roll_back()
    assert state(id) == "delayed"
    assert len(lifecycle.move_due(["default"])) == 1


def test_moved_ones_get_fresh_positions_in_the_order_of_their_due_times():
    second, first = later(), later()
    fresh = put()
    make_due(first)
    execute(
        "UPDATE pgbus_delayed SET due_at = statement_timestamp() - interval '1 millisecond' WHERE id = %s", [second]
    )
    lifecycle.move_due(["default"])
    assert [d.id for d in claim()] == [*fresh, first, second]


def test_an_older_task_is_not_overtaken_for_ever_by_those_that_retry():
    (retrying,) = put()
    fail(claim_one())
    (waiting,) = put()
    lifecycle.move_due(["default"])
    assert [d.id for d in claim()] == [waiting, retrying]


def test_movers_serve_their_own_queues_and_the_dispatcher_the_rest():
    mine, forgotten = later(queue="mine"), later(queue="forgotten")
    make_due(mine, forgotten)
    assert [row[0] for row in lifecycle.move_due(["mine"])] == ["mine"]
    assert sweeps.move_forgotten() == 1
    assert state(forgotten) == "ready"


def test_a_batch_is_bounded():
    ids = [one.id for one in lifecycle.enqueue_many(work(due=timedelta(hours=1)), ["{}"] * 30)]
    make_due(*ids)
    assert len(delayed.move_due(["default"], 20)) == 20
    assert len(delayed.move_due(["default"], 20)) == 10


@pytest.mark.needs_session("it is woken by a notification", listen="none")
@pytest.mark.parametrize("seconds", [0.3, 1.2])
def test_a_worker_asleep_is_told_of_a_task_due_before_its_next_poll(seconds, monkeypatch):
    monkeypatch.setattr(wake, "wakes_for_delay", lambda seconds: seconds < 60)
    with a_worker(poll=30.0):
        put()
        until(Archived.objects.exists)
        id = later(seconds)
        until(lambda: state(id) == "succeeded")
    lateness = execute("SELECT extract(epoch FROM started_at - enqueued_at) FROM pgbus_archive WHERE id = %s", [id])[0][
        0
    ]
    assert float(lateness) >= seconds


def test_the_first_task_ever_may_be_a_delayed_one():
    """Fresh sequence, an idle worker that has looked around a few times, and then it moves the first one itself."""
    execute("ALTER SEQUENCE pgbus_position RESTART WITH 1")
    id = later(3600)
    with a_worker(poll=0.05) as worker:
        line = worker.process._consumer._line
        until(lambda: len(line.floors) and not line.look_soon() and line._last_position >= 0)
        for _ in range(5):
            line.look_soon()
            seen = worker.process._consumer._next_poll
            until(lambda seen=seen: worker.process._consumer._next_poll > seen)
        make_due(id)
        until(lambda: state(id) == "succeeded")


def test_the_time_a_transaction_takes_is_not_added_to_the_delay(monkeypatch):
    """Enqueued early in a long transaction: what is left is counted from the commit."""
    notes: list[list] = []
    monkeypatch.setattr(wake, "notify", notes.extend)
    now = wake.time.monotonic

    with transaction.atomic():
        later(1.0)
        monkeypatch.setattr(wake.time, "monotonic", lambda: now() + 0.9)
    monkeypatch.undo()
    ((kind, queue, seconds),) = notes
    assert (kind, queue) == ("due", "default")
    assert 0 <= seconds <= 0.1


def test_the_mover_uses_the_index_and_the_clock_that_keeps_it():
    assert "statement_timestamp()" in sql.MOVE_DUE.sql
    assert "SKIP LOCKED" in sql.MOVE_DUE.sql
