"""The numbers of the uniqueness keys."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgbus.postgres.keys import stored
from django_pgbus.queues.stats import Count
from django_pgbus.uniqueness import stats
from tests.admin import rows

pytestmark = pytest.mark.django_db


def test_those_held_longest_stand_first() -> None:
    for minutes, key in ((1, "a"), (9, "b"), (5, "c")):
        rows.a_lock(rows.a_message().pk, key, created_at=rows.now() - timedelta(minutes=minutes))
    assert [lock.key for lock in stats.locks()] == ["b", "c", "a"]
    assert [lock.key for lock in stats.locks(most=1)] == ["b"]
    assert stats.locks()[0].held_for == pytest.approx(9 * 60, abs=30)
    assert stats.total() == Count(3)


def test_it_is_said_where_the_job_is() -> None:
    places = {
        "line": rows.a_message(),
        "running": rows.a_running(),
        "delayed": rows.a_delayed(),
        "parked": rows.a_parked(),
        "": rows.an_archived(),
    }
    for place, job in places.items():
        rows.a_lock(job.pk, f"key {place}", strategy="while_executing", queue="mail")
    assert {lock.place: lock.message for lock in stats.locks()} == {place: job.pk for place, job in places.items()}
    assert {(lock.strategy, lock.queue) for lock in stats.locks()} == {("while_executing", "mail")}


def test_a_key_is_found_as_it_was_chosen_and_as_it_is_stored() -> None:
    long = "order " * 100
    rows.a_lock(1, "short")
    rows.a_lock(2, stored(long), name=long)
    assert [lock.message for lock in stats.locks("short")] == [1]
    assert [lock.message for lock in stats.locks(long)] == [2]
    assert [lock.message for lock in stats.locks(stored(long))] == [2]
    assert stats.locks("sho") == stats.locks("a\x00b") == []


def test_one_lock_is_read_by_its_stored_key() -> None:
    rows.a_lock(7, "a")
    found = stats.lock("a")
    assert found is not None
    assert found.message == 7
    assert stats.lock("b") is None


def test_counts_end_at_the_limit_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "LIMIT", 2)
    for number in range(3):
        rows.a_lock(number, str(number))
    assert stats.total() == Count(2, True)


def test_as_many_questions_for_a_thousand_keys_as_for_one() -> None:
    asked = []
    for number in (1, 1000):
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO pgbus_uniqueness_keys (key, message_id, strategy, queue)"
                " SELECT %s || ' ' || n, n, 'until_executed', 'default' FROM generate_series(1, %s) AS n",
                [str(number), number],
            )
        with CaptureQueriesContext(connection) as queries:
            stats.locks()
            stats.total()
        asked.append(len(queries))
    assert asked == [3, 3]
