"""A page asks as much of the database for twenty thousand rows as for ten, and gives up in time."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgbus.admin import bounds, reading
from django_pgbus.models import Archived, Batch, BlockedExecution, DeadLetter, Delayed, Message, StreamLog
from tests.admin import rows
from tests.admin.stream_rows import a_group, a_stream

pytestmark = pytest.mark.django_db

WORK = "'tests.admin.tasks.import_order', 'default', '{\"args\": [1], \"kwargs\": {}}'::json"
SEED = [
    f"""INSERT INTO pgbus_messages (queue, priority, task, backend, payload)
        SELECT 'q' || n %% 5, 0, {WORK} FROM generate_series(1, %s) AS n""",
    f"""INSERT INTO pgbus_delayed (queue, priority, task, backend, payload, due_at, reason)
        SELECT 'q' || n %% 5, 0, {WORK}, statement_timestamp() + n * interval '1 s',
               CASE WHEN n %% 10 = 0 THEN 'retry' ELSE 'scheduled' END FROM generate_series(1, %s) AS n""",
    f"""INSERT INTO pgbus_archive (queue, priority, task, backend, payload, outcome, result, started_at, finished_at)
        SELECT 'q' || n %% 5, 0, {WORK}, CASE WHEN n %% 10 = 0 THEN 'discarded' ELSE 'succeeded' END, '1',
               statement_timestamp() - n * interval '1 s', statement_timestamp() - n * interval '1 s'
        FROM generate_series(1, %s) AS n""",
    f"""INSERT INTO pgbus_dead_letters (queue, priority, task, backend, payload, reason, errors, died_at)
        SELECT 'q' || n %% 5, 0, {WORK}, CASE WHEN n %% 10 = 0 THEN 'gave_up' ELSE 'exhausted' END,
               '[{{"exception": "E", "traceback": "E: x"}}]', statement_timestamp() - n * interval '1 s'
        FROM generate_series(1, %s) AS n""",
    f"""INSERT INTO pgbus_blocked_executions (queue, priority, task, backend, payload, waits_for, key, semaphore, parked_at)
        SELECT 'q' || n %% 5, n %% 3, {WORK}, CASE WHEN n %% 10 = 0 THEN 'key' ELSE 'semaphore' END, 'k' || n %% 150,
               'k' || n %% 150, statement_timestamp() - n * interval '1 s' FROM generate_series(1, %s) AS n""",
    """INSERT INTO pgbus_semaphores (key, capacity)
       SELECT 'k' || n, 1 FROM generate_series(1, %s) AS n ON CONFLICT DO NOTHING""",
    """INSERT INTO pgbus_semaphore_slots (message_id, key, ordinal, duration)
       SELECT (SELECT coalesce(max(message_id), 0) FROM pgbus_semaphore_slots) + n, 'k' || n,
              (SELECT count(*) FROM pgbus_semaphore_slots) + n, 900
       FROM generate_series(1, %s) AS n""",
    """INSERT INTO pgbus_uniqueness_keys (key, message_id, strategy, queue)
       SELECT 'u' || n, n, 'until_executed', 'q1' FROM generate_series(1, %s) AS n ON CONFLICT DO NOTHING""",
    """INSERT INTO pgbus_batches (properties, callbacks, total, finished_at)
       SELECT '{}', '{}', 3, CASE WHEN n %% 10 = 0 THEN statement_timestamp() END FROM generate_series(1, %s) AS n""",
    """INSERT INTO pgbus_batch_counts (batch_id, added)
       SELECT (SELECT min(id) FROM pgbus_batches), 1 FROM generate_series(1, %s) AS n""",
    *(
        f"UPDATE {table} SET batch_id = (SELECT min(id) FROM pgbus_batches) WHERE %s > 0"
        for table in (
            "pgbus_messages",
            "pgbus_delayed",
            "pgbus_archive",
            "pgbus_dead_letters",
            "pgbus_blocked_executions",
        )
    ),
]
OF_A_STREAM = [
    """INSERT INTO pgbus_stream_{id} (payload) SELECT '1' FROM generate_series(1, %s)""",
    """INSERT INTO pgbus_stream_exceptions (group_id, position, status, payload, failed_at)
       SELECT {group}, (SELECT coalesce(max(position), 0) FROM pgbus_stream_exceptions) + n,
              (ARRAY['ready', 'running', 'dead'])[1 + n %% 3],
              CASE WHEN n %% 3 = 2 THEN '1'::json END, statement_timestamp()
       FROM generate_series(1, %s) AS n""",
    """INSERT INTO pgbus_stream_leases (token, group_id, low, high, worker, until)
       SELECT gen_random_uuid(), {group}, n, n + 1, gen_random_uuid(), statement_timestamp()
       FROM generate_series(1, %s) AS n""",
]
LISTS = {
    "message": [
        "",
        "?q=import",
        "?q=nothing",
        "?q=1",
        "?q=k1",
        "?below=900",
        "?state=ready",
        "?state=running",
        "?queue=q1",
        "?o=1",
        "?o=-1&q=import",
    ],
    "delayed": ["", "?reason=retry", "?reason=snoozed", "?queue=q1", "?q=import", "?q=nothing"],
    "archived": ["", "?outcome=discarded", "?queue=q1", "?q=import", "?q=nothing", "?o=6"],
    "deadletter": ["", "?reason=gave_up", "?queue=q1", "?q=import", "?q=nothing", "?o=4"],
    "blockedexecution": [
        "",
        "?waits_for=key",
        "?key=k1",
        "?waits_for=semaphore&key=k1",
        "?queue=q1",
        "?q=import",
        "?q=nothing",
        "?o=6",
    ],
    "batch": ["", "?state=open", "?state=finished", "?q=1", "?q=nothing", "?o=0"],
    "semaphore": ["", "?q=k1", "?q=nothing", "release/?key=k1", "discard_parked/?key=k1", "discard_lock/?key=u1&job=1"],
    "streamlog": ["", "?q=ledger", "?q=nothing"],
    "queuestate": [""],
    "worker": [""],
    "runcount": ["", "?window=7d", "?task=a&queue=q1"],
}


def seed(number: int) -> None:
    with connection.cursor() as cursor:
        for statement in SEED:
            cursor.execute(statement, [number])
        stream = StreamLog.objects.filter(name="ledger").first() or a_stream()
        group = stream.groups.first() or a_group(stream, claimed=5)
        for statement in OF_A_STREAM:
            cursor.execute(statement.format(id=stream.pk, group=group.pk), [number])
        cursor.execute(
            "UPDATE pgbus_messages SET leased_until = statement_timestamp() + interval '1 h', "
            "claimed_at = statement_timestamp() WHERE id IN (SELECT id FROM pgbus_messages "
            "ORDER BY position LIMIT 3)"
        )
        cursor.execute(
            "ANALYZE pgbus_stream_exceptions, pgbus_stream_leases,"
            " pgbus_messages, pgbus_delayed, pgbus_archive, pgbus_dead_letters, pgbus_blocked_executions,"
            " pgbus_semaphores, pgbus_semaphore_slots, pgbus_uniqueness_keys, pgbus_batches, pgbus_batch_counts"
        )


def pages() -> list[str]:
    addresses = [reverse(f"admin:pgbus_{model}_changelist") + query for model, all in LISTS.items() for query in all]
    batch = Batch.objects.order_by("pk").first()
    addresses.append(reverse("admin:pgbus_batch_change", args=[batch.pk]))
    stream = StreamLog.objects.get(name="ledger")
    about = {"stream": stream.pk, "group": "totals", "to": "beginning"}
    addresses.append(reverse("admin:pgbus_streamlog_change", args=[stream.pk]))
    addresses += [reverse(f"admin:pgbus_streamlog_{name}", query=about) for name in ("pause", "rewind", "discard_dead")]
    for model in (Message, Delayed, Archived, DeadLetter, BlockedExecution):
        job = model._default_manager.order_by("pk").first()
        addresses.append(reverse(f"admin:pgbus_{model._meta.model_name}_change", args=[job.pk]))
        addresses.append(reverse(f"admin:pgbus_{model._meta.model_name}_changelist", query={"batch": batch.pk}))
    return [*addresses, reverse("admin:pgbus_queuestate_pause", args=["q1"]), reverse("admin:app_list", args=["pgbus"])]


def asked(client: Client) -> dict[str, list[str]]:
    """Return the statements of each page."""
    found = {}
    for address in pages():
        ContentType.objects.clear_cache()
        with CaptureQueriesContext(connection) as queries:
            assert client.get(address).status_code == 200, address
        found[re.sub(r"/\d+/", "/1/", address)] = [query["sql"] for query in queries.captured_queries]
    return found


@pytest.mark.proves("pages-are-bounded")
@pytest.mark.slow
def test_twenty_thousand_rows_take_as_many_queries_as_ten(admin_client: Client) -> None:
    rows.a_worker()
    StreamLog.objects.all().delete()
    seed(10)
    few = {address: len(sent) for address, sent in asked(admin_client).items()}
    seed(20_000)
    many = {address: len(sent) for address, sent in asked(admin_client).items()}
    assert many == few
    assert max(many.values()) <= 25


def test_nothing_counts_without_an_end(admin_client: Client) -> None:
    rows.a_worker()
    StreamLog.objects.all().delete()
    seed(60)
    for address, sent in asked(admin_client).items():
        for sql in sent:
            if re.search(r"count\(\*\)", sql, re.IGNORECASE):
                assert "LIMIT" in sql, address
            assert "DISTINCT" not in sql, address


def slow(*args: Any, **kwargs: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(10)")


@pytest.mark.proves("pages-are-bounded")
def test_a_page_that_takes_too_long_says_so(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "PATIENCE", 50)
    monkeypatch.setattr(reading, "PATIENCE", 1_000)
    monkeypatch.setattr("django_pgbus.queues.stats.names", slow)
    monkeypatch.setattr("django_pgbus.queues.stats.queues", slow)
    for name, query in (("message", {"o": "-1"}), ("queuestate", {})):
        response = admin_client.get(reverse(f"admin:pgbus_{name}_changelist", query=query))
        assert response.status_code == 503
        assert "told to stop" in response.content.decode()
    index = admin_client.get(reverse("admin:app_list", args=["pgbus"])).content.decode()
    assert "queues (took too long)" in index


def timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        return str(cursor.fetchone()[0])


def test_the_time_limit_ends_with_the_page() -> None:
    with transaction.atomic():
        before = timeout()
        with bounds.bounded():
            assert timeout() == "5s"
        assert timeout() == before


def test_a_shorter_limit_of_the_project_stays() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '700ms'")
        with bounds.bounded():
            assert timeout() == "700ms"
        assert timeout() == "700ms"


def test_other_errors_are_passed_on() -> None:
    with pytest.raises(ZeroDivisionError), bounds.bounded():
        raise ZeroDivisionError
