"""A `TaskResult` is made for whoever looks at it, and for nobody else."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_pgbus import task
from django_pgbus.tasks import running
from django_pgbus.tasks.compat import TaskResultStatus, task_finished, task_signals, task_started
from django_pgbus.tasks.executor import Executor, Run
from django_pgbus.tasks.listeners import is_heard
from django_pgbus.tasks.outcomes import PutOff, Success
from django_pgbus.tasks.watch import Watch
from tests.line import claim_one

pytestmark = pytest.mark.django_db

asked: list[Any] = []


def ask(exception, result):
    asked.append((result, result.status, [error.exception_class_path for error in result.errors]))
    return 9


@task
def double(number):
    return number * 2


@task(takes_context=True)
def whoami(context):
    return context.task_result.id


@task(max_attempts=3)
def fail():
    raise ValueError("no")


@task(max_attempts=3, backoff=ask)
def fail_and_ask():
    raise ValueError("no")


@pytest.fixture
def made(monkeypatch):
    """How many results were made."""
    results = []

    def making(**values):
        results.append(make(**values))
        return results[-1]

    make = running.running
    monkeypatch.setattr(running, "running", making)
    return results


@pytest.fixture
def quiet():
    """Django's log line is not written."""
    before = task_signals.logger.level
    task_signals.logger.setLevel(logging.WARNING)
    yield
    task_signals.logger.setLevel(before)


@pytest.fixture
def listen():
    """Connect a receiver that keeps what it is sent."""
    connected = []

    def connect(signal):
        heard: list[Any] = []

        def receive(sender, task_result, **kwargs):
            heard.append((task_result, task_result.status, task_result.started_at, task_result.finished_at))

        signal.connect(receive)
        connected.append((signal, receive))
        return heard

    yield connect
    for signal, receive in connected:
        signal.disconnect(receive)


def run():
    executor = Executor(worker="w", watch=Watch())
    prepared = executor.prepare(claim_one())
    assert isinstance(prepared, Run)
    return executor.run(prepared)


def test_a_run_that_nobody_listens_to_makes_none(quiet, made):
    double.enqueue(21)
    outcome = run()
    assert isinstance(outcome, Success)
    assert (outcome.result, made) == ("42", [])


def test_a_task_that_takes_its_context_has_one_and_only_one(quiet, made):
    id = whoami.enqueue().id
    assert run().result == f'"{id}"'
    (result,) = made
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, id)


def test_a_receiver_of_the_start_gets_one_and_it_is_that_of_the_end(quiet, made, listen):
    began, ended = listen(task_started), listen(task_finished)
    double.enqueue(21)
    run()
    assert [(heard[0], heard[1]) for heard in began] == [(made[0], TaskResultStatus.RUNNING)]
    assert [(heard[0], heard[1]) for heard in ended] == [(made[0], TaskResultStatus.SUCCESSFUL)]
    assert (made[0].return_value, made[0].worker_ids, made[0].args) == (42, ["w"], [21])


def test_a_receiver_of_the_end_alone_learns_when_it_began(quiet, listen):
    ended = listen(task_finished)
    double.enqueue(21)
    run()
    ((_, status, started, finished),) = ended
    assert status == TaskResultStatus.SUCCESSFUL
    assert started <= finished


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 2), (logging.WARNING, 0)])
def test_django_writes_its_lines_where_they_are_asked_for(caplog, level, lines):
    double.enqueue(21)
    with caplog.at_level(level, logger=task_signals.logger.name):
        run()
    assert len([record for record in caplog.records if "double" in record.getMessage()]) == lines


def test_a_backoff_gets_one_that_knows_the_failure(quiet):
    asked.clear()
    fail_and_ask.enqueue()
    outcome = run()
    assert isinstance(outcome, PutOff)
    assert outcome.delay == 9
    ((_, status, errors),) = asked
    assert (status, errors) == (TaskResultStatus.RUNNING, ["builtins.ValueError"])


def test_only_django_itself_is_not_heard(quiet, listen):
    assert not is_heard(task_finished, logging.INFO)
    assert is_heard(task_finished, logging.ERROR)
    listen(task_finished)
    assert is_heard(task_finished, logging.INFO)
