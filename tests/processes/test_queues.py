"""Which queues a worker serves, when, and how soon."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.db import connection

from django_pgbus import enqueue_many
from django_pgbus.tasks import lifecycle
from tests.processes import tasks
from tests.processes.harness import count, database_time, execute, finished, is_archived, runs, until, value, when

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]


def put(queue: str, name: str | None = None):
    return tasks.note.using(queue_name=queue).enqueue(name or queue)


def put_by_sql(queue: str, name: str, priority: int = 0) -> None:
    """Do as somebody with psql does: nobody is told."""
    execute(
        "INSERT INTO pgbus_messages (queue, priority, task, payload)"
        " VALUES (%s, %s, 'tests.processes.tasks.note', %s::json)",
        queue,
        priority,
        f'{{"args": ["{name}"], "kwargs": {{}}}}',
    )


@pytest.mark.parametrize(
    ("options", "served", "left"),
    [
        (["--queues=mail_*: 1; reports: 1"], ["mail_fast", "reports"], ["default", "mail"]),
        (["--queues=*,!mail_*"], ["default", "mail", "reports"], ["mail_fast"]),
        (["--queues=mail*,reports", "--exclude-queues=reports"], ["mail", "mail_fast"], ["default", "reports"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_worker_serves_the_queues_it_is_told(runworker, options, served, left):
    worker = runworker(*options)
    worker.ready()
    for queue in (*left, *served):  # first what it must not take
        put(queue)
    until(lambda: all(runs(queue) for queue in served))
    assert worker.stop() == 0
    assert [queue for queue in left if runs(queue)] == []
    assert count("pgbus_messages") == len(left)
    assert value("SELECT coalesce(max(delivery), 0) FROM pgbus_messages") == 0


def test_a_level_nobody_announced_is_found_when_a_worker_starts(runworker):
    put_by_sql("orphaned", "orphan", priority=-7)
    worker = runworker()
    until(lambda: runs("orphan"))
    assert worker.stop() == 0


def test_a_level_nobody_announced_is_found_by_the_dispatcher(runworker):
    worker = runworker("--processes=2", sweep_every=1.0)  # a minute else
    worker.ready(2)
    until(lambda: value("SELECT count(*) FROM pgbus_election"))
    put_by_sql("orphaned", "orphan", priority=-7)
    put_by_sql("default", "another priority", priority=33)
    until(lambda: runs("orphan") and runs("another priority"))
    assert worker.stop() == 0


def test_delayed_jobs_start_when_they_are_due(runworker):
    worker = runworker("--threads=4")
    worker.ready()
    due = {}
    for n, seconds in enumerate((0.3, 0.7, 1.5, 2.2, 3.1)):
        due[f"delayed {n}"] = database_time() + seconds
        tasks.note.using(run_after=timedelta(seconds=seconds)).enqueue(f"delayed {n}")
    until(lambda: all(runs(name) for name in due))
    late = [when(name, "ran") - moment for name, moment in due.items()]
    print("late by ms:", [round(seconds * 1000) for seconds in late])
    assert min(late) > 0, "None of them ran early."
    assert max(late) < 2
    assert worker.stop() == 0


@pytest.mark.proves("pause-holds-within-a-poll")
def test_a_paused_queue_rests_within_a_second_and_goes_on_when_resumed(runworker):
    worker = runworker("--processes=2", "--threads=2")
    worker.ready(2)
    enqueue_many(tasks.naps, [(("busy", 0.01), {})] * 800)
    until(lambda: runs("busy") > 50)
    lifecycle.pause_queue("default", by="a test")
    paused = database_time()
    put("other")
    until(lambda: runs("other"))
    until(lambda: value("SELECT count(*) FROM pgbus_messages WHERE leased_until IS NOT NULL") == 0)
    until(lambda: database_time() > paused + 3)
    last = when("busy", "ran", "max")
    print(f"the last job ended {last - paused:.3f} s after the pause; {runs('busy')} of 800 had run")
    assert last < paused + 2
    assert runs("busy") < 800
    assert value("SELECT max(attempts) FROM pgbus_messages") == 0

    lifecycle.resume_queue("default", by="a test")
    resumed = database_time()
    until(
        lambda: value("SELECT count(*) FROM process_test_runs WHERE name = 'busy' AND at > to_timestamp(%s)", resumed)
    )
    went_on = "SELECT extract(epoch FROM min(at)) FROM process_test_runs WHERE name = 'busy' AND at > to_timestamp(%s)"
    print(f"it went on {float(value(went_on, resumed)) - resumed:.3f} s after the resumption")
    until(lambda: runs("busy") == 800)
    assert worker.stop() == 0
    assert runs("busy") == 800


def test_what_waits_behind_long_jobs_is_not_claimed_over_and_over(runworker):
    worker = runworker("--threads=4")
    worker.ready()
    enqueue_many(tasks.nothing, [((n,), {}) for n in range(200)])  # short ones: it begins to buffer
    until(lambda: count("pgbus_archive") == 200)
    enqueue_many(tasks.naps, [(("long", 4.0), {})] * 4)
    until(lambda: value("SELECT count(*) FROM pgbus_messages WHERE leased_until IS NOT NULL") == 4)
    behind = enqueue_many(tasks.note, [(("behind",), {})] * 100)
    until(lambda: runs("behind") == 100)
    until(lambda: all(is_archived(job.id) for job in behind))
    ids = [int(job.id) for job in behind]
    most = value("SELECT max(delivery) FROM pgbus_archive WHERE id = ANY(%s)", ids)
    total = value("SELECT sum(delivery) FROM pgbus_archive WHERE id = ANY(%s)", ids)
    print(f"100 jobs behind four long ones: {total} deliveries in all, at most {most} of one")
    assert value("SELECT max(attempts) FROM pgbus_archive") == 1
    assert most <= 8
    assert worker.stop() == 0


def test_an_idle_worker_asks_little_and_writes_one_row_per_beat(runworker):
    def numbers() -> dict[str, int]:
        written = execute("SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables")
        asked = value("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
        connection.close()  # tells what this session did
        return {"asked": asked, **dict(written)}

    def wait(seconds: float) -> None:
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() > end)

    beat, length = 1.0, 5.0
    at_first = numbers()
    worker = runworker("--processes=2", pgbus={"VISIBILITY_TIMEOUT": 3 * beat})
    worker.ready(2)
    finished(tasks.note.enqueue())
    until(lambda: value("SELECT bool_and(listening) FROM pgbus_workers") and count("pgbus_election"))
    # A session that rests tells its numbers after ten seconds.
    until(lambda: numbers()["pgbus_archive"] > at_first["pgbus_archive"])
    wait(2)
    before = numbers()
    wait(length)
    after = numbers()
    asked = after.pop("asked") - before.pop("asked")
    written = {name: n - before[name] for name, n in after.items() if n != before[name]}
    print(f"two idle processes in {length:g} s: {asked / 2 / length:.2f} transactions/s each; rows written {written}")
    assert set(written) <= {"pgbus_workers", "pgbus_election"}
    assert length / beat <= written["pgbus_workers"] <= 2 * (length / beat + 3)
    assert written.get("pgbus_election", 0) <= length / beat + 3
    # A poll and a beat per second each, the election and the sweeps of one of them, ours, and what is told late.
    assert asked <= 2 * length * 12
    assert worker.stop() == 0
