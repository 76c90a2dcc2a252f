"""SIGTERM: what runs may finish within the grace; what has not finished is handed back, at no cost of an attempt."""

from __future__ import annotations

import os
import signal
import time

import pytest

from django_pgbus import enqueue_many
from tests.processes import tasks
from tests.processes.harness import (
    alive,
    archived,
    count,
    execute,
    is_archived,
    row,
    runs,
    until,
    value,
    when,
)

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]


def warm_up(number: int = 20) -> None:
    """Let a worker learn that jobs are short, so that it buffers."""
    enqueue_many(tasks.nothing, [((n,), {}) for n in range(number)])
    until(lambda: count("pgbus_archive") == number)


def test_a_running_job_finishes_and_what_was_buffered_goes_back_without_an_attempt(runworker):
    worker = runworker("--threads=1")
    worker.ready()
    warm_up()
    # One transaction: claimed together, the long one first.
    from django.db import transaction

    with transaction.atomic():
        long = tasks.holds.enqueue("long", 1.5)
        behind = enqueue_many(tasks.note, [(("behind",), {})] * 20)
    until(lambda: runs("long", "began") and value("SELECT max(delivery) FROM pgbus_messages WHERE attempts < 2") > 0)
    assert worker.stop() == 0

    assert archived(long.id) == {"delivery": 1, "attempts": 1, "result": "null"}
    assert runs("long") == 2
    left = execute(
        "SELECT delivery, attempts, suspect, leased_until FROM pgbus_messages WHERE id = ANY(%s)",
        [int(result.id) for result in behind],
    )
    assert len(left) == 20 - runs("behind") == 20
    assert {tuple(rest) for _, *rest in left} == {(0, False, None)}
    assert max(delivery for delivery, *_ in left) >= 2  # one claim, one hand-back
    print("deliveries of what was buffered:", sorted(delivery for delivery, *_ in left))


@pytest.mark.proves("a-stop-costs-no-attempt")
def test_a_sync_job_that_ignores_the_grace_goes_back_once_its_process_is_gone(runworker):
    worker = runworker("--threads=1", "--grace=0.5")
    worker.ready()
    job = tasks.ticks.enqueue("stubborn", 6)
    until(lambda: runs("stubborn", "lives") > 5)
    assert worker.stop() == 0

    back = row(job.id)
    last_sign = when("stubborn", "lives", "max")
    assert back["ready_at"] > last_sign, "It was handed back while it ran."
    assert (back["attempts"], back["leased_until"], back["suspect"], back["errors"]) == (0, None, False, None)
    assert back["delivery"] == 2

    next_worker = runworker("--threads=1")
    until(lambda: is_archived(job.id))
    assert next_worker.stop() == 0
    assert (runs("stubborn", "began"), runs("stubborn", "ended")) == (2, 1)
    assert when("stubborn", "began", "max") > last_sign
    assert archived(job.id)["attempts"] == 1


@pytest.mark.proves("a-stop-costs-no-attempt")
@pytest.mark.parametrize("cleans", [0.0, 1.0])
def test_an_async_job_is_cancelled_and_goes_back_once_it_has_stopped(runworker, cleans):
    worker = runworker("--grace=0.2")
    (child,) = worker.ready()
    job = tasks.awaits.enqueue("async", 60, cleans)
    until(lambda: runs("async", "began"))
    assert worker.stop() == 0

    back = row(job.id)
    assert back["ready_at"] > when("async", "cancelled")
    assert (back["attempts"], back["leased_until"], back["errors"], back["delivery"]) == (0, None, None, 2)
    assert f"(pid {child}) done" in worker.log


def test_an_async_job_that_fails_over_its_cancellation_goes_back_too(runworker):
    worker = runworker("--grace=0.2")
    worker.ready()
    job = tasks.fails_when_cancelled.enqueue("async")
    until(lambda: runs("async", "began"))
    assert worker.stop() == 0
    assert runs("async", "cancelled") == 1
    back = row(job.id)
    assert (back["attempts"], back["leased_until"], back["errors"], back["delivery"]) == (0, None, None, 2)


def test_the_second_signal_ends_at_once(runworker):
    worker = runworker("--grace=600")
    worker.ready()
    jobs = [tasks.ticks.enqueue("stubborn", 600), tasks.awaits.enqueue("async", 600)]
    until(lambda: runs("stubborn", "lives") and runs("async", "began"))
    worker.send(signal.SIGTERM)
    worker.until_logged("Stopping (drain)")
    assert worker.process.poll() is None
    began = time.monotonic()
    assert worker.stop() == 0
    print(f"the second signal took {time.monotonic() - began:.2f} s")

    for job in jobs:
        back = row(job.id)
        assert (back["attempts"], back["leased_until"], back["errors"], back["delivery"]) == (0, None, None, 2)
    assert row(jobs[0].id)["ready_at"] > when("stubborn", "lives", "max")


def test_a_signal_that_reaches_all_processes_is_one_demand(runworker):
    worker = runworker("--processes=2", "--threads=1", "--grace=60")
    children = worker.ready(2)
    job = tasks.holds.enqueue("long", 2)
    until(lambda: runs("long", "began"))
    for pid in [worker.pid, *children]:
        os.kill(pid, signal.SIGTERM)
    worker.until_logged("Stopping (drain)")
    for pid in children:
        if alive(pid):
            os.kill(pid, signal.SIGINT)
    assert worker.wait() == 0
    assert archived(job.id)["attempts"] == 1
    assert runs("long") == 2


def test_a_worker_that_has_hardly_begun_stops_too(runworker):
    worker = runworker("--processes=2")
    until(worker.children)
    assert worker.stop() == 0
    assert not worker.children()
    assert count("pgbus_workers") == 0
