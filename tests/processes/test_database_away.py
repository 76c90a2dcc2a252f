"""The database goes away and comes back: workers stay up, say so once, obey, and go on where they were."""

from __future__ import annotations

import os
import signal
import time

import pytest

from django_pgbus import enqueue_many
from tests.processes import tasks
from tests.processes.harness import (
    RunWorker,
    archived,
    count,
    database_time,
    execute,
    finished,
    is_archived,
    row,
    runs,
    terminate,
    until,
    value,
    when,
)
from tests.processes.test_stopping import warm_up

pytestmark = pytest.mark.processes
COMMITTED = pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])

AWAY = float(os.environ.get("PGBUS_TEST_AWAY", "6"))  # seconds; 20 now and then, by hand


def lost(worker: RunWorker) -> list[str]:
    """Return which parts of a worker said that they lost the database."""
    lines = [line for line in worker.log.splitlines() if " lost the database" in line]
    return [line.partition(" The ")[2].partition(" lost")[0] for line in lines]


@pytest.mark.proves("the-worker-outlives-the-database")
def test_an_outage_is_said_once_survived_and_over_two_seconds_after_the_database_is_back(server, runworker_there):
    worker = runworker_there("--threads=2", pgbus={"VISIBILITY_TIMEOUT": 30})
    (child,) = worker.ready()
    warm_up()
    long = [tasks.holds.enqueue("long", AWAY + 3), tasks.holds.enqueue("long", AWAY + 3)]
    until(lambda: runs("long", "began") == 2)
    short = enqueue_many(tasks.note, [(("short",), {})] * 30)
    until(lambda: value("SELECT count(*) FROM pgbus_messages WHERE leased_until IS NOT NULL") > 2)
    server.stop()
    time.sleep(AWAY)  # no proof: the length of the outage
    assert worker.children() == [child]
    answered = server.start()

    late = tasks.note.using(priority=100).enqueue("late")  # the threads are busy
    until(lambda: all(is_archived(job.id) for job in [late, *long, *short]))
    # Nothing lost, nothing twice, and no attempt for what the outage did.
    assert (runs("long", "began"), runs("long", "ended"), runs("short"), runs("late")) == (2, 2, 30, 1)
    assert {archived(job.id)["attempts"] for job in [late, *long, *short]} == {1}
    assert worker.children() == [child]
    said = lost(worker)
    print(f"{AWAY:g} s away; said by {said}; all done {time.monotonic() - answered:.2f} s after it answered")
    assert len(said) == 1, "A process says it once, whichever of its parts finds out first."
    assert "Traceback" not in worker.log
    assert worker.stop() == 0


def test_an_idle_worker_takes_the_next_job_within_two_seconds_of_the_databases_return(server, runworker_there):
    worker = runworker_there("--processes=2", "--threads=2")
    children = worker.ready(2)
    finished(tasks.note.enqueue("before"))
    server.stop()
    time.sleep(3)
    answered = server.start()
    job = tasks.note.enqueue("after")
    until(lambda: runs("after"))
    took = time.monotonic() - answered
    print(f"resumed {took:.2f} s after it answered")
    assert took < 2 + 2, "Two seconds, and as many for a busy machine."
    until(lambda: is_archived(job.id))
    # It listens again: the next job does not wait for a poll. The heart, too, beats in both.
    beats = "SELECT count(*) FROM pgbus_workers WHERE beat_at > pg_postmaster_start_time()"
    until(lambda: value(beats) == 2)
    assert worker.children() == children
    assert worker.stop() == 0


def test_while_the_database_is_away_a_worker_obeys(server, runworker_there):
    worker = runworker_there("--threads=2", "--grace=1", pgbus={"VISIBILITY_TIMEOUT": 6})
    worker.ready()
    job = tasks.holds.enqueue("long", 60)
    until(lambda: runs("long", "began"))
    idle = runworker_there("--queues=nothing")
    until(lambda: value("SELECT count(*) FROM pgbus_workers") == 2)
    server.stop()
    for each in (worker, idle):
        until(lambda: lost(each))  # noqa: B023
    began = time.monotonic()
    idle.send(signal.SIGTERM)
    worker.send(signal.SIGTERM)
    assert idle.wait() == 0
    print(f"the idle one left after {time.monotonic() - began:.1f} s")
    code = worker.wait()
    print(f"the busy one left after {time.monotonic() - began:.1f} s with {code}")
    assert code == 1, "It could not hand back what it held, and says so."

    server.start()
    again = runworker_there("--threads=1", pgbus={"VISIBILITY_TIMEOUT": 6})
    until(lambda: runs("long", "began") == 2, 60)
    again.send(signal.SIGTERM)
    until(lambda: "Stopping (drain)" in again.log)
    again.send(signal.SIGINT)
    again.wait()
    assert is_archived(job.id) or row(job.id)["leased_until"] is None


# --- single connections -------------------------------------------------------------------------------


@pytest.mark.proves("the-worker-outlives-the-database")
@COMMITTED
def test_a_lost_listening_session_is_replaced_and_what_was_missed_is_looked_for(runworker):
    # Polls come half a minute apart: whatever starts at once was heard, or found by the look after the loss.
    worker = runworker("--threads=1", "--interval=30", pgbus={"VISIBILITY_TIMEOUT": 3})
    worker.ready()
    until(lambda: value("SELECT bool_and(listening) FROM pgbus_workers"))
    finished(tasks.note.enqueue("before"))

    def put_unheard(name: str) -> None:
        execute(
            "INSERT INTO pgbus_messages (queue, task, payload) VALUES ('default', 'tests.processes.tasks.note', %s::json)",
            f'{{"args": ["{name}"], "kwargs": {{}}}}',
        )

    until(lambda: value("SELECT count(*) FROM pgbus_levels WHERE queue = 'default'"))
    time.sleep(1.0)  # let it come to rest in its long sleep
    put_unheard("missed")
    lost_at = database_time()
    assert terminate("pgbus listen") == 1
    until(lambda: runs("missed"), 10)
    print(f"what was missed ran {when('missed', 'ran') - lost_at:.3f} s after the loss")
    until(lambda: value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbus listen'"))

    delays = []
    for n in range(20):
        name = f"heard {n}"
        sent = database_time()
        tasks.note.enqueue(name)
        until(lambda: runs(name), 10)  # noqa: B023
        delays.append(when(name, "ran") - sent)
    print(
        f"from enqueue to run, heard again: median {sorted(delays)[10] * 1000:.1f} ms, worst {max(delays) * 1000:.0f} ms"
    )
    assert sorted(delays)[10] < 0.5
    assert worker.log.count("The listener lost the database") == 1
    assert worker.stop() == 0


@COMMITTED
def test_all_sessions_of_a_worker_may_be_ended_at_once_and_again(runworker):
    worker = runworker("--processes=2", "--threads=2", pgbus={"VISIBILITY_TIMEOUT": 30})
    children = worker.ready(2)
    long = tasks.holds.enqueue("long", 5)
    until(lambda: runs("long", "began"))
    total = 0
    for _ in range(5):
        jobs = enqueue_many(tasks.reads, [((n,), {}) for n in range(50)])
        total += terminate()
    until(lambda: all(is_archived(job.id) for job in jobs))
    until(lambda: is_archived(long.id))
    until(lambda: count("pgbus_messages") == count("pgbus_delayed") == 0)
    attempts = execute("SELECT attempts, count(*) FROM pgbus_archive GROUP BY 1 ORDER BY 1")
    print(f"{total} sessions ended in five blows; attempts {dict(attempts)}")
    assert count("pgbus_archive") == 251
    assert count("pgbus_dead_letters") == 0
    assert (archived(long.id)["attempts"], runs("long")) == (1, 2)
    assert worker.children() == children
    assert worker.stop() == 0


def test_a_worker_that_is_started_before_its_database_waits_for_it(server, runworker_there):
    tasks.note.enqueue("early")
    server.stop()
    worker = runworker_there()
    worker.until_logged("lost the database")
    server.start()
    until(lambda: runs("early"))
    assert worker.stop() == 0


def test_a_worker_that_waits_for_its_database_obeys(server, runworker_there):
    server.stop()
    worker = runworker_there()
    worker.until_logged("lost the database")
    assert worker.stop(15) == 0
