"""The verdict: OK while all is well, DEGRADED when something needs a person, STALLED when work waits for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection

from django_pgbus.models import DeadLetter, Delayed, Election, Message, Subscription, Worker
from django_pgbus.postgres import stats as database_stats
from django_pgbus.queues import stats as queue_stats
from django_pgbus.tasks import lifecycle
from django_pgbus.worker.verdict import Status, Verdict, verdict
from tests.admin import rows
from tests.admin.stream_rows import a_dead, a_group, a_stream

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nobody_subscribed(db: None) -> None:
    Subscription.objects.all().delete()


@pytest.fixture
def well() -> Worker:
    """A worker that beats, serves everything, and is the dispatcher."""
    worker = rows.a_worker(running=0)
    Election.objects.create(office="dispatcher", worker=worker.id, until=rows.now() + timedelta(minutes=1))
    return worker


def waits(seconds: float, **fields: Any) -> Message:
    """Return a ready job that has waited for so long."""
    job = rows.a_message(**fields)
    Message.objects.filter(pk=job.pk).update(ready_at=rows.now() - timedelta(seconds=seconds))
    return job


def said(found: Verdict) -> str:
    return " ".join(found.reasons)


# --- OK ------------------------------------------------------------------------------------------------


def test_all_is_well(well: Worker) -> None:
    for make in (rows.a_message, rows.a_running, rows.a_delayed, rows.an_archived):
        make()
    found = verdict()
    assert (found.status, found.reasons) == (Status.OK, ())
    assert found.totals is not None
    assert found.totals.ready.number == 1


def test_a_job_that_was_enqueued_this_moment_stalls_nothing(well: Worker) -> None:
    waits(59)
    assert verdict().status is Status.OK


def test_workers_that_are_busy_stall_nothing(well: Worker) -> None:
    waits(200)
    rows.a_running(well.id)
    assert verdict().status is Status.OK
    Message.objects.filter(leased_until__isnull=False).delete()
    Worker.objects.update(running=10)  # with the jobs of other queues
    assert verdict().status is Status.OK


# --- STALLED -------------------------------------------------------------------------------------------


def test_work_and_no_worker() -> None:
    waits(125)
    found = verdict()
    assert found.status is Status.STALLED
    assert found.reasons[0] == "No worker takes jobs, and work waits in default, the oldest for 2 min 5 s."


@pytest.mark.parametrize(
    "fields", [{"state": "draining"}, {"lease": timedelta(seconds=-1)}, {"queues": "", "streams": "a/b"}]
)
def test_work_and_no_worker_that_takes_it(fields: dict[str, Any]) -> None:
    rows.a_worker(**fields)
    rows.a_message()
    assert verdict().status is Status.STALLED


def test_workers_that_take_nothing(well: Worker) -> None:
    waits(61)
    found = verdict()
    assert found.status is Status.STALLED
    assert "1 ready job there, the oldest for 1 min 1 s, and the workers that serve it run nothing" in said(found)


def test_what_is_due_is_not_moved(well: Worker) -> None:
    rows.a_delayed(due_at=rows.now() - timedelta(seconds=90))
    assert "overdue by 1 min 30 s" in said(found := verdict())
    assert found.status is Status.STALLED
    Delayed.objects.update(due_at=rows.now() - timedelta(seconds=30))
    assert verdict().status is Status.OK


# --- DEGRADED ------------------------------------------------------------------------------------------


def degraded(text: str) -> None:
    found = verdict()
    assert text in said(found)
    assert found.status is Status.DEGRADED, found.reasons


def test_no_worker_and_nothing_to_do() -> None:
    degraded("No worker takes jobs: whatever is enqueued waits.")


def test_a_worker_that_fell_silent(well: Worker) -> None:
    rows.a_worker(name="lost", lease=timedelta(seconds=-1))
    degraded("1 worker fell silent, the last one 0 s ago: lost.")


def test_a_worker_that_is_deaf(well: Worker) -> None:
    Worker.objects.update(listening=False)
    degraded("1 worker hears no notifications and only polls: shop-1.")


def test_no_dispatcher(well: Worker) -> None:
    Election.objects.all().delete()
    degraded("No worker is the dispatcher")


def test_a_paused_queue_with_a_backlog(well: Worker) -> None:
    lifecycle.pause_queue("default", by="anna")
    assert verdict().status is Status.OK
    waits(4000)
    degraded("Queue default is paused by anna: 1 ready job there, the oldest for 1 h 6 min.")


def test_a_queue_that_nobody_serves(well: Worker) -> None:
    Worker.objects.update(queues="mail: 4")
    rows.a_message()
    degraded("No running worker serves queue default: 1 ready job there")


def test_a_queue_that_is_behind(well: Worker) -> None:
    waits(301)
    rows.a_running(well.id)
    degraded("Queue default is behind: 1 ready job there, the oldest for 5 min 1 s.")


def test_dead_letters(well: Worker) -> None:
    rows.a_dead_letter()
    degraded("1 dead letter waits for a person.")
    rows.a_dead_letter()
    degraded("2 dead letters wait for a person.")
    assert DeadLetter.objects.count() == 2


def test_handlers_whose_queue_nobody_serves(well: Worker) -> None:
    for nth in range(5):
        rows.a_subscription(handler=f"a.handler_{nth}", queue=f"@q{nth}")
    degraded("no running worker serves their queue: @q0, @q1, @q2 and 2 more.")


def test_streams(well: Worker) -> None:
    stream = a_stream(entries=3)
    group = a_group(stream, claimed=3)
    assert verdict().status is Status.OK
    a_dead(group, 2)
    degraded("1 dead letter of streams waits for a person.")
    group.paused_at = rows.now()
    group.save()
    degraded("1 consumer group paused: ledger/totals.")
    a_group(stream, "lost", claimed=99)
    degraded("a consumer group refuses to work: ledger/lost.")


def test_an_old_transaction(well: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_stats, "transactions", lambda: database_stats.Transactions(oldest=301.0, held_back=0))
    degraded("A transaction has been open for 5 min 1 s")


def test_what_cannot_be_looked_at(well: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT no_such_column")
        raise AssertionError

    monkeypatch.setattr(queue_stats, "queues", broken)
    degraded("The queues could not be looked at (ProgrammingError).")
    assert verdict().totals is None
    assert verdict().workers is not None


def test_the_worst_comes_first_and_there_is_an_end(well: Worker) -> None:
    Worker.objects.update(queues="mail: 4")
    for nth in range(60):
        rows.a_message(queue=f"queue-{nth:02}")
    waits(61, queue="mail")
    found = verdict()
    assert found.status is Status.STALLED
    assert found.reasons[0].startswith("Queue mail:")
    assert len(found.reasons) == 51
    assert found.reasons[-1] == "And 11 more reasons."


def test_a_lost_connection_is_not_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    def away() -> Any:
        raise OperationalError("gone")

    monkeypatch.setattr(queue_stats, "queues", away)
    with pytest.raises(DatabaseError):
        verdict()
