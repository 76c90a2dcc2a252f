"""Batches over several processes: members that end at the same instant, processes that are killed meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from django_pgbus import Batch, enqueue_many
from tests.processes import tasks
from tests.processes.harness import execute, runs, until, value

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]

CALLED = """
    SELECT task, (payload #>> '{args,0,id}')::bigint, count(*)
    FROM pgbus_archive
    WHERE task LIKE '%%.batch_ended' OR task LIKE '%%.batch_succeeded'
    GROUP BY 1, 2
"""
ENDED = {"on_finish": tasks.batch_ended, "on_success": tasks.batch_succeeded}


def called() -> dict[tuple[str, int], int]:
    return {(task.rpartition(".")[2], id): number for task, id, number in execute(CALLED)}


def test_members_that_end_at_the_same_instant_in_two_processes_end_their_batch_once(runworker):
    """Twenty members, ten threads in each process, and all of them let go by one commit."""
    worker = runworker("--processes=2", "--threads=10")
    worker.ready(2)
    with Batch("at once", **ENDED) as batch:
        enqueue_many(tasks.waits_for_all, [((20,), {})] * 20)
    until(lambda: len(called()) == 2)
    assert runs("all", "began") == 20
    assert value("SELECT count(DISTINCT pid) FROM process_test_runs WHERE name = 'all'") == 2
    progress = batch.progress()
    assert (progress.succeeded, progress.outstanding) == (20, 0)
    assert called() == {("batch_ended", batch.id): 1, ("batch_succeeded", batch.id): 1}
    assert worker.stop() == 0


def test_batches_end_once_though_processes_are_killed(runworker):
    """Many small batches, so that a kill often comes between the end of a member and the end of its batch."""
    chance = random.Random(int(os.environ.get("PGBUS_TEST_SEED", "1")))
    worker = runworker("--processes=2", "--threads=2", pgbus={"VISIBILITY_TIMEOUT": 4})
    worker.ready(2)
    batches = []
    for _ in range(150):
        with Batch(**ENDED) as batch:
            enqueue_many(tasks.nothing, [((number,), {}) for number in range(chance.randrange(6))])
        batches.append(batch)
    for _ in range(6):
        time.sleep(chance.uniform(0.05, 0.3))
        if children := worker.children():
            os.kill(chance.choice(children), signal.SIGKILL)
    until(lambda: value("SELECT count(*) FROM pgbus_batches WHERE finished_at IS NULL") == 0, 60)
    until(lambda: len(called()) == 300, 60)
    assert set(called().values()) == {1}
    assert all(batch.progress().outstanding == 0 for batch in batches)
    assert worker.stop() == 0
