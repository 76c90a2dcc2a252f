"""A process that stands still for longer than its lease: its jobs are taken over, and it can no longer end them."""

from __future__ import annotations

import os
import signal

import pytest

from django_pgbus import enqueue_many
from tests.processes import tasks
from tests.processes.harness import (
    archived,
    count,
    execute,
    finished,
    is_archived,
    runs,
    until,
    value,
)

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]


@pytest.mark.proves("the-delivery-number-fences")
def test_what_a_suspended_process_held_is_taken_over_and_its_own_results_are_refused(runworker):
    pgbus = {"VISIBILITY_TIMEOUT": 3}
    first = runworker("--threads=2", "--worker-id=first", pgbus=pgbus)
    (child,) = first.ready()
    jobs = [tasks.names_its_process.enqueue("sync", 1.5), tasks.anames_its_process.enqueue("async", 1.5)]
    until(lambda: runs("sync", "began") and runs("async", "began"))
    os.kill(child, signal.SIGSTOP)
    second = runworker("--threads=2", "--worker-id=second", pgbus=pgbus)
    (other,) = second.ready()
    until(lambda: runs("sync", "began") == 2 and runs("async", "began") == 2)
    os.kill(child, signal.SIGCONT)
    until(lambda: all(is_archived(job.id) for job in jobs))
    until(lambda: runs("sync", "ended") == 2)
    # The one that woke up goes on working, and takes no part in what it lost.
    after = finished(tasks.note.using(queue_name="default").enqueue("after"))
    assert first.stop() == 0
    assert second.stop() == 0
    for job in jobs:
        told = archived(job.id)
        assert told["result"] == str(other)
        assert told["delivery"] >= 2
    assert archived(after.id)["attempts"] == 1
    assert count("pgbus_archive") == 3
    assert "was superseded" in first.log
    assert "was superseded" not in second.log


RUNNING = """
    SELECT count(*)
    FROM pgbus_semaphore_slots AS slot
    JOIN pgbus_messages AS message ON message.id = slot.message_id
    WHERE message.leased_until > statement_timestamp()
"""


@pytest.mark.proves("a-superseded-run-frees-nothing")
def test_a_limited_run_that_comes_back_from_a_suspension_is_fenced_out_and_the_limit_is_one_again(runworker):
    """
    `to=1`, and its holder stands still for longer than lease and slot: another takes its place, alone.

    When it wakes up it can end nothing, frees no slot that is not its own and lets nobody in beside the one that runs.
    """
    pgbus = {"VISIBILITY_TIMEOUT": 3}
    first = runworker("--threads=4", "--worker-id=first", pgbus=pgbus)
    (child,) = first.ready()
    held = tasks.holds_alone.enqueue("alone", 1.0)
    until(lambda: runs("alone", "began") == 1)
    os.kill(child, signal.SIGSTOP)
    others = [tasks.holds_alone.enqueue("alone", 1.0) for _ in range(2)]
    second = runworker("--threads=4", "--worker-id=second", pgbus=pgbus)
    (other,) = second.ready()
    until(lambda: runs("alone", "began") == 2)
    os.kill(child, signal.SIGCONT)
    most = 0
    while not all(is_archived(job.id) for job in (held, *others)):
        most = max(most, value("SELECT count(*) FROM pgbus_semaphore_slots"))
        assert value(RUNNING) <= 1
    assert most == 1
    assert first.stop() == 0
    assert second.stop() == 0
    results = [archived(job.id)["result"] for job in (held, *others)]
    assert set(results) <= {str(child), str(other)}
    assert archived(held.id)["delivery"] >= 2, "the run that was suspended ended nothing"
    assert "was superseded" in first.log
    assert count("pgbus_semaphore_slots") == 0


def test_a_suspended_supervisor_holds_up_no_job(runworker):
    worker = runworker("--threads=4", pgbus={"VISIBILITY_TIMEOUT": 4})
    worker.ready()
    finished(tasks.note.enqueue("before"))
    os.kill(worker.pid, signal.SIGSTOP)
    for start in range(0, 30_000, 1000):
        enqueue_many(tasks.nothing, [((n,), {}) for n in range(start, start + 1000)])
    until(lambda: count("pgbus_archive") >= 30_001, 100)
    beat = value("SELECT extract(epoch FROM statement_timestamp() - max(beat_at)) FROM pgbus_workers")
    os.kill(worker.pid, signal.SIGCONT)
    print(f"30,000 jobs without anybody who reads the reports; last beat {beat:.1f} s ago")
    assert beat < 4
    assert value("SELECT max(attempts) FROM pgbus_archive") == 1
    assert worker.stop() == 0


def test_a_worker_whose_row_was_deleted_is_there_again_with_its_next_beat(runworker):
    worker = runworker(pgbus={"VISIBILITY_TIMEOUT": 3})
    worker.ready()
    execute("DELETE FROM pgbus_workers")
    until(lambda: count("pgbus_workers") == 1, 5)
    assert worker.stop() == 0
    assert count("pgbus_workers") == 0
