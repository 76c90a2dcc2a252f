"""The numbers of the queues: right, and never the result of a long look."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgbus.models import Level, QueueState
from django_pgbus.queues import stats
from django_pgbus.queues.stats import Count
from django_pgbus.tasks import lifecycle
from tests.admin import rows

pytestmark = pytest.mark.django_db


def by_name() -> dict[str, stats.QueueStats]:
    return {queue.name: queue for queue in stats.queues()}


def test_each_queue_has_its_own_numbers() -> None:
    for number in range(3):
        rows.a_message(queue="a", priority=number)
    rows.a_running(queue="a")
    rows.a_running(queue="a", suspect=True)
    rows.a_delayed(queue="a")
    rows.a_delayed(queue="b")
    rows.a_dead_letter(queue="b")
    found = by_name()
    assert (found["a"].ready, found["a"].running, found["a"].delayed, found["a"].dead) == (
        Count(3),
        Count(2),
        Count(1),
        Count(0),
    )
    assert (found["b"].ready, found["b"].delayed, found["b"].dead) == (Count(0), Count(1), Count(1))


def test_nothing_is_known_of_an_empty_database() -> None:
    assert stats.queues() == []
    assert stats.names() == []
    assert stats.pauses().queues == {}
    assert stats.totals([]).ready == Count(0)


def test_names_come_from_every_table_that_has_them() -> None:
    Level.objects.create(queue="used", priority=0, suspect=False)
    QueueState.objects.create(queue="decided")
    rows.a_message(queue="line")
    rows.a_delayed(queue="later")
    rows.a_dead_letter(queue="dead")
    rows.an_archived(queue="finished")
    assert stats.names() == ["dead", "decided", "later", "line", "used"] == list(by_name())
    assert stats.names(2) == ["dead", "decided"]


def test_a_wait_counts_from_the_line_not_from_the_enqueueing() -> None:
    delayed = rows.a_delayed(enqueued_at=rows.now() - timedelta(days=2), due_at=rows.now() - timedelta(seconds=1))
    lifecycle.move_due(["default"])
    (queue,) = stats.queues()
    assert queue.ready == Count(1), delayed
    assert queue.oldest_ready is not None
    assert queue.oldest_ready < 3600


def test_a_job_handed_back_waits_anew() -> None:
    job = rows.a_running(ready_at=rows.now() - timedelta(hours=5))
    lifecycle.hand_back([(job.pk, job.delivery)])
    (queue,) = stats.queues()
    assert queue.oldest_ready is not None
    assert queue.oldest_ready < 3600


def test_the_oldest_is_that_of_the_longest_wait() -> None:
    rows.a_message(ready_at=rows.now() - timedelta(hours=3))
    rows.a_message(ready_at=rows.now() - timedelta(hours=4), priority=5)
    rows.a_running(ready_at=rows.now() - timedelta(hours=9))
    (queue,) = stats.queues()
    assert queue.oldest_ready == pytest.approx(4 * 3600, abs=60)


def test_the_next_due_is_told_in_seconds() -> None:
    rows.a_delayed(due_at=rows.now() + timedelta(hours=2))
    rows.a_delayed(due_at=rows.now() + timedelta(hours=1))
    (queue,) = stats.queues()
    assert queue.next_due == pytest.approx(3600, abs=60)


def test_counts_end_at_the_limit_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "LIMIT", 3)
    for _ in range(3):
        rows.a_dead_letter(queue="three")
        rows.a_message(queue="three")
    for _ in range(4):
        rows.a_dead_letter(queue="four")
        rows.a_message(queue="four")
        rows.a_delayed(queue="four")
    found = by_name()
    assert (found["three"].ready, found["three"].dead) == (Count(3), Count(3))
    assert (found["four"].ready, found["four"].dead, found["four"].delayed) == (Count(3, True),) * 3


def test_what_runs_is_not_counted_as_ready_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "LIMIT", 5)
    for _ in range(2):
        rows.a_running()
    for _ in range(9):
        rows.a_message()
    (queue,) = stats.queues()
    assert (queue.running, queue.ready) == (Count(2), Count(4, True))


def test_many_levels_share_what_may_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "BUDGET", 200)
    for queue in ("a", "b"):
        for _ in range(101):
            rows.a_message(queue=queue)
    assert [str(queue.ready) for queue in stats.queues()] == ["100+", "100+"]


def test_totals_leave_out_the_wait_in_paused_queues() -> None:
    rows.a_message(queue="a", ready_at=rows.now() - timedelta(hours=1))
    rows.a_message(queue="b", ready_at=rows.now() - timedelta(hours=9))
    lifecycle.pause_queue("b", "anna")
    total = stats.totals(stats.queues())
    assert total.ready == Count(2)
    assert total.paused == ("b",)
    assert total.oldest_ready == pytest.approx(3600, abs=60)
    pause = stats.pauses().queues["b"]
    assert (pause.by, list(stats.pauses().queues)) == ("anna", ["b"])


def test_what_goes_first_is_counted_within_the_queue() -> None:
    rows.a_message(queue="other", priority=9)
    rows.a_running(priority=9)
    rows.a_message(priority=9)
    rows.a_message()
    job = rows.a_message()
    rows.a_message()
    job.refresh_from_db()
    assert stats.ahead(job.queue, job.priority, job.suspect, job.position) == Count(2)


def test_what_runs_is_found_in_every_level() -> None:
    for _ in range(3):
        rows.a_message()
    running = [rows.a_running().pk, rows.a_running(queue="b", priority=3).pk, rows.a_running(suspect=True).pk]
    assert sorted(stats.running_ids()) == sorted(running)


def test_what_is_delayed_is_found_by_its_reason() -> None:
    retry = [rows.a_delayed(reason="retry").pk, rows.a_delayed(reason="retry", queue="b").pk]
    rows.a_delayed()
    assert sorted(stats.soonest_ids("retry")) == sorted(retry)
    assert stats.soonest_ids("snoozed") == []


def test_a_count_reads_like_a_number() -> None:
    assert [str(Count(0)), str(Count(12_345)), str(Count(10_000, True))] == ["0", "12,345", "10,000+"]
    assert Count(1) + Count(2, True) == Count(3, True)
    assert [bool(Count(0)), bool(Count(1))] == [False, True]
