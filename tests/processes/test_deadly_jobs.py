"""Jobs that end their process, or try to: they run out of attempts, their neighbours do not."""

from __future__ import annotations

import os
import signal
import time

import pytest

from django_pgbus import enqueue_many
from tests.processes import tasks
from tests.processes.harness import alive, count, dead, execute, is_archived, is_dead, runs, until, value

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]


def test_a_job_that_ends_its_process_runs_out_of_attempts_whatever_its_exit_code(runworker):
    worker = runworker("--threads=1")
    worker.ready()
    killers = {code: tasks.leaves.enqueue(f"exit {code}", code) for code in (0, 7)}
    for code, killer in killers.items():
        until(lambda: is_dead(killer.id), 60)  # noqa: B023
        letter = dead(killer.id)
        assert (letter["attempts"], letter["reason"]) == (2, "exhausted")
        assert {error["exception"] for error in letter["errors"]} == {"django_pgbus.exceptions.WorkerLost"}
        print(f"os._exit({code}) ran {runs(f'exit {code}')} times, of which 2 counted")
        assert runs(f"exit {code}") <= 2 + 1
    after = tasks.note.enqueue()
    until(lambda: is_archived(after.id))
    assert worker.stop() == 0


@pytest.mark.slow
def test_one_killer_among_a_hundred_innocents(runworker):
    # What had been claimed and not yet been reported when its process died waits for its lease.
    worker = runworker("--processes=2", "--threads=4", pgbus={"VISIBILITY_TIMEOUT": 6})
    worker.ready(2)
    began = time.monotonic()
    first = enqueue_many(tasks.naps, [((f"innocent {n}", 0.01), {}) for n in range(37)])
    killer = tasks.leaves.enqueue("killer", 9)
    rest = enqueue_many(tasks.naps, [((f"innocent {n}", 0.01), {}) for n in range(37, 100)])
    until(lambda: is_dead(killer.id) and count("pgbus_archive") == 100, 90)
    print(f"100 innocents and a killer (2 attempts) took {time.monotonic() - began:.1f} s")
    assert worker.stop() == 0

    assert count("pgbus_dead_letters") == 1
    assert dead(killer.id)["attempts"] == 2
    assert runs("killer") <= 3
    ids = [int(result.id) for result in (*first, *rest)]
    attempts = execute("SELECT attempts, count(*) FROM pgbus_archive WHERE id = ANY(%s) GROUP BY 1", ids)
    again = execute("SELECT count(*) FROM process_test_runs WHERE event = 'ran' GROUP BY name HAVING count(*) > 1")
    print("attempts of the innocents:", dict(attempts), "written twice:", len(again))
    # Whoever ran beside it when it killed for the first time is innocent, and cannot be told from it.
    assert max(number for number, _ in attempts) <= 2


def test_exits_by_exception_are_failures_and_the_process_goes_on(runworker):
    worker = runworker("--threads=1")
    children = worker.ready()
    jobs = [tasks.exits.enqueue(kind) for kind in ("SystemExit", "KeyboardInterrupt", "GeneratorExit")]
    jobs += [tasks.aexits.enqueue(kind) for kind in ("SystemExit", "KeyboardInterrupt")]
    after = [tasks.note.enqueue("after"), tasks.areads.enqueue("after")]
    until(lambda: all(is_archived(job.id) for job in after))
    until(lambda: all(is_dead(job.id) for job in jobs))
    assert [dead(job.id)["errors"][0]["exception"].removeprefix("builtins.") for job in jobs] == [
        "SystemExit",
        "KeyboardInterrupt",
        "GeneratorExit",
        "SystemExit",
        "KeyboardInterrupt",
    ]
    assert worker.children() == children
    assert worker.stop() == 0


def test_a_process_that_dies_while_something_it_started_lives_on_is_noticed_at_once(runworker):
    worker = runworker("--threads=1", pgbus={"VISIBILITY_TIMEOUT": 60})
    (child,) = worker.ready()
    # The copy holds the pipes of its parent, and its connections.
    job = tasks.forks_and_leaves.enqueue("forks", 20)
    until(lambda: runs("forks") == 2)
    until(lambda: not alive(child))
    began = time.monotonic()
    copy = int(value("SELECT event FROM process_test_runs WHERE event <> 'began'"))
    assert alive(copy)
    until(lambda: is_archived(job.id))
    print(f"run again {time.monotonic() - began:.2f} s after the end of its process")
    assert time.monotonic() - began < 15
    os.kill(copy, signal.SIGKILL)
    assert worker.stop() == 0
