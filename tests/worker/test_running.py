"""What a worker does with a job."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

import pytest

from django_pgbus import signals, task
from django_pgbus.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.worker.pools.threads import ThreadPool
from tests import jobs
from tests.running import a_worker, run_burst
from tests.sessions import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh():
    jobs.calls.clear()
    jobs.gates.clear()
    jobs.reached.clear()


def test_a_job_runs_and_its_result_is_kept():
    result = jobs.note.enqueue("hello")
    assert run_burst() == 0
    assert jobs.calls == ["hello"]
    result.refresh()
    assert result.return_value == "hello"
    assert not Message.objects.exists()
    assert Archived.objects.get().attempts == 1


def test_an_async_job_runs():
    result = jobs.anote.enqueue("hello")
    assert run_burst() == 0
    result.refresh()
    assert result.return_value == "hello"


def test_many_jobs_run_once_each():
    for n in range(300):
        (jobs.note if n % 2 else jobs.anote).enqueue(n)
    assert run_burst() == 0
    assert sorted(jobs.calls) == list(range(300))


@pytest.mark.proves("failures-end-as-dead-letters")
def test_a_failing_job_is_tried_again_and_dead_letters_with_its_errors():
    result = jobs.fails.enqueue()
    deadline = time.monotonic() + 20
    with a_worker():
        while not DeadLetter.objects.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    letter = DeadLetter.objects.get()
    assert len(jobs.calls) == letter.attempts == 3
    assert letter.reason == "exhausted"
    assert [error["attempt"] for error in letter.errors] == [1, 2, 3]
    assert "ValueError: no" in letter.errors[0]["traceback"]
    assert "django_pgbus" not in letter.errors[0]["traceback"]
    result.refresh()
    assert result.attempts == 3
    assert result.errors[0].exception_class is ValueError


def test_a_job_that_raises_system_exit_fails_and_the_worker_goes_on():
    jobs.exits.enqueue(3)
    jobs.note.enqueue(1)
    assert run_burst() == 1
    assert jobs.calls == [1]
    assert DeadLetter.objects.get().errors[0]["exception"] == "builtins.SystemExit"


def test_a_retry_knows_its_attempt():
    result = jobs.fails_once.enqueue()
    deadline = time.monotonic() + 20
    with a_worker():
        while not Archived.objects.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    result.refresh()
    assert result.return_value == 2
    assert result.attempts == 2
    assert len(result.errors) == 1


@pytest.mark.proves("a-snooze-costs-no-attempt")
def test_snooze_costs_no_attempt():
    jobs.snoozes.enqueue(60)
    assert run_burst() == 1 or True
    delayed = Delayed.objects.get()
    assert (delayed.attempts, delayed.reason, delayed.delivery) == (0, "snoozed", 1)


@pytest.mark.parametrize("job", [jobs.loops_for_ever, jobs.sleeps_for_ever], ids=["sync", "async"])
def test_a_job_past_its_timeout_is_ended(job):
    job.enqueue()
    assert run_burst() == 1
    assert DeadLetter.objects.get().errors[0]["exception"] == "django_pgbus.exceptions.TaskTimeout"


def test_a_secret_quoted_by_an_exception_is_masked():
    jobs.login.enqueue("ann", token="s3cr3t-token")
    assert run_burst() == 1
    letter = DeadLetter.objects.get()
    assert "s3cr3t-token" not in json.dumps(letter.errors)
    assert "bad token" in json.dumps(letter.errors)


def test_a_thread_that_has_gone_idle_says_so_when_it_counts_as_busy_no_more():
    """Whoever is told of an end while the thread still counts finds no room, and would not be told again."""
    told = []
    pool = ThreadPool(1, lambda delivery: None, "rests", rested=lambda: told.append(pool.busy))
    pool.put([SimpleNamespace(id=1)])
    until(lambda: told)
    assert told == [0]


def test_a_thread_outlives_a_run_that_raises_and_says_so():
    ran, told, board = [], [], []

    def run(delivery):
        ran.append(delivery.id)
        if delivery.id == 1:
            raise SystemExit(3)

    def hear(*, part, exception, **kwargs):
        told.append((part, type(exception)))

    signals.loop_failed.connect(hear)
    try:
        pool = ThreadPool(1, run, "goes on", running=lambda number, id: board.append(id))
        pool.put([SimpleNamespace(id=1), SimpleNamespace(id=2)])
        until(lambda: len(board) == 4)
    finally:
        signals.loop_failed.disconnect(hear)
    assert ran == [1, 2]
    assert board == [1, 0, 2, 0]
    assert told == [("thread of a pool", SystemExit)]


# --- what exits while a run is told of ----------------------------------------------------------------


def exit_now(*args, **kwargs):
    raise SystemExit(7)


async def for_a_command_line():
    exit_now()


@task(max_attempts=2, backoff=exit_now)
def exiting_backoff():
    raise ValueError("no")


@task(max_attempts=2, backoff=exit_now)
async def async_exiting_backoff():
    raise ValueError("no")


@task(max_attempts=2)
async def gathers_what_exits():
    await asyncio.gather(for_a_command_line())


@pytest.mark.parametrize("job", [exiting_backoff, async_exiting_backoff, gathers_what_exits], ids=lambda job: job.name)
def test_a_run_after_which_something_exits_is_tried_again_and_others_run_on(job):
    job.enqueue()
    with a_worker("*", threads=1):
        until(lambda: Delayed.objects.exists())
        jobs.note.enqueue(1)
        jobs.anote.enqueue(2)
        until(lambda: Archived.objects.count() == 2)
    assert sorted(jobs.calls) == [1, 2]
    delayed = Delayed.objects.get()
    assert (delayed.attempts, delayed.reason) == (1, "retry")
    assert not Message.objects.exists()
