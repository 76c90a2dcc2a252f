"""Async runs that are cancelled at the worst moments: each tells its end, once."""

from __future__ import annotations

import threading
import time
import uuid
from datetime import UTC, datetime

import pytest

from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks.compat import task_finished, task_started
from django_pgbus.tasks.executor import Executor, HandBack, Success
from django_pgbus.tasks.lifecycle import GaveUp
from django_pgbus.tasks.watch import Watch
from django_pgbus.worker.pools.coroutines import CoroutinePool
from tests.processes.harness import until


def delivery(name="anote", **args):
    return Delivery(
        position=1,
        id=1,
        level=Level("default", 0),
        delivery=1,
        attempts=1,
        task=f"tests.jobs.{name}",
        backend="default",
        payload='{"args": [1], "kwargs": {}}',
        errors=None,
        enqueued_at=datetime.now(UTC),
        confirmed_at=time.monotonic(),
        **args,
    )


@pytest.fixture
def outcomes():
    return []


@pytest.fixture
def pool(outcomes):
    executor = Executor(worker=str(uuid.uuid4()), watch=Watch())

    async def run(prepared):
        outcomes.append(await executor.arun(prepared))

    pool = CoroutinePool(run, "test")
    pool.executor = executor
    yield pool
    pool._loop.call_soon_threadsafe(pool._loop.stop)
    until(lambda: not pool._loop.is_running())
    pool._loop.close()


def put(pool, job):
    pool.put(job, pool.executor.prepare(job))


def test_a_run_that_is_cancelled_before_its_first_step_is_handed_back(pool, outcomes):
    blocked = threading.Event()
    pool._started().call_soon_threadsafe(blocked.wait, 10)
    job = delivery()
    put(pool, job)
    job.hand_back = True
    pool.cancel_all()  # both wait for the loop, and come in one turn of it
    blocked.set()
    until(lambda: not pool.pending)
    # It ran to its end without a pause in which it could be cancelled, or was cancelled: told in any case.
    assert [type(outcome) for outcome in outcomes] == [HandBack]


@pytest.mark.parametrize(
    ("signal", "expected"), [(task_started, HandBack), (task_finished, Success)], ids=["started", "finished"]
)
def test_a_run_that_is_cancelled_while_receivers_hear_of_it(pool, outcomes, signal, expected):
    heard, go_on = threading.Event(), threading.Event()

    def receiver(**kwargs):
        heard.set()
        go_on.wait(10)

    signal.connect(receiver)
    try:
        job = delivery()
        put(pool, job)
        assert heard.wait(10)
        job.hand_back = True
        pool.cancel(job)
        pool._loop.call_soon_threadsafe(lambda: None)
        go_on.set()
        until(lambda: not pool.pending)
    finally:
        signal.disconnect(receiver)
    assert [type(outcome) for outcome in outcomes] == [expected]


def test_a_failure_that_is_told_while_the_run_is_cancelled_stays_a_failure(pool, outcomes, monkeypatch):
    heard, go_on = threading.Event(), threading.Event()
    tell = Executor._after

    def slowly(self, run, error):
        heard.set()
        go_on.wait(10)
        return tell(self, run, error)

    monkeypatch.setattr(Executor, "_after", slowly)
    job = delivery("sleeps_for_ever")
    job.payload = '{"args": [], "kwargs": {}}'
    put(pool, job)
    assert heard.wait(10)
    for _ in range(3):
        pool.cancel(job)
    go_on.set()
    until(lambda: not pool.pending)
    assert [type(outcome) for outcome in outcomes] == [GaveUp]


def test_an_async_run_past_its_hard_limit_is_stuck_until_it_ends(pool, outcomes, monkeypatch):
    monkeypatch.setattr("django_pgbus.tasks.watch.HARD_MARGIN", 0.0)
    blocked = threading.Event()
    job = delivery("sleeps_for_ever")
    job.payload = '{"args": [], "kwargs": {}}'
    watch = pool.executor._watch
    put(pool, job)
    until(lambda: watch.next_deadline() < float("inf"))
    pool._loop.call_soon_threadsafe(blocked.wait, 10)  # no timeout of the loop's own can be heard
    until(lambda: watch.interrupt(time.monotonic()) == [job])
    blocked.set()
    until(lambda: outcomes)
    assert watch.interrupt(time.monotonic() + 100) == []
    assert watch.next_deadline() == float("inf")
