"""The numbers are right, of one snapshot, and read in a bounded number of questions; a section that fails fails alone."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import InternalError, OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from django_pgbus import __version__
from django_pgbus.idempotency.sweeps import sum_counts
from django_pgbus.insights.sweeps import purge_hours, purge_totals, sum_minutes, sum_ten_minutes, sum_written
from django_pgbus.models import Election, QueueState, Subscription
from django_pgbus.observability import appsignal, families, look, metrics
from django_pgbus.observability.families import Metric, Readings
from django_pgbus.observability.sections import SECTIONS
from django_pgbus.postgres import Statement
from django_pgbus.queues.stats import Count
from tests.admin import rows
from tests.admin.stream_rows import a_dead, a_failed, a_group, a_lease, a_stream
from tests.docs.pages import text_of
from tests.insights.rows import a_row
from tests.line import COMMITTED
from tests.observability.reading import Scraped
from tests.sessions import sessions

COUNTERS = ("pgbus_runs_total", "pgbus_events_skipped_total")
NAMES = [section.name for section in SECTIONS]


def ago(**time: float) -> Any:
    return rows.now() - timedelta(**time)


# --- exact ------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_queues() -> None:
    for _ in range(3):
        rows.a_message(queue="mail", ready_at=ago(minutes=2))
    rows.a_running(queue="mail")
    rows.a_delayed(queue="mail")
    rows.a_delayed(queue="mail", due_at=ago(seconds=90), reason="retry")
    rows.a_delayed(queue="mail", reason="retry")
    rows.a_dead_letter(queue="mail")
    QueueState.objects.create(queue="paused", paused_at=rows.now(), paused_by="anna")
    found = Scraped()
    expected = {
        "depth": 7,
        "ready": 3,
        "running": 1,
        "delayed": 3,
        "retrying": 2,
        "due": 1,
        "dead_letters": 1,
        "paused": 0,
    }
    assert {name: found.value(f"pgbus_queue_{name}", "mail") for name in expected} == expected
    assert found.value("pgbus_queue_oldest_claimable_age_seconds", "mail") == pytest.approx(120, abs=30)
    assert found.value("pgbus_queue_oldest_due_age_seconds", "mail") == pytest.approx(90, abs=30)
    assert found.value("pgbus_queue_paused", "paused") == 1


@pytest.mark.django_db
def test_a_job_that_is_delayed_has_no_age() -> None:
    rows.a_delayed(queue="mail", due_at=rows.now() + timedelta(days=1), enqueued_at=ago(days=1))
    found = Scraped()
    assert found.value("pgbus_queue_delayed", "mail") == 1
    assert found.value("pgbus_queue_oldest_claimable_age_seconds", "mail") == 0
    assert found.value("pgbus_queue_oldest_due_age_seconds", "mail") == 0


@pytest.mark.django_db
def test_nothing_is_a_value() -> None:
    QueueState.objects.create(queue="idle")
    found = Scraped()
    for name in ("depth", "ready", "oldest_claimable_age_seconds", "oldest_due_age_seconds", "retrying", "workers"):
        assert found.value(f"pgbus_queue_{name}", "idle") == 0
    for name in (
        "pgbus_concurrency_blocked_executions",
        "pgbus_concurrency_blocked_oldest_age_seconds",
        "pgbus_concurrency_slots_held",
        "pgbus_concurrency_keys_at_limit",
        "pgbus_uniqueness_keys_held",
        "pgbus_batches_open",
        "pgbus_batches_oldest_open_age_seconds",
        "pgbus_events_unrouted",
        "pgbus_dispatcher_elected",
    ):
        assert found.value(name) == 0
    assert found.of("pgbus_workers") == {("beating",): 0, ("deaf",): 0, ("draining",): 0, ("silent",): 0}
    assert set(found.of("pgbus_events_skipped_total").values()) == {0}


@pytest.mark.django_db
def test_limits_uniqueness_and_batches() -> None:
    for key, capacity in (("a", 1), ("b", 2)):
        rows.a_limit(key, capacity)
        rows.a_slot(rows.a_message().pk, key)
    rows.a_parked("a", parked_at=ago(minutes=9))
    rows.a_parked("b", parked_at=ago(minutes=5))
    rows.a_parked("u", waits_for="key", semaphore=None, parked_at=ago(hours=2))
    rows.a_lock(17)
    rows.a_batch(3, created_at=ago(minutes=7))
    rows.a_finished_batch(3)
    found = Scraped()
    assert found.value("pgbus_concurrency_blocked_executions") == 2
    assert found.value("pgbus_concurrency_blocked_oldest_age_seconds") == pytest.approx(9 * 60, abs=30)
    assert found.value("pgbus_concurrency_slots_held") == 2
    assert found.value("pgbus_concurrency_keys_at_limit") == 1
    assert found.value("pgbus_uniqueness_blocked_executions") == 1
    assert found.value("pgbus_uniqueness_blocked_oldest_age_seconds") == pytest.approx(7200, abs=30)
    assert found.value("pgbus_uniqueness_keys_held") == 1
    assert found.value("pgbus_batches_open") == 1
    assert found.value("pgbus_batches_oldest_open_age_seconds") == pytest.approx(7 * 60, abs=30)


@pytest.mark.django_db
def test_events() -> None:
    Subscription.objects.all().delete()
    rows.a_message(**rows.event())
    rows.a_delayed(**rows.event())
    rows.a_dead_letter(**rows.event())
    rows.a_claim(rows.a_running(**rows.event()))
    for amount in (2, 3):
        rows.an_event_count("orders.lost", amount)
        rows.an_event_count("shop.handlers.audit", amount * 10, "skipped", reason="completed")
    found = Scraped()
    assert found.of("pgbus_event_copies") == {("ready",): 1, ("running",): 1, ("delayed",): 1, ("dead",): 1}
    assert found.of("pgbus_event_claims") == {("running",): 1, ("silent",): 0, ("completed",): 0}
    assert found.of("pgbus_events_skipped_total") == {("completed",): 50, ("cached",): 0, ("owned",): 0}
    assert found.value("pgbus_events_unrouted") == 5


@pytest.mark.django_db
def test_streams() -> None:
    stream = a_stream(entries=9)
    group = a_group(stream, claimed=7, committed=4)
    a_lease(group, 5, 7)
    a_failed(group, 6)
    a_dead(group, 3)
    found = Scraped()
    assert found.value("pgbus_stream_head", "ledger") == 9
    assert found.value("pgbus_stream_entries", "ledger") == 9
    assert found.value("pgbus_stream_size_bytes", "ledger") > 0
    of_group = {
        name: found.value(f"pgbus_stream_group_{name}", "ledger", "totals")
        for name in ("lag_entries", "open_leases", "exceptions", "dead_letters", "paused", "refusing")
    }
    expected = {"lag_entries": 4, "open_leases": 1, "exceptions": 1, "dead_letters": 1, "paused": 0, "refusing": 0}
    assert of_group == expected
    assert found.value("pgbus_stream_group_lag_seconds", "ledger", "totals") > 0


@pytest.mark.django_db
def test_workers() -> None:
    dispatcher = rows.a_worker(queues="mail: 4", capacity=4, running=3)
    rows.a_worker(queues="mail: 4", capacity=4, running=0, listening=False, superseded=1)
    rows.a_worker(queues="mail: 4", capacity=4, running=2, state="draining")
    rows.a_worker(queues="*: 10", beat_at=ago(minutes=5))
    Election.objects.create(office="dispatcher", worker=dispatcher.id, until=rows.now() + timedelta(seconds=30))
    rows.a_message(queue="mail")
    rows.a_message(queue="other")
    found = Scraped()
    assert found.of("pgbus_workers") == {("beating",): 1, ("deaf",): 1, ("draining",): 1, ("silent",): 1}
    assert found.of("pgbus_worker_threads") == {("beating",): 4, ("deaf",): 4, ("draining",): 4, ("silent",): 10}
    assert found.of("pgbus_worker_busy_threads") == {("beating",): 3, ("deaf",): 0, ("draining",): 2, ("silent",): 3}
    assert found.value("pgbus_worker_superseded_runs") == 1
    assert found.value("pgbus_worker_longest_silence_seconds") < 60
    assert found.value("pgbus_dispatcher_elected") == 1
    assert found.of("pgbus_queue_workers") == {("mail",): 2, ("other",): 0}


@pytest.mark.django_db
def test_runs() -> None:
    a_row(task="shop.pay", queue="mail", run=0.02, wait=0.2, number=3)
    a_row("5 minutes", "total", task="shop.pay", queue="mail", run=0.3, wait=40, number=2, failed=2)
    a_row("5 minutes", "minute", task="shop.pay", queue="mail", number=70)
    found = Scraped()
    of_outcome = dict.fromkeys(("dead", "snoozed", "superseded", "handed_back"), 0)
    assert found.of("pgbus_runs_total") == {
        ("shop.pay", "mail", outcome): number for outcome, number in {"succeeded": 3, "failed": 2, **of_outcome}.items()
    }
    run, wait = (found.value(f"pgbus_{name}_seconds", "shop.pay", "mail") for name in ("run", "wait"))
    assert {bound: number for bound, number in zip(run.bounds, run.counts, strict=False) if number} == {
        0.025: 3,
        0.5: 2,
    }
    assert {bound: number for bound, number in zip(wait.bounds, wait.counts, strict=False) if number} == {
        0.25: 3,
        60: 2,
    }
    assert (run.sum, wait.sum) == (0.66, 80.6)
    assert len(run.counts) == len(run.bounds) + 1


@pytest.mark.django_db
def test_a_task_that_handles_events_too_has_one_series() -> None:
    a_row(task="shop.pay", queue="mail", event=True)
    a_row(task="shop.pay", queue="mail", event=False, number=2)
    found = Scraped()
    assert found.value("pgbus_runs_total", "shop.pay", "mail", "succeeded") == 3
    assert sum(found.value("pgbus_run_seconds", "shop.pay", "mail").counts) == 3


@pytest.mark.django_db
def test_counters_only_rise_while_sweeps_sum_them_up() -> None:
    def counted() -> dict[Any, float]:
        found = Scraped()
        numbers = {(family, *labels): value for family in COUNTERS for labels, value in found.of(family).items()}
        for family in ("pgbus_run_seconds", "pgbus_wait_seconds"):
            for labels, histogram in found.of(family).items():
                numbers |= {(family, *labels, n): number for n, number in enumerate(histogram.counts)}
                numbers[family, *labels, "sum"] = histogram.sum
        return numbers

    before = {}
    for sweep in (sum_counts, sum_written, sum_minutes, sum_ten_minutes, purge_hours, purge_totals, sum_counts):
        for nth in range(7):
            a_row(f"{nth * 7} minutes", task="shop.pay", run=0.1 / (nth + 3), wait=0.7 / (nth + 1))
            rows.an_event_count("shop.handlers.audit", nth + 1, "skipped", reason="completed")
        written = counted()
        sweep()
        assert counted() == written
        assert all(written[key] >= number for key, number in before.items())
        before = written
    assert before["pgbus_runs_total", "shop.pay", "default", "succeeded"] == 49
    assert before["pgbus_events_skipped_total", "completed"] == 7 * 28


@COMMITTED
def test_tables_and_transactions() -> None:
    rows.a_message()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE pgbus_messages")
    with sessions() as other:
        other.open()
        other.sql("SELECT txid_current(), pg_sleep(0.02)")
        found = Scraped()
        other.commit()
    assert found.value("pgbus_table_size_bytes", "pgbus_messages") > 0
    assert found.value("pgbus_table_last_vacuum_age_seconds", "pgbus_messages") < 60
    assert found.value("pgbus_table_dead_tuples", "pgbus_messages") >= 0
    assert found.value("pgbus_oldest_transaction_age_seconds") >= 0.02
    assert found.value("pgbus_vacuum_held_back_transactions") >= 0


@pytest.mark.django_db
def test_which_version_answers() -> None:
    assert Scraped().of("pgbus_build_info") == {(__version__,): 1}


# --- bounded ----------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_more_series_than_there_is_room_for_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MOST_SERIES", 3)
    for name in "abcde":
        rows.a_message(queue=name)
    found = Scraped()
    assert list(found.of("pgbus_queue_depth")) == [("a",), ("b",), ("c",)]
    assert found.value("pgbus_series_left_out", "queues") == 2
    assert found.value("pgbus_series_left_out", "workers") == 2
    assert found.value("pgbus_series_left_out", "batches") == 0


@pytest.mark.django_db
def test_a_count_that_stops_is_exported_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgbus.uniqueness.stats.REACH", 2)
    for number in range(4):
        rows.a_lock(number, key=f"u{number}")
    found = Scraped()
    assert found.value("pgbus_uniqueness_keys_held") == 2
    assert found.value("pgbus_scrape_lower_bounds", "pgbus_uniqueness_keys_held") == 1
    assert found.value("pgbus_scrape_lower_bounds", "pgbus_batches_open") == 0


@pytest.mark.django_db
def test_more_rows_take_as_many_questions() -> None:
    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert set(Scraped().up().values()) == {1}
        return len(queries)

    def more(number: int) -> None:
        for nth in range(number):
            rows.a_message(queue=f"q{nth}")
            rows.a_delayed(queue=f"q{nth}", reason="retry")
            rows.a_parked(f"k{nth}")
            rows.an_event_count(f"topic{nth}")
            rows.a_batch()
            a_row(task=f"t{nth}")
            rows.a_worker(queues=f"q{nth}: 3")

    more(1)
    few = asked()
    more(20)
    assert asked() == few


def test_only_what_is_declared_so_stops_at_a_bound() -> None:
    free = Metric("pgbus_free", "Without a bound.")
    with pytest.raises(KeyError):
        Readings([free]).set(free, Count(1, more=True))


def test_metrics_are_declared_once_and_named_as_is_usual() -> None:
    declared = [family.metric for family in metrics.declared()]
    assert len({metric.name for metric in declared}) == len(declared)
    for metric in declared:
        assert metric.name.startswith("pgbus_")
        assert metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind is families.Kind.COUNTER)
        assert not set(metric.labels) & {"key", "argument", "arguments", "pid", "id"}


def test_the_guide_names_what_there_is() -> None:
    """Its alerts would be silent for ever about a metric that was renamed."""
    declared = {family.metric.name for family in metrics.declared()} | set(appsignal.SUMS)
    text = text_of("guides/monitoring.md")
    named = set(re.findall(r"\bpgbus_\w+", text.replace("/etc/prometheus/pgbus_token", "").replace("pgbus_doctor", "")))
    extra = {"pgbus_queue_visible_depth", "pgbus_queue_latency", "pgbus_total_queues", "pgbus_active_processes"}
    named = {re.sub(r"_bucket$", "", name) for name in named}
    assert named <= declared | extra | {"pgbus_throughput_rate"}
    assert extra <= named


# --- one look ---------------------------------------------------------------------------------------------


@COMMITTED
def test_all_sections_see_the_same_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that goes from the line to its parking place between two questions is counted once."""
    QueueState.objects.create(queue="mail")
    job = rows.a_message(queue="mail")
    sections = list(SECTIONS)
    with sessions() as worker:

        def moved(readings: Readings) -> None:
            worker.sql("DELETE FROM pgbus_messages WHERE id = %s", job.pk)
            worker.do(rows.a_parked, "printer")
            SECTIONS[1].read(readings)

        sections[1] = replace(SECTIONS[1], read=moved)
        monkeypatch.setattr(metrics, "SECTIONS", sections)
        before = Scraped()
        monkeypatch.undo()
        after = Scraped()
    assert before.up()["concurrency"] == 1
    found = [
        (one.value("pgbus_queue_ready", "mail"), one.value("pgbus_concurrency_blocked_executions"))
        for one in (before, after)
    ]
    assert found == [(1, 0), (0, 1)]


@COMMITTED
def test_a_look_cannot_write() -> None:
    with pytest.raises(InternalError, match="read-only"), look.look():
        rows.a_message()


@COMMITTED
def test_a_look_leaves_the_session_as_it_was() -> None:
    Scraped()
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('statement_timeout'), current_setting('transaction_isolation')")
        assert cursor.fetchone() == ("0", "read committed")
    rows.a_message()


# --- what fails fails alone -------------------------------------------------------------------------------


def broken(monkeypatch: pytest.MonkeyPatch, name: str, read: Any) -> None:
    changed = [replace(one, read=read) if one.name == name else one for one in SECTIONS]
    monkeypatch.setattr(metrics, "SECTIONS", changed)


def raises(readings: Readings) -> None:
    raise ZeroDivisionError


def hangs(readings: Readings) -> None:
    readings.set(next(iter(readings._samples)), 1, "a")
    Statement(sql="SELECT pg_sleep(60)").rows()


def asks_wrongly(readings: Readings) -> None:
    Statement(sql="SELECT 1 / 0 AS nothing").rows()


@pytest.mark.parametrize(
    "transactional", [pytest.param(False, marks=pytest.mark.django_db), pytest.param(True, marks=COMMITTED)]
)
@pytest.mark.parametrize("name", ["queues", "streams"])
@pytest.mark.parametrize("fault", [raises, hangs, asks_wrongly])
def test_a_section_that_fails_leaves_out_its_own(
    name: str, fault: Any, transactional: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(look, "STATEMENT_TAKES", 50)
    whole = Scraped()
    broken(monkeypatch, name, fault)
    found = Scraped()
    assert found.up() == {**dict.fromkeys(NAMES, 1), name: 0}
    own = {metric.name for section in SECTIONS if section.name == name for metric in section.metrics}
    assert whole.families.keys() - found.families.keys() == own
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert name in caplog.text


@pytest.mark.django_db
def test_a_section_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def asks_for_ever(readings: Readings) -> None:
        while True:
            Statement(sql="SELECT 1 AS one").rows()

    monkeypatch.setattr(look, "PART_TAKES", 0.05)
    broken(monkeypatch, "events", asks_for_ever)
    assert Scraped().up()["events"] == 0


@pytest.mark.django_db
def test_when_the_time_is_used_up_the_rest_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "LOOK_TAKES", -1.0)
    found = Scraped()
    assert found.up() == dict.fromkeys(NAMES, 0)
    assert found.value("pgbus_build_info", __version__) == 1


@COMMITTED
def test_a_database_that_goes_away_in_the_middle_leaves_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(readings: Readings) -> None:
        connection.connection.close()
        Statement(sql="SELECT 1 AS one").rows()

    broken(monkeypatch, NAMES[2], ended)
    up = Scraped().up()
    assert [up[name] for name in NAMES] == [1, 1, *[0] * (len(NAMES) - 2)]
    connection.close()


@COMMITTED
def test_a_database_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refused(*args: Any) -> None:
        raise OperationalError("connection refused: password=hunter2")

    connection.close()
    monkeypatch.setattr(type(connections["default"]), "get_new_connection", refused)
    assert Scraped().up() == dict.fromkeys(NAMES, 0)
    assert len(caplog.records) == 1, "asked once, not for each section"
    assert "hunter2" not in caplog.text


# --- nothing that belongs to users ------------------------------------------------------------------------


@pytest.mark.django_db
def test_neither_arguments_nor_keys_are_told() -> None:
    secret = f"patient-{uuid.uuid4()}"
    job = rows.a_message(payload=rows.payload(secret))
    rows.a_limit(secret, name=secret)
    rows.a_slot(job.pk, secret)
    rows.a_parked(secret, payload=rows.payload(secret))
    rows.a_lock(job.pk, secret)
    rows.a_dead_letter(payload=rows.payload(secret), errors=[rows.error(traceback=secret)])
    rows.a_batch(description=secret, key=secret)
    a_failed(a_group(a_stream(entries=1)), 1, key=secret, traceback=secret)
    rows.an_event_count(f"orders.{secret}")
    assert secret not in repr(metrics.scrape())
