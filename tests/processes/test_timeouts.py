"""Timeouts: a run is told to stop; one that does not stop takes its process with it, and nothing else."""

from __future__ import annotations

import pytest

from tests.processes import tasks
from tests.processes.harness import archived, dead, is_archived, is_dead, runs, until
from tests.processes.test_killed import reported

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]

TIMEOUT = "django_pgbus.exceptions.TaskTimeout"


def test_past_its_timeout_a_job_is_stopped_and_its_thread_takes_the_next(runworker):
    worker = runworker("--threads=1")
    children = worker.ready()
    endless = tasks.loops_for_ever.enqueue("endless")
    after = tasks.note.enqueue("after")
    until(lambda: is_dead(endless.id) and is_archived(after.id))
    assert dead(endless.id)["errors"][0]["exception"] == TIMEOUT
    assert worker.children() == children
    assert worker.stop() == 0


@pytest.mark.parametrize(
    "task",
    [tasks.ignores_its_timeout, tasks.awaits_in_spite_of_its_timeout, tasks.blocks_the_event_loop],
    ids=["a thread that swallows it", "a coroutine that swallows it", "a blocked event loop"],
)
def test_a_job_that_does_not_stop_is_ended_with_its_process_and_the_others_go_back(runworker, task):
    worker = runworker("--threads=2", "--grace=0.2", hard_margin=1.0)
    children = worker.ready()
    neighbour = tasks.holds.enqueue("neighbour", 60)
    reported("neighbour")
    endless = task.enqueue("endless")
    until(lambda: is_dead(endless.id))
    assert runs("endless", "began") == 1
    letter = dead(endless.id)
    assert (letter["attempts"], [error["exception"] for error in letter["errors"]]) == (1, [TIMEOUT])

    # The neighbour was interrupted in its first attempt, which does not count: this is its first once more.
    until(lambda: runs("neighbour", "began") == 2)
    assert worker.ready() != children
    assert "timed out, exit code 65, 2 jobs held" in worker.log
    after = tasks.note.enqueue("after")
    until(lambda: is_archived(after.id))
    assert worker.stop() == 0
    assert not is_archived(neighbour.id)
    from tests.processes.harness import row

    assert (row(neighbour.id)["attempts"], row(neighbour.id)["errors"]) == (0, None)


def test_a_retry_after_the_hard_limit_waits_as_after_any_failure(runworker):
    worker = runworker("--threads=1", hard_margin=0.5, pgbus={"BACKOFF_BASE": 0.1})
    worker.ready()
    job = tasks.stops_at_the_second_attempt.enqueue("twice")
    until(lambda: is_archived(job.id))
    assert archived(job.id)["attempts"] == 2
    assert worker.stop() == 0
