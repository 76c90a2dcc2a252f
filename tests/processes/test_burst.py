"""`--burst` runs until the queues are empty, and its exit code tells how that went."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgbus import enqueue_many
from tests.processes import tasks
from tests.processes.harness import count, runs, until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]


def test_a_burst_runs_what_there_is_and_leaves_with_0(runworker):
    enqueue_many(tasks.note, [(("note",), {})] * 300)
    for _ in range(20):
        tasks.areads.enqueue("async")
    tasks.note.using(run_after=timedelta(hours=1)).enqueue("later")
    assert runworker("--burst", "--processes=2").wait() == 0
    assert (runs("note"), runs("async"), runs("later")) == (300, 20, 0)
    assert count("pgbus_archive") == 320
    assert count("pgbus_delayed") == 1


def test_a_burst_with_nothing_to_do_leaves_with_0(runworker):
    assert runworker("--burst").wait() == 0


def test_a_burst_in_which_a_job_failed_leaves_with_1(runworker):
    tasks.fails.enqueue()
    tasks.note.enqueue()
    assert runworker("--burst").wait() == 1
    assert runs("note") == 1
    assert count("pgbus_dead_letters") == 1


def test_a_burst_that_is_killed_by_a_job_goes_on_and_leaves_with_1(runworker):
    tasks.leaves.enqueue("killer", 0)
    enqueue_many(tasks.note, [(("note",), {})] * 20)
    assert runworker("--burst", "--threads=1").wait(60) == 1
    assert runs("note") >= 20  # One that ended in the last moment of a process, not yet settled, runs again.
    assert count("pgbus_archive") == 20
    assert count("pgbus_dead_letters") == 1
    assert count("pgbus_messages") == count("pgbus_delayed") == 0


def test_a_burst_runs_what_its_jobs_enqueue_whether_or_not_somebody_is_woken(runworker):
    tasks.enqueues_by_sql.enqueue(30)
    assert runworker("--burst", "--threads=2").wait() == 0
    assert runs("chain") == 31
    assert count("pgbus_messages") == 0


def test_a_burst_stops_when_asked(runworker):
    worker = runworker("--burst", "--threads=1")
    tasks.holds.enqueue("long", 2)
    enqueue_many(tasks.note, [(("note",), {})] * 20)
    until(lambda: runs("long", "began"))
    assert worker.stop() == 0
    assert runs("long") == 2
    assert count("pgbus_messages") == 20
