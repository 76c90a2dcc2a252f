"""Processes are replaced after so many jobs or so much memory; no job is lost by it, and none runs twice."""

from __future__ import annotations

import pytest

from django_pgbus import enqueue_many
from tests.processes import tasks
from tests.processes.harness import archived, count, execute, is_archived, runs, until, value

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]


def test_after_so_many_jobs_a_process_is_replaced_and_nothing_is_lost_or_doubled(runworker):
    worker = runworker("--processes=2", "--threads=4", "--max-jobs=100")
    worker.ready(2)
    jobs = enqueue_many(tasks.naps, [((f"job {n}", 0.02), {}) for n in range(600)])
    until(lambda: count("pgbus_archive") == 600, 100)
    assert worker.stop() == 0
    assert len(jobs) == 600
    assert execute("SELECT name FROM process_test_runs GROUP BY name HAVING count(*) <> 1") == []
    assert value("SELECT count(DISTINCT name) FROM process_test_runs") == 600
    assert value("SELECT max(attempts) FROM pgbus_archive") == 1
    replaced = worker.log.count("This process is replaced: ")
    print(f"600 jobs in {value('SELECT count(DISTINCT pid) FROM process_test_runs')} processes, {replaced} replaced")
    assert replaced >= 2
    assert " died" not in worker.log


def test_a_process_that_uses_too_much_memory_is_replaced(runworker):
    worker = runworker("--threads=1", "--max-memory=200M")
    children = worker.ready()
    for n in range(6):
        tasks.grows.enqueue(30)
        tasks.note.enqueue(f"note {n}")
    until(lambda: worker.children() and worker.children() != children)
    until(lambda: count("pgbus_archive") == 12)
    assert worker.stop() == 0
    assert " MiB of memory in use" in worker.log
    assert value("SELECT max(attempts) FROM pgbus_archive") == 1
    assert [runs(f"note {n}") for n in range(6)] == [1] * 6


def test_a_job_that_runs_when_its_process_is_to_be_replaced_is_waited_for_beyond_the_grace(runworker):
    # There is no hurry, and a job that is interrupted by every replacement would never end.
    worker = runworker("--threads=2", "--max-jobs=10", "--grace=0.5")
    children = worker.ready()
    long = tasks.holds.enqueue("long", 5)
    until(lambda: runs("long", "began"))
    enqueue_many(tasks.nothing, [((n,), {}) for n in range(20)])
    worker.until_logged("This process is replaced")
    until(lambda: is_archived(long.id))
    assert (runs("long"), archived(long.id)["attempts"], archived(long.id)["delivery"]) == (2, 1, 1)
    until(lambda: worker.children() and worker.children() != children)
    assert worker.stop() == 0


def test_a_process_that_waits_to_be_replaced_obeys(runworker):
    worker = runworker("--threads=2", "--max-jobs=10", "--grace=0.5")
    worker.ready()
    tasks.holds.enqueue("long", 600)
    until(lambda: runs("long", "began"))
    enqueue_many(tasks.nothing, [((n,), {}) for n in range(20)])
    worker.until_logged("This process is replaced")
    assert worker.stop(15) == 0
    assert value("SELECT attempts FROM pgbus_messages") == 0
