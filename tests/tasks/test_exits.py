"""What exits while a run is told of changes nothing of what the run has come to."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest

from django_pgbus import Snooze, signals, task
from django_pgbus.exceptions import TaskTimeout
from django_pgbus.models import Archived
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks.compat import task_finished, task_started
from django_pgbus.tasks.executor import Done, Executor, Run
from django_pgbus.tasks.lifecycle import GaveUp, PutOff
from django_pgbus.tasks.outcomes import Success
from django_pgbus.tasks.watch import Watch
from tests.line import COMMITTED, claim_one

asked = []


class Unspeakable(Exception):
    """Cannot be described, and exits when somebody tries."""

    def __str__(self):
        raise SystemExit(7)


class Secret(str):
    """An argument that exits when it is looked for in a traceback."""

    def __repr__(self):
        asked.append("argument")
        raise SystemExit(7)


def exit_now(*args, **kwargs):
    raise SystemExit(7)


def asks(exception, result):
    asked.append("backoff")
    return 9


@task
def succeeds():
    return 1


@task(transactional=True)
def commits():
    return 1


@task(max_attempts=2, backoff=lambda exception, result: 9)
def fails():
    raise ValueError("no")


@task(max_attempts=2, backoff=exit_now)
def fails_and_backs_off_by_exiting():
    raise ValueError("no")


@task(max_attempts=2, backoff=asks)
def unspeakable():
    raise Unspeakable


@task(max_attempts=2, backoff=asks, sensitive=("token",))
def login(token):
    raise ValueError("bad token hunter2")


@task(max_attempts=2)
def snoozes():
    raise Snooze(60)


@task(max_attempts=2, backoff=lambda exception, result: 9)
def ends_late():
    raise TaskTimeout("too late")


@pytest.fixture(autouse=True)
def _fresh():
    asked.clear()


@pytest.fixture
def announced():
    """What `loop_failed` said, as (part, kind of exception)."""
    heard = []

    def hear(*, part, exception, **kwargs):
        heard.append((part, type(exception)))

    signals.loop_failed.connect(hear)
    yield heard
    signals.loop_failed.disconnect(hear)


@pytest.fixture
def exits():
    """Let receivers of a signal exit."""
    connected = []

    def connect(*several):
        for signal in several:
            signal.connect(exit_now)
            connected.append(signal)

    yield connect
    for signal in connected:
        signal.disconnect(exit_now)


RECEIVER = ("receiver of a signal", SystemExit)


def prepared(name, attempts=1, arguments=()):
    delivery = Delivery(
        position=1,
        id=1,
        level=Level("default", 0),
        delivery=1,
        attempts=attempts,
        task=f"{__name__}.{name}",
        backend="default",
        payload=json.dumps({"args": list(arguments), "kwargs": {}}),
        errors=None,
        enqueued_at=datetime.now(UTC),
        confirmed_at=time.monotonic(),
    )
    return Executor(worker="w", watch=Watch()).prepare(delivery)


@pytest.mark.parametrize("signal", [task_started, task_finished], ids=["started", "finished"])
def test_a_receiver_that_exits_leaves_a_success_a_success(signal, exits, announced):
    exits(signal)
    outcome = prepared("succeeds").sync()
    assert (type(outcome), outcome.result) == (Success, "1")
    assert announced == [RECEIVER]


@pytest.mark.parametrize("name", ["succeeds", "fails"])
def test_an_async_receiver_that_exits_changes_nothing_either(name, announced):
    async def aexit(**kwargs):
        raise SystemExit(7)

    several = (task_started, task_finished, signals.attempt_failed)
    for signal in several:
        signal.connect(aexit)
    try:
        outcome = prepared(name).sync()
    finally:
        for signal in several:
            signal.disconnect(aexit)
    assert type(outcome) is (Success if name == "succeeds" else PutOff)
    assert announced == [RECEIVER, RECEIVER]


@COMMITTED
def test_a_receiver_that_exits_leaves_a_committed_run_done(exits, announced):
    commits.enqueue()
    exits(task_finished)
    assert type(Executor(worker="w", watch=Watch()).prepare(claim_one()).sync()) is Done
    assert Archived.objects.get().result == "1"
    assert announced == [RECEIVER]


@pytest.mark.parametrize(
    ("name", "signal", "delay"),
    [
        ("fails", signals.attempt_failed, 9.0),
        ("snoozes", signals.task_snoozed, 60.0),
        ("ends_late", signals.task_timed_out, 9.0),
    ],
    ids=["failed", "snoozed", "timed out"],
)
def test_a_receiver_that_exits_leaves_what_is_put_off_as_it_is(name, signal, delay, exits, announced):
    exits(signal)
    outcome = prepared(name).sync()
    assert (type(outcome), outcome.delay) == (PutOff, delay)
    assert announced == [RECEIVER]


def test_receivers_that_exit_leave_a_dead_letter_a_dead_letter(exits, announced):
    exits(task_finished, signals.task_dead_lettered)
    outcome = prepared("fails", attempts=2).sync()
    assert (type(outcome), outcome.reason) == (GaveUp, "exhausted")
    assert "ValueError: no" in outcome.error
    assert announced == [RECEIVER, RECEIVER]


def test_a_receiver_that_exits_leaves_what_cannot_run_any_more_a_dead_letter(exits, announced):
    exits(signals.task_dead_lettered)
    outcome = prepared("fails", attempts=3)
    assert (type(outcome), outcome.not_run) == (GaveUp, True)
    assert announced == [RECEIVER]


def test_a_receiver_that_exits_on_hearing_of_one_that_exits_changes_nothing_either(exits):
    exits(task_finished, signals.loop_failed)
    assert type(prepared("succeeds").sync()) is Success


def test_a_backoff_that_exits_is_broken_and_the_default_applies(exits, announced):
    outcome = prepared("fails_and_backs_off_by_exiting").sync()
    assert (type(outcome), outcome.reason) == (PutOff, "retry")
    assert 4.25 <= outcome.delay <= 5.75
    assert announced == []
    exits(signals.backoff_broken)
    outcome = prepared("fails_and_backs_off_by_exiting").sync()
    assert 4.25 <= outcome.delay <= 5.75
    assert "ValueError: no" in outcome.error
    assert announced == [RECEIVER]


def test_an_exception_that_exits_when_it_is_described_is_a_failed_attempt():
    outcome = prepared("unspeakable").sync()
    assert (type(outcome), outcome.delay) == (PutOff, 9.0)
    assert "Unspeakable" in outcome.error


@pytest.mark.parametrize(("attempts", "expected"), [(1, PutOff), (2, GaveUp)], ids=["attempts left", "used up"])
def test_a_failure_that_cannot_be_told_is_a_plain_failed_attempt_and_asks_nobody_again(attempts, expected, announced):
    run = prepared("login", attempts, ["hunter2"])
    run.call.args = [Secret("hunter2")]
    outcome = run.sync()
    assert type(outcome) is expected
    assert json.loads(outcome.error)["exception"] == "builtins.ValueError"
    assert "hunter2" not in outcome.error
    assert asked == ["argument"]
    assert announced == [("handling of a failed attempt", SystemExit)]


@pytest.mark.parametrize(("attempts", "expected"), [(1, PutOff), (2, GaveUp)], ids=["attempts left", "used up"])
def test_a_run_that_ends_before_it_has_come_to_anything_is_a_failed_attempt(attempts, expected, announced, monkeypatch):
    run = prepared("unspeakable", attempts)
    assert isinstance(run, Run)
    monkeypatch.setattr(type(run.runnable), "enter", exit_now)
    assert type(run.sync()) is expected
    assert not asked
    assert announced == [("end of a run", SystemExit)]
