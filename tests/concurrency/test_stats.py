"""The numbers of the limits: right, of the few that are shown, and asked for a fixed number of times."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgbus.concurrency import stats
from django_pgbus.concurrency.stats import Holder, Lease
from django_pgbus.models import Semaphore
from django_pgbus.queues.stats import Count
from tests.admin import rows
from tests.admin.conftest import long_up as stats_long_up  # noqa: F401
from tests.constrained import claim_and_pick_up, enqueue, one_or_error, two
from tests.line import COMMITTED, long_up  # noqa: F401
from tests.sessions import sessions

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("stats_long_up")]


def ago(**time: float) -> object:
    return rows.now() - timedelta(**time)


def one(key: str = "printer") -> stats.KeyStats:
    found = stats.key(key)
    assert found is not None
    return found


def test_nothing_is_known_of_an_empty_database() -> None:
    assert stats.busiest() == []
    assert stats.key("printer") is None
    assert stats.waiting_for(["printer"]) == {}
    totals = stats.totals()
    assert (totals.parked.number, totals.parked.oldest) == (Count(0), None)
    assert (totals.slots, totals.at_limit) == (Count(0), Count(0))


def test_totals_are_of_all_keys_and_waits_for_uniqueness_keys_stand_apart() -> None:
    for key, capacity in (("a", 1), ("b", 2), ("c", 1)):
        rows.a_limit(key, capacity)
        rows.a_slot(rows.a_message().pk, key)
    rows.a_parked("a", parked_at=ago(minutes=9))
    rows.a_parked("b", parked_at=ago(minutes=5))
    rows.a_parked("u", waits_for="key", semaphore=None, parked_at=ago(hours=2))
    totals = stats.totals()
    assert totals.parked.number == Count(2)
    assert totals.parked.oldest == pytest.approx(9 * 60, abs=30)
    assert totals.parked_for_keys.number == Count(1)
    assert totals.parked_for_keys.oldest == pytest.approx(2 * 3600, abs=30)
    assert (totals.slots, totals.at_limit) == (Count(3), Count(2))


def test_who_is_not_due_yet_waits_for_its_time() -> None:
    rows.a_parked(parked_at=ago(days=3), due_at=rows.now() + timedelta(hours=1))
    rows.a_parked(parked_at=ago(minutes=2))
    assert stats.totals().parked.number == Count(2)
    assert stats.totals().parked.oldest == pytest.approx(120, abs=30)
    assert (one().parked, one().not_due) == (Count(2), 1)
    assert one().oldest == pytest.approx(120, abs=30)


def test_the_busiest_key_stands_first_then_the_one_with_most_slots() -> None:
    for key, parked, slots in (("a", 0, 1), ("b", 3, 1), ("c", 0, 2), ("d", 1, 0)):
        for _ in range(parked):
            rows.a_parked(key)
        for ordinal in range(1, slots + 1):
            rows.a_slot(rows.a_message().pk, key, ordinal)
    assert [key.key for key in stats.busiest()] == ["b", "d", "c", "a"]
    assert [key.key for key in stats.busiest(2)] == ["b", "d"]
    assert stats.busiest()[0].capacity is None


def test_a_key_that_is_idle_is_not_shown() -> None:
    rows.a_limit()
    assert stats.busiest() == []
    assert stats.key("printer") is None


def test_holders_beat_or_wait_or_are_silent() -> None:
    rows.a_limit("printer", 6)
    beating, waiting, later = rows.a_running(), rows.a_message(), rows.a_delayed()
    lapsed = rows.a_running(leased_until=ago(minutes=3))
    presumed = rows.a_running(leased_until=ago(minutes=30))
    released = rows.a_message(ready_at=ago(minutes=1))
    rows.a_beating_slot(beating.pk, ordinal=1)
    rows.a_slot(waiting.pk, ordinal=2)
    rows.a_slot(later.pk, ordinal=3)
    rows.a_beating_slot(lapsed.pk, ordinal=4)
    rows.a_slot(presumed.pk, ordinal=5, leased_until=ago(minutes=16))
    rows.a_beating_slot(released.pk, ordinal=6)
    found = one()
    assert (found.beating, found.waiting, found.silent) == (1, 2, 3)
    assert (found.slots, found.capacity, found.at_limit) == (Count(6), 6, True)
    assert found.beating_until > rows.now()
    assert rows.now() - found.silent_since == pytest.approx(timedelta(minutes=30), abs=timedelta(seconds=30))
    assert found.leased == {f"{beating.pk}:1"}
    assert found.holders == (
        Holder(message=beating.pk, lease=Lease.BEATING, in_line=True),
        Holder(message=waiting.pk, lease=Lease.WAITING, in_line=True),
        Holder(message=later.pk, lease=Lease.WAITING, in_line=False),
        Holder(message=lapsed.pk, lease=Lease.SILENT, in_line=True),
        Holder(message=presumed.pk, lease=Lease.SILENT, in_line=True),
        Holder(message=released.pk, lease=Lease.SILENT, in_line=True),
    )


def test_a_run_whose_slot_is_past_is_silent_and_still_leased() -> None:
    running = rows.a_running()
    rows.a_slot(running.pk, leased_until=ago(minutes=1))
    assert (one().silent, one().leased) == (1, {f"{running.pk}:1"})


def test_a_holder_that_is_nowhere_is_silent_since_nobody_knows_when() -> None:
    rows.a_beating_slot(99)
    assert (one().silent, one().silent_since, one().leased) == (1, None, frozenset())


def test_right_after_a_start_of_the_server_nobody_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_pgbus.concurrency import stats_sql
    from django_pgbus.postgres import Statement

    for name in ("KEYS", "HOLDERS"):
        text = getattr(stats_sql, name).sql.replace("interval '1 day'", "interval '1 s'")
        monkeypatch.setattr(stats_sql, name, Statement(sql=text))
    running = rows.a_running(leased_until=ago(minutes=3))
    rows.a_slot(running.pk, leased_until=ago(minutes=1))
    assert (one().beating, one().silent, one().leased) == (1, 0, {f"{running.pk}:1"})
    assert one().holders[0].lease is Lease.BEATING


def test_the_highest_id_of_the_parked_is_told_whatever_their_order() -> None:
    ids = [rows.a_parked(priority=priority).pk for priority in (0, 9, 5)]
    rows.a_parked("other")
    assert (one().highest, one().parked) == (max(ids), Count(3))


def test_at_most_twenty_holders_of_a_key_are_named() -> None:
    rows.a_limit("printer", 30)
    for ordinal in range(1, 26):
        rows.a_slot(rows.a_message().pk, ordinal=ordinal)
    rows.a_slot(rows.a_message().pk, "other")
    assert (len(one().holders), one().slots, one().waiting) == (20, Count(25), 25)
    assert [len(key.holders) for key in stats.busiest()] == [20, 1]


def test_of_one_key_by_itself_every_run_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats.described, "__defaults__", (2,))
    for ordinal in range(1, 6):
        rows.a_beating_slot(rows.a_running().pk, ordinal=ordinal)
    assert (len(stats.busiest()[0].leased), len(one().leased)) == (2, 5)


def test_counts_end_at_the_limit_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "LIMIT", 3)
    monkeypatch.setattr(stats, "WAITERS", 3)
    for ordinal in range(1, 5):
        rows.a_parked()
        rows.a_parked("u", waits_for="key")
        rows.a_slot(rows.a_message().pk, ordinal=ordinal)
    totals, key = stats.totals(), one()
    more = Count(3, True)
    assert (totals.parked.number, totals.parked_for_keys.number, totals.slots) == (more, more, more)
    assert (key.parked, key.slots, stats.waiting_for(["u", "v"])) == (more, more, {"u": more})


def test_the_original_text_of_a_hashed_key_is_told() -> None:
    rows.a_limit("sha256:1", name="a long key")
    rows.a_parked("sha256:1")
    assert (stats.busiest()[0].name, stats.busiest()[0].key) == ("a long key", "sha256:1")


def test_as_many_questions_for_a_thousand_keys_as_for_one() -> None:
    asked = []
    for number in (1, 1000):
        with connection.cursor() as cursor:
            for statement in (
                "INSERT INTO pgbus_semaphores (key, capacity) SELECT 'k' || n, 1 FROM generate_series(1, %s) AS n",
                "INSERT INTO pgbus_semaphore_slots (message_id, key, ordinal, duration)"
                " SELECT n, 'k' || n, 1, 900 FROM generate_series(1, %s) AS n",
                "INSERT INTO pgbus_blocked_executions (queue, task, payload, waits_for, key)"
                " SELECT 'default', 't', '{{}}', 'semaphore', 'k' || n FROM generate_series(1, %s) AS n",
            ):
                cursor.execute(statement.replace("{{}}", "{}"), [number])
        with CaptureQueriesContext(connection) as queries:
            found, totals = stats.busiest(), stats.totals()
        asked.append(len(queries))
        assert (len(found), totals.slots, totals.at_limit) == (min(number, 100), Count(number), Count(number))
        Semaphore.objects.all().delete()
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM pgbus_semaphore_slots")
            cursor.execute("DELETE FROM pgbus_blocked_executions")
    assert asked == [5, 5]


@COMMITTED
@pytest.mark.needs_session("it knows sessions by their names")
def test_whoever_holds_the_row_of_a_semaphore_is_named() -> None:
    for _ in range(3):
        enqueue(two, "a")
    claim_and_pick_up()
    with sessions() as other:
        other.sql("SET application_name = 'shop web'")
        other.open()
        other.sql("SELECT key FROM pgbus_semaphores WHERE key = 'a' FOR UPDATE")
        backend = one("a").backend
        assert backend is not None
        assert (backend.pid, backend.application) == (other.pid, "shop web")
        assert backend.since is not None
        other.commit()
    assert one("a").backend is None


@COMMITTED
def test_a_caller_that_must_decide_at_once_is_named_too() -> None:
    enqueue(one_or_error, "a")
    with sessions() as other:
        other.open()
        with pytest.raises(Exception, match="allowed for the key"):
            other.do(enqueue, one_or_error, "a")
        other.do(enqueue, one_or_error, "b")
        assert one("a").backend is None, "a refusal alone holds nothing"
        rows.a_parked("b")
        backend = one("b").backend
        assert backend is not None, "who is about to create the row"
        assert backend.pid == other.pid
        other.roll_back()
    assert one("b").backend is None
