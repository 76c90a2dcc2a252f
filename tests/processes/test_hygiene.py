"""What a job leaves behind is not there for the next one in its thread."""

from __future__ import annotations

import json
import time

import pytest

from django_pgbus import enqueue_many
from tests.processes import tasks
from tests.processes.harness import (
    JOBS,
    archived,
    count,
    execute,
    finished,
    is_archived,
    job_sessions,
    memory,
    runs,
    sessions,
    terminate,
    until,
)

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]

PERSISTENT = {"CONN_MAX_AGE": 600}
OWN = 6  # connections of a process besides its jobs': heart, consumer, completer, listener, dispatcher; and its supervisor's


def result(job):
    until(lambda: is_archived(job.id))
    return json.loads(archived(job.id)["result"])


@pytest.mark.parametrize("more", [{}, PERSISTENT], ids=["CONN_MAX_AGE=0", "CONN_MAX_AGE=600"])
def test_transactions_that_a_job_leaves_open_are_rolled_back(runworker, more):
    worker = runworker("--threads=1", database_more=more)
    worker.ready()
    for leak in (
        tasks.leaks_a_broken_transaction,
        tasks.leaks_an_open_transaction,
        tasks.leaks_a_transaction_of_sql,
        tasks.turns_autocommit_off,
        tasks.closes_the_socket,
    ):
        jobs = enqueue_many(leak, [((), {})])
        seen = result(tasks.looks_around.enqueue())
        until(lambda: is_archived(jobs[0].id))  # noqa: B023
        assert (seen["autocommit"], seen["atomic"]) == (True, False), leak
    assert runs("leaked") == 0, "None of it was committed."
    assert runs("looks_around") == 5
    assert count("pgbus_dead_letters") == count("pgbus_delayed") == 0
    assert worker.stop() == 0


def test_language_time_zone_and_context_are_as_in_the_settings_again(runworker):
    worker = runworker("--threads=1")
    worker.ready()
    tasks.changes_everything_else.enqueue()
    seen = result(tasks.looks_around.enqueue())
    assert (seen["language"], seen["zone"], seen["mood"]) == ("en", "Europe/Madrid", "calm")
    assert worker.stop() == 0


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "while another one runs on"])
def test_what_an_async_job_leaves_behind_is_not_there_for_the_next(runworker, alone):
    worker = runworker("--threads=1", "--grace=0", database_more=PERSISTENT)
    worker.ready()
    if not alone:
        tasks.awaits.enqueue("long", 600)
        until(lambda: runs("long", "began"))
    for _ in range(3):
        finished(tasks.achanges_everything_else.enqueue())
        seen = result(tasks.alooks_around.enqueue())
        assert seen == {"language": "en", "zone": "Europe/Madrid", "mood": "calm", "atomic": False}
        finished(tasks.areads.enqueue("reads"))
    assert worker.stop() == 0


@pytest.mark.proves("connections-and-memory-stay")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "more"),
    [({}, {}), ({"DEBUG": True}, PERSISTENT)],
    ids=["as it comes", "DEBUG=True, CONN_MAX_AGE=600"],
)
def test_ten_thousand_jobs_on_four_threads_take_no_more_connections_and_memory_than_a_thousand(
    runworker, settings, more
):
    others = sessions()  # of this test run
    worker = runworker("--threads=4", settings=settings, database_more=more)
    (child,) = worker.ready()
    seen, used = [], {}

    def done() -> int:
        seen.append(sessions())
        return count("pgbus_archive")

    for total in (2_000, 6_000, 10_000):
        number = total - (max(used) if used else 0)
        for start in range(0, number, 1000):
            enqueue_many(tasks.reads, [((n,), {}) for n in range(start, start + 1000)])
        until(lambda: done() >= total, 100)  # noqa: B023
        used[total] = memory(child) // 1024
    logged = result(tasks.counts_logged_queries.enqueue())
    print(f"connections {min(seen)} to {max(seen)}; MiB {used}; statements remembered {logged}")
    assert worker.children() == [child]
    assert count("pgbus_delayed") == count("pgbus_dead_letters") == 0
    assert max(seen) - others <= 4 + OWN
    assert used[10_000] - used[2_000] < 12
    assert logged < 50, "connection.queries grows"
    assert worker.stop() == 0


@pytest.mark.proves("connections-and-memory-stay")
def test_a_pool_survives_the_jobs_and_gets_its_connections_back(runworker):
    pytest.importorskip("psycopg_pool")
    pool = {"min_size": 1, "max_size": 2, "timeout": 5}
    worker = runworker("--threads=6", database_more={"OPTIONS": {"pool": pool}, "CONN_MAX_AGE": 0})
    worker.ready()
    first = result(tasks.names_the_pool.enqueue())
    # Six threads, two connections: whoever kept one would starve the others.
    seen = []

    def done() -> int:
        seen.append(job_sessions())
        return count("pgbus_archive")

    for total in (1001, 2001):
        enqueue_many(tasks.reads, [((n,), {}) for n in range(1000)])
        until(lambda: done() == total)  # noqa: B023
    last = result(tasks.names_the_pool.enqueue())
    assert last[0] == first[0], "The pool is the same."
    assert execute("SELECT max(attempts) FROM pgbus_archive") == [(1,)]
    print(f"connections of the pool: {min(seen)} to {max(seen)}")
    assert max(seen) <= 2
    tasks.leaks_an_open_transaction.enqueue()
    tasks.leaks_a_broken_transaction.enqueue()
    seen = result(tasks.looks_around.enqueue())
    assert (seen["autocommit"], seen["atomic"]) == (True, False)
    assert runs("leaked") == 0
    assert worker.stop() == 0


@pytest.mark.proves("connections-and-memory-stay")
def test_with_conn_max_age_0_an_idle_worker_keeps_no_connection_of_its_jobs(runworker):
    worker = runworker("--threads=4", database_more={"CONN_MAX_AGE": 0, "OPTIONS": {"pool": False}})
    worker.ready()
    enqueue_many(tasks.reads, [((n,), {}) for n in range(200)])
    tasks.areads.enqueue("async")
    until(lambda: count("pgbus_archive") == 201)
    until(lambda: job_sessions() == 0, 10)
    assert worker.stop() == 0


@pytest.mark.parametrize("checks", [True, False], ids=["with health checks", "without"])
def test_a_connection_that_was_killed_while_the_worker_slept_stops_no_job(runworker, checks):
    worker = runworker("--threads=1", database_more={"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": checks})
    children = worker.ready()
    finished(tasks.reads.enqueue())
    until(lambda: job_sessions() == 1)
    assert terminate(JOBS) == 1
    jobs = [tasks.reads.enqueue() for _ in range(5)]
    until(lambda: all(is_archived(job.id) for job in jobs))
    attempts = [archived(job.id)["attempts"] for job in jobs]
    print("attempts after the kill:", attempts)
    assert sum(attempts) <= (5 if checks else 6), "At most the first job met the dead connection."
    assert worker.children() == children
    assert worker.stop() == 0


def test_a_connection_of_async_jobs_that_was_killed_is_replaced_though_one_of_them_runs_on(runworker):
    worker = runworker("--threads=1", "--grace=0", database_more={"CONN_MAX_AGE": None})
    worker.ready()
    tasks.awaits.enqueue("long", 600)  # the event loop is never idle
    until(lambda: runs("long", "began"))
    assert terminate(JOBS) == 1
    jobs = [tasks.areads.enqueue("short") for _ in range(3)]
    until(lambda: all(is_archived(job.id) for job in jobs), 15)
    print("attempts after the kill:", [archived(job.id)["attempts"] for job in jobs])
    assert worker.stop() == 0


SESSION = {
    "idle sessions are ended": "-c idle_session_timeout=700",
    "transactions are serializable": "-c default_transaction_isolation=serializable",
    "statements are cut short": "-c statement_timeout=3000 -c lock_timeout=500",
}


@pytest.mark.parametrize("options", SESSION.values(), ids=SESSION.keys())
def test_what_the_database_sets_for_every_session_disturbs_no_worker(runworker, options):
    worker = runworker("--processes=2", "--threads=4", database_more={"OPTIONS": {"options": options, "pool": False}})
    children = worker.ready(2)
    for total in (400, 800):
        enqueue_many(tasks.reads, [((n,), {}) for n in range(400)])
        until(lambda: count("pgbus_archive") == total)  # noqa: B023
        rested = time.monotonic() + 1.5
        until(lambda: time.monotonic() > rested)  # noqa: B023
    assert execute("SELECT max(attempts) FROM pgbus_archive") == [(1,)]
    assert worker.children() == children
    assert [line for line in worker.log.splitlines() if " lost the database" in line or "goes on" in line] == []
    assert worker.stop() == 0
