"""kill -9: of a child, of the supervisor, of everything. Nothing is lost, and nobody has to do anything."""

from __future__ import annotations

import os
import signal
import time

import pytest
from django.db import transaction

from django_pgbus import enqueue_many
from tests.processes import tasks
from tests.processes.harness import (
    alive,
    archived,
    count,
    database_time,
    execute,
    is_archived,
    row,
    runs,
    until,
    value,
    when,
)
from tests.processes.test_stopping import warm_up

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]


def reported(name: str) -> None:
    """Wait until the start of a job has been told to the supervisor, which takes a moment after it."""
    until(lambda: runs(name, "began") and database_time() - when(name, "began", "max") > 0.1)


@pytest.mark.proves("a-killed-process-is-reaped-at-once")
def test_what_a_killed_process_held_is_back_at_once_and_the_process_is_replaced(runworker):
    worker = runworker("--threads=1", pgbus={"VISIBILITY_TIMEOUT": 60})
    (child,) = worker.ready()
    warm_up()
    with transaction.atomic():
        long = tasks.holds.enqueue("long", 60)
        behind = enqueue_many(tasks.note, [(("behind",), {})] * 20)
    reported("long")
    os.kill(child, signal.SIGSTOP)  # it might hand back what it buffers; behind a long job it does so soon
    ids = [int(result.id) for result in behind]
    held = 1 + value("SELECT count(*) FROM pgbus_messages WHERE leased_until IS NOT NULL AND id = ANY(%s)", ids)
    os.kill(child, signal.SIGKILL)
    began = time.monotonic()
    until(lambda: row(long.id)["suspect"], 10)
    took = time.monotonic() - began
    print(f"{held} jobs held; back after {took:.3f} s")
    assert took < 5, "The lease is a minute: nobody but the supervisor does that in time."

    back = row(long.id)
    assert (back["attempts"], "WorkerLost" in (back["errors"] or "")) == (1, True)
    (replacement,) = worker.ready()
    assert replacement != child
    until(lambda: execute("SELECT count(*) FROM pgbus_archive WHERE id = ANY(%s)", ids)[0][0] == 20)
    rows = execute("SELECT attempts, errors::text FROM pgbus_archive WHERE id = ANY(%s)", ids)
    assert set(rows) == {(1, None)}, "What had not started lost no attempt."
    until(lambda: is_archived(long.id))
    assert archived(long.id)["attempts"] == 2
    assert runs("long", "began") == 2
    assert worker.stop() == 0


def test_without_a_supervisor_the_children_finish_what_runs_and_leave(runworker):
    worker = runworker("--processes=2", "--threads=1", pgbus={"VISIBILITY_TIMEOUT": 60})
    children = worker.ready(2)
    job = tasks.holds.enqueue("long", 2)
    until(lambda: runs("long", "began"))
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    began = time.monotonic()
    tasks.note.enqueue("after")
    until(lambda: not any(alive(pid) for pid in children))
    print(f"the children were gone {time.monotonic() - began:.2f} s after their supervisor (the job runs 2 s)")

    assert archived(job.id)["attempts"] == 1
    assert runs("long") == 2
    assert count("pgbus_workers") == 0, "They took leave."
    assert value("SELECT count(*) FROM pgbus_messages WHERE leased_until IS NOT NULL") == 0


def test_without_a_supervisor_a_job_that_outlasts_the_grace_runs_again_after_its_lease(runworker):
    worker = runworker("--threads=1", "--grace=0.5", pgbus={"VISIBILITY_TIMEOUT": 4})
    (child,) = worker.ready()
    job = tasks.ticks.enqueue("stubborn", 7)
    until(lambda: runs("stubborn", "lives") > 5)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    until(lambda: not alive(child))
    last_sign = when("stubborn", "lives", "max")
    second = runworker("--threads=1", pgbus={"VISIBILITY_TIMEOUT": 4})
    until(lambda: is_archived(job.id))
    assert (runs("stubborn", "began"), runs("stubborn", "ended")) == (2, 1)
    assert when("stubborn", "began", "max") > last_sign
    assert second.stop() == 0


@pytest.mark.proves("a-lapsed-lease-is-found")
def test_when_everything_is_killed_the_jobs_run_again_after_the_lease(runworker):
    lease = 4.0
    pgbus = {"VISIBILITY_TIMEOUT": lease}
    worker = runworker("--threads=2", pgbus=pgbus)
    (child,) = worker.ready()
    jobs = [tasks.holds.enqueue("long", 60), tasks.holds.enqueue("long", 60)]
    until(lambda: runs("long", "began") == 2)
    # A beat has said that they run: what only the dead process knew is lost with it.
    until(lambda: all(row(job.id)["started"] for job in jobs))
    os.kill(child, signal.SIGSTOP)  # it must not see that its supervisor is gone
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    killed = database_time()
    os.kill(child, signal.SIGKILL)
    second = runworker("--threads=2", pgbus=pgbus)
    until(lambda: all(is_archived(job.id) for job in jobs))
    again = when("long", "began", "max") - killed
    print(f"run again {again:.2f} s after the kill (lease {lease:g} s)")
    assert runs("long", "began") == 4
    assert runs("long", "ended") == 2
    assert [archived(job.id)["attempts"] for job in jobs] == [2, 2]
    assert second.stop() == 0
