"""What a process held when it ended is set right in the database, by a thread with a connection of its own."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_pgbus.queues import sweeps
from django_pgbus.queues.models import Delayed, Message
from django_pgbus.tasks import lifecycle
from django_pgbus.worker import sql as worker_sql
from django_pgbus.worker.endings import Ending
from django_pgbus.worker.ledger import Holding, TimedOut
from django_pgbus.worker.repairs import DatabaseRepairs, Repair, Repairs
from tests.constrained import enqueue, one, parked
from tests.jobs import noop

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def repairs():
    repairs = Repairs(DatabaseRepairs(), lambda: None)
    repairs.start()
    yield repairs
    repairs.finish(10)


def make(repairs, ending, held, **given):
    repairs.submit(repair := Repair(ending=ending, held=held, **{"worker": uuid.uuid4(), **given}))
    deadline = time.monotonic() + 20
    while not repairs.idle:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return repair


def leased(**fields):
    soon = timezone.now() + timedelta(minutes=5)
    row = {
        "queue": "q",
        "task": noop.module_path,
        "payload": '{"args": [], "kwargs": {}}',
        "delivery": 1,
        "attempts": 1,
    }
    return Message.objects.create(**{**row, "leased_until": soon, "worker": uuid.uuid4(), **fields})


def test_jobs_of_a_dead_process_are_suspects_and_only_the_started_keep_their_attempt(repairs):
    started, buffered, superseded = leased(), leased(), leased(delivery=9)

    make(
        repairs,
        Ending.DIED,
        [
            Holding(started.id, 1, True, False),
            Holding(buffered.id, 1, False, False),
            Holding(superseded.id, 8, True, False),
        ],
    )

    rows = {m.id: (m.suspect, m.attempts, m.leased_until is None, m.delivery) for m in Message.objects.all()}
    assert rows == {
        started.id: (True, 1, True, 2),
        buffered.id: (True, 0, True, 2),
        superseded.id: (False, 1, False, 9),
    }


def test_jobs_of_a_stopped_process_go_back_without_an_attempt(repairs):
    job = leased()

    make(repairs, Ending.STOPPED, [Holding(job.id, 1, True, False)])

    job.refresh_from_db()
    assert (job.suspect, job.attempts, job.leased_until, job.delivery) == (False, 0, None, 2)


@pytest.mark.parametrize("ending", [Ending.DIED, Ending.TIMED_OUT])
def test_what_a_process_had_claimed_and_told_nobody_of_goes_back_too(repairs, ending):
    worker = uuid.uuid4()
    unreported, of_another = leased(worker=worker), leased()
    sweeps.find_levels()

    make(repairs, ending, [], worker=worker)

    unreported.refresh_from_db()
    of_another.refresh_from_db()
    assert (unreported.suspect, unreported.attempts, unreported.leased_until) == (False, 0, None)
    assert unreported.delivery == 2
    assert of_another.leased_until is not None


def test_a_hard_timeout_is_a_failed_attempt_of_its_job_alone(repairs):
    stuck, other = leased(), leased()

    make(
        repairs,
        Ending.TIMED_OUT,
        [Holding(stuck.id, 1, True, False), Holding(other.id, 1, True, False)],
        timed_out=TimedOut(stuck.id, 5, 7.0),
    )

    assert Delayed.objects.get().id == stuck.id
    assert "TaskTimeout" in str(Delayed.objects.get().errors)
    other.refresh_from_db()
    assert (other.attempts, other.leased_until) == (0, None)


@pytest.mark.needs_session("it knows sessions by their names")
def test_between_repairs_no_connection_is_held(repairs):
    make(repairs, Ending.STOPPED, [Holding(leased().id, 1, True, False)])
    deadline = time.monotonic() + 10
    while True:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbus supervisor'")
            if cursor.fetchone() == (0,):
                break
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.needs_session("it knows sessions by their names")
def test_a_connection_that_was_cut_is_opened_anew(repairs):
    make(repairs, Ending.STOPPED, [Holding(leased().id, 1, True, False)])
    job = leased()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbus supervisor'"
        )
    make(repairs, Ending.STOPPED, [Holding(job.id, 1, True, False)])
    job.refresh_from_db()
    assert job.leased_until is None


def test_who_waits_for_what_a_dead_process_freed_is_let_in_at_once(repairs, monkeypatch):
    """It died between its commit and its look; with a kill a second no dispatcher lives long enough to sweep."""
    monkeypatch.setattr(lifecycle, "let_in", lambda *args: 0)
    id = enqueue(one, "a")
    monkeypatch.undo()
    assert parked() == [id]
    make(repairs, Ending.DIED, [])
    assert parked() == []


def test_a_dead_dispatcher_makes_way_at_once(repairs):
    dead, other = uuid.uuid4(), uuid.uuid4()
    worker_sql.RUN_FOR_OFFICE.rows(office="dispatcher", worker=dead, term="1 hour")
    make(repairs, Ending.DIED, [], worker=dead)
    assert worker_sql.RUN_FOR_OFFICE.rows(office="dispatcher", worker=other, term="1 hour")
