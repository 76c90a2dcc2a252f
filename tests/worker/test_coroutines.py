"""Async runs that are cancelled at the worst moments, or exit: each tells its end, once, and the loop goes on."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from datetime import UTC, datetime

import pytest

from django_pgbus import signals, task
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks.compat import task_finished, task_started
from django_pgbus.tasks.executor import Executor, HandBack, Success
from django_pgbus.tasks.lifecycle import GaveUp, PutOff
from django_pgbus.tasks.watch import Watch
from django_pgbus.worker.capsule import Capsule
from django_pgbus.worker.pools.coroutines import CoroutinePool
from tests.processes.harness import until
from tests.running import a_plan

EXITS = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}


async def for_a_command_line(kind):
    await asyncio.sleep(0)
    raise EXITS[kind](3)


@task(max_attempts=1)
async def gathers(kind):
    await asyncio.gather(for_a_command_line(kind))


@task
async def leaves_behind(kind):
    left = asyncio.ensure_future(for_a_command_line(kind))
    await asyncio.wait([left])
    assert isinstance(left.exception(), EXITS[kind])


@task
async def stops_the_loop():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


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
    pool.stop()
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


# --- what exits ---------------------------------------------------------------------------------------


@pytest.fixture
def announced():
    """What `loop_failed` said, as (part, kind of exception)."""
    heard = []

    def hear(*, part, exception, **kwargs):
        heard.append((part, type(exception)))

    signals.loop_failed.connect(hear)
    yield heard
    signals.loop_failed.disconnect(hear)


def own(name, payload):
    """Return a delivery of a task of this module."""
    job = delivery()
    job.task, job.payload = f"{__name__}.{name}", payload
    return job


def runs_the_next(pool, outcomes):
    outcomes.clear()
    put(pool, delivery())
    until(lambda: outcomes)
    return isinstance(outcomes[0], Success)


@pytest.mark.parametrize("kind", EXITS)
def test_what_a_run_awaits_may_exit_which_is_a_failed_attempt_and_no_end_of_the_loop(pool, outcomes, announced, kind):
    put(pool, own("gathers", f'{{"args": ["{kind}"], "kwargs": {{}}}}'))
    until(lambda: not pool.pending)
    assert [type(outcome) for outcome in outcomes] == [GaveUp]
    assert f'"builtins.{kind}"' in outcomes[0].error
    assert announced == [("event loop of the async jobs", EXITS[kind])]
    assert runs_the_next(pool, outcomes)


@pytest.mark.parametrize("kind", EXITS)
def test_a_run_beside_something_that_exits_succeeds(pool, outcomes, kind):
    put(pool, own("leaves_behind", f'{{"args": ["{kind}"], "kwargs": {{}}}}'))
    until(lambda: not pool.pending)
    assert [type(outcome) for outcome in outcomes] == [Success]
    assert runs_the_next(pool, outcomes)


def test_a_callback_that_exits_does_not_end_the_loop(pool, outcomes, announced):
    pool._started().call_soon_threadsafe(exit_now)
    assert runs_the_next(pool, outcomes)
    assert announced == [("event loop of the async jobs", SystemExit)]


def test_a_receiver_that_exits_when_it_hears_that_the_loop_failed_does_not_end_the_loop(pool, outcomes):
    signals.loop_failed.connect(exit_now)
    try:
        pool._started().call_soon_threadsafe(exit_now)
        assert runs_the_next(pool, outcomes)
    finally:
        signals.loop_failed.disconnect(exit_now)


def test_a_run_that_stops_the_loop_does_not_end_it(pool, outcomes):
    put(pool, own("stops_the_loop", '{"args": [], "kwargs": {}}'))
    until(lambda: not pool.pending)
    assert [type(outcome) for outcome in outcomes] == [Success]
    assert runs_the_next(pool, outcomes)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync receiver", "async receiver"])
@pytest.mark.parametrize("signal", [task_started, task_finished], ids=["started", "finished"])
def test_a_receiver_that_exits_leaves_a_success_a_success(pool, outcomes, announced, signal, is_async):
    receiver = aexit_now if is_async else exit_now
    signal.connect(receiver)
    try:
        put(pool, delivery())
        until(lambda: not pool.pending)
    finally:
        signal.disconnect(receiver)
    assert [type(outcome) for outcome in outcomes] == [Success]
    assert ("receiver of a signal", SystemExit) in announced
    assert runs_the_next(pool, outcomes)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync receiver", "async receiver"])
def test_a_receiver_that_exits_leaves_a_failure_a_failure(pool, outcomes, announced, is_async):
    receiver = aexit_now if is_async else exit_now
    signals.attempt_failed.connect(receiver)
    try:
        put(pool, own("fails_async", '{"args": [], "kwargs": {}}'))
        until(lambda: not pool.pending)
    finally:
        signals.attempt_failed.disconnect(receiver)
    assert [(type(outcome), outcome.delay) for outcome in outcomes] == [(PutOff, 9.0)]
    assert "ValueError: no" in outcomes[0].error
    assert ("receiver of a signal", SystemExit) in announced
    assert runs_the_next(pool, outcomes)


@pytest.mark.parametrize(
    ("state", "expected"),
    [({}, PutOff), ({"attempts": 3}, GaveUp), ({"hand_back": True}, HandBack)],
    ids=["attempts left", "attempts used up", "cancelled"],
)
def test_an_async_run_that_ends_without_an_outcome_is_a_failed_attempt(monkeypatch, announced, state, expected):
    reported = []

    async def arun(self, run):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Executor, "arun", arun)
    (declared,) = a_plan("default").capsules
    executor = Executor(worker="w", watch=Watch())
    capsule = Capsule(declared, executor, reported.append, lambda delivery: None, lambda: None, "test")
    job = own("three_attempts", '{"args": [], "kwargs": {}}')
    for name, value in state.items():
        setattr(job, name, value)
    asyncio.run(capsule._arun(executor.prepare(job)))
    assert [type(outcome) for outcome in reported] == [expected]
    assert job.ended
    assert announced == [("end of a run", RuntimeError)]


@task(max_attempts=3)
async def three_attempts():
    return None


@task(max_attempts=2, backoff=lambda exception, result: 9)
async def fails_async():
    raise ValueError("no")


async def aexit_now(**kwargs):
    raise SystemExit(7)


def exit_now(**kwargs):
    raise SystemExit(7)
