"""
A database as a busy shop has it after a while: rows in every table of ours, made by the set and consistent with each other.

Every number follows from `rows`: so many jobs finished, ready and delayed each; a tenth of it parked, over a hundredth of
it keys whose holders stand in the line; a hundredth dead. Run it once, in an empty schema, and ANALYZE is done too.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import connection, transaction

from django_pgbus.models import StreamLog
from django_pgbus.streams import partitions
from tests.admin import rows as a_row
from tests.admin.rows import GONE, HANDLER, TASK, TRACEBACK
from tests.admin.stream_rows import a_dead, a_failed, a_group, a_stream, a_waiting

QUEUES: Final = 100
WORKERS: Final = 20
TOPICS: Final = ("orders.created", "orders.paid", "orders.cancelled", "customers.signed_up")
DAYS: Final = 8

QUEUE = "'q' || lpad((n %% %(queues)s)::text, 3, '0')"
WORK = f"""
    {QUEUE}, (n %% 3)::smallint, CASE WHEN n %% 50 = 0 THEN %(gone)s::text ELSE %(task)s::text END,
    json_build_object('args', json_build_array(n), 'kwargs', json_build_object('line', repeat('x', (n %% 40)::int)))
"""
UNIQUE = """
    CASE WHEN n %% 2 = 0 THEN json_build_object('unique', json_build_object(
        'key', 'order-' || {kind} || n, 'name', '', 'strategy', 'until_executed', 'on_conflict', 'reject')) END
"""
LIMIT = """
    json_build_object('limit', json_build_object(
        'key', {key}, 'name', '', 'to', 1, 'duration', 900.0, 'on_conflict', 'block'))
"""
ERROR = """
    json_build_array(json_build_object(
        'exception', 'shop.rows.BrokenRow', 'traceback', %(traceback)s::text, 'attempt', 5))
"""
EVENT = """
    json_build_object('payload', json_build_object('order_id', n), 'headers', json_build_object())
"""
# Four handlers have a copy of each event.
COPY = f"""
    '@events', CASE WHEN n %% 4 = 0 THEN %(handler)s::text ELSE 'shop.handlers.h' || n %% 4 END,
    {EVENT}, md5({{kind}} || n / 4)::uuid, (%(topics)s::text[])[1 + n / 4 %% 4], '{{{{"idempotent": true}}}}'::json
"""
SECONDS_AGO = "statement_timestamp() - make_interval(secs => n %% (%(days)s * 86400))"
ONE_OF_THE_WORKERS = "(ARRAY(SELECT id FROM pgbus_workers ORDER BY name))[1 + n %% %(workers)s]"
EACH = "FROM generate_series(1, %({number})s::bigint) AS n"


def _each(number: str) -> str:
    return EACH.format(number=number)


STATEMENTS: Final = (
    # --- who works
    f"""
    INSERT INTO pgbus_workers (id, name, host, pid, version, queues, capacity, running, state, listening, lease, beat_at)
    SELECT md5('w' || n)::uuid, 'shop-' || lpad(n::text, 2, '0'), 'host-' || n, 1000 + n, '0.1.0', '*, @*: 10', 10, 10,
           'running', true, interval '1 day', statement_timestamp()
    {_each("workers")}
    """,
    """
    INSERT INTO pgbus_queue_states (queue, paused_at, paused_by) VALUES ('q007', statement_timestamp(), 'ann')
    """,
    # --- jobs
    f"""
    INSERT INTO pgbus_archive (queue, priority, task, payload, outcome, result, attempts, delivery, worker,
                               enqueued_at, started_at, finished_at)
    SELECT {WORK}, CASE WHEN n %% 10 = 0 THEN 'discarded' ELSE 'succeeded' END, '"done"', 1, 1, {ONE_OF_THE_WORKERS},
           {SECONDS_AGO} - interval '3 s', {SECONDS_AGO} - interval '1 s', {SECONDS_AGO}
    {_each("rows")}
    """,
    f"""
    INSERT INTO pgbus_messages (queue, priority, task, payload, constraints, enqueued_at, ready_at)
    SELECT {WORK}, {UNIQUE.format(kind="'r'")}, {SECONDS_AGO}, {SECONDS_AGO}
    {_each("rows")}
    """,
    f"""
    INSERT INTO pgbus_delayed (queue, priority, task, payload, constraints, due_at, reason, enqueued_at)
    SELECT {WORK}, {UNIQUE.format(kind="'d'")}, statement_timestamp() + make_interval(secs => n - 1000),
           (ARRAY['scheduled', 'scheduled', 'retry', 'snoozed'])[1 + n %% 4], {SECONDS_AGO}
    {_each("rows")}
    """,
    f"""
    INSERT INTO pgbus_dead_letters (queue, priority, task, payload, reason, errors, attempts, delivery, worker, started_at,
                                    died_at)
    SELECT {WORK}, CASE WHEN n %% 2 = 0 THEN 'gave_up' ELSE 'exhausted' END, {ERROR}::jsonb, 5, 5, {ONE_OF_THE_WORKERS},
           {SECONDS_AGO} - interval '1 s', {SECONDS_AGO}
    {_each("dead")}
    """,
    # --- uniqueness: what was enqueued above holds its key
    *(
        f"""
        INSERT INTO pgbus_uniqueness_keys (key, message_id, strategy, queue, created_at)
        SELECT constraints -> 'unique' ->> 'key', id, 'until_executed', queue, enqueued_at
        FROM {table}
        WHERE constraints IS NOT NULL
        """
        for table in ("pgbus_messages", "pgbus_delayed")
    ),
    # --- limits: each key has one place, whose holder stands in the line or runs; ten wait for it
    """
    INSERT INTO pgbus_semaphores (key, capacity)
    SELECT 'printer-' || n, 1 FROM generate_series(1, %(keys)s::bigint) AS n
    """,
    f"""
    WITH holders AS (
        INSERT INTO pgbus_messages (queue, priority, task, payload, constraints, leased_until, claimed_at, started, delivery,
                                    attempts, worker)
        SELECT {WORK}, {LIMIT.format(key="'printer-' || n")},
               CASE WHEN n <= %(running)s THEN statement_timestamp() + interval '1 day' END,
               CASE WHEN n <= %(running)s THEN statement_timestamp() END,
               n <= %(running)s, (n <= %(running)s)::int, (n <= %(running)s)::int,
               CASE WHEN n <= %(running)s THEN {ONE_OF_THE_WORKERS} END
        {_each("keys")}
        RETURNING id, constraints -> 'limit' ->> 'key' AS key, leased_until
    )
    INSERT INTO pgbus_semaphore_slots (message_id, key, ordinal, duration, leased_until)
    SELECT id, key, 1, 900, leased_until
    FROM holders
    """,
    f"""
    INSERT INTO pgbus_blocked_executions (queue, priority, task, payload, waits_for, key, semaphore, constraints, parked_at)
    SELECT {WORK}, 'semaphore', 'printer-' || 1 + n %% %(keys)s, 'printer-' || 1 + n %% %(keys)s,
           {LIMIT.format(key="'printer-' || 1 + n %% %(keys)s")}, {SECONDS_AGO}
    {_each("parked")}
    """,
    f"""
    INSERT INTO pgbus_blocked_executions (queue, priority, task, payload, waits_for, key, constraints, parked_at)
    SELECT {WORK}, 'key', 'order-r' || 2 * n, json_build_object('unique', json_build_object(
               'key', 'order-r' || 2 * n, 'name', '', 'strategy', 'until_executed', 'on_conflict', 'wait')), {SECONDS_AGO}
    {_each("keys")}
    """,
    # --- batches: half of the members are of one batch
    """
    INSERT INTO pgbus_batches (description, properties, callbacks, finished_at)
    SELECT 'import ' || n, '{}', '{}', CASE WHEN n %% 2 = 0 THEN statement_timestamp() - make_interval(secs => n) END
    FROM generate_series(1, %(batches)s::bigint) AS n
    """,
    """
    WITH open AS (
        SELECT array_agg(id ORDER BY id) AS ids FROM pgbus_batches WHERE finished_at IS NULL
    )
    UPDATE pgbus_messages AS member
    SET batch_id = open.ids[CASE WHEN member.id %% 20 = 0 THEN 1 ELSE 1 + member.id %% cardinality(open.ids) END]
    FROM open
    WHERE member.id %% 10 = 0
    """,
    """
    WITH finished AS (
        SELECT array_agg(id ORDER BY id) AS ids FROM pgbus_batches WHERE finished_at IS NOT NULL
    )
    UPDATE pgbus_archive AS member
    SET batch_id = finished.ids[1 + member.id %% cardinality(finished.ids)]
    FROM finished
    WHERE member.id %% 10 = 0
    """,
    """
    UPDATE pgbus_batches AS batch
    SET total = members.number + 10,
        succeeded = CASE WHEN batch.finished_at IS NULL THEN 10 ELSE members.number + 10 END
    FROM (
        SELECT batch_id, count(*) AS number
        FROM (SELECT batch_id FROM pgbus_messages UNION ALL SELECT batch_id FROM pgbus_archive) AS member
        WHERE batch_id IS NOT NULL
        GROUP BY batch_id
    ) AS members
    WHERE members.batch_id = batch.id
    """,
    """
    INSERT INTO pgbus_batch_counts (batch_id, succeeded)
    SELECT (SELECT min(id) FROM pgbus_batches WHERE finished_at IS NULL), 1 FROM generate_series(1, %(keys)s::bigint)
    """,
    # --- events: copies that were handled, wait, run, are tried again and gave up, and who has claimed them
    f"""
    INSERT INTO pgbus_archive (queue, task, payload, event_id, topic, constraints, outcome, note, started_at, finished_at)
    SELECT {COPY.format(kind="'a'")}, CASE WHEN n %% 100 = 1 THEN 'skipped' ELSE 'succeeded' END,
           CASE WHEN n %% 100 = 1 THEN 'completed' ELSE '' END, {SECONDS_AGO} - interval '1 s', {SECONDS_AGO}
    {_each("events")}
    """,
    """
    INSERT INTO pgbus_processed_events (event_id, handler, message_id, delivery, completed_at)
    SELECT event_id, task, id, 1, finished_at
    FROM pgbus_archive
    WHERE event_id IS NOT NULL
    """,
    f"""
    INSERT INTO pgbus_messages (queue, task, payload, event_id, topic, constraints, leased_until, claimed_at, started,
                                delivery, attempts, worker)
    SELECT {COPY.format(kind="'m'")},
           CASE WHEN n <= %(running)s THEN statement_timestamp() + interval '1 day' END,
           CASE WHEN n <= %(running)s THEN statement_timestamp() END,
           n <= %(running)s, (n <= %(running)s)::int, (n <= %(running)s)::int,
           CASE WHEN n <= %(running)s THEN {ONE_OF_THE_WORKERS} END
    {_each("events")}
    """,
    """
    INSERT INTO pgbus_processed_events (event_id, handler, message_id, delivery, leased_until)
    SELECT event_id, task, id, 1, leased_until
    FROM pgbus_messages
    WHERE event_id IS NOT NULL AND leased_until IS NOT NULL
    """,
    f"""
    INSERT INTO pgbus_delayed (queue, task, payload, event_id, topic, constraints, due_at, reason, attempts, delivery)
    SELECT {COPY.format(kind="'l'")}, statement_timestamp() + make_interval(secs => n), 'retry', 1, 1
    {_each("keys")}
    """,
    f"""
    INSERT INTO pgbus_dead_letters (queue, task, payload, event_id, topic, constraints, reason, errors, attempts, delivery,
                                    died_at)
    SELECT {COPY.format(kind="'x'")}, 'exhausted', {ERROR}::jsonb, 5, 5, {SECONDS_AGO}
    {_each("batches")}
    """,
    """
    INSERT INTO pgbus_event_counts (status, reason, name, amount)
    SELECT CASE WHEN n %% 2 = 0 THEN 'unrouted' ELSE 'skipped' END, CASE WHEN n %% 2 = 0 THEN '' ELSE 'completed' END,
           CASE WHEN n %% 2 = 0 THEN 'suppliers.' || n ELSE 'shop.handlers.h1' END, n
    FROM generate_series(1, %(keys)s::bigint) AS n
    """,
    # --- what workers have counted: the last minutes finely, a week by the hour
    f"""
    INSERT INTO pgbus_run_counts (resolution, bucket, queue, task, succeeded, failed, dead, run_seconds, wait_seconds,
                                  longest, run, wait)
    SELECT kept.resolution, date_bin(kept.step, statement_timestamp(), 'epoch') - nth * kept.step, {QUEUE},
           'shop.tasks.task_' || n, 90, 8, 2, 40.0, 300.0, 1.5,
           '{{0,0,5,20,30,20,10,10,5,0,0,0,0,0,0,0}}', '{{0,0,0,0,0,0,10,20,30,20,10,10,0,0,0,0}}'
    FROM (
        VALUES ('raw', interval '10 s', 6), ('minute', interval '1 min', 70), ('ten_minutes', interval '10 min', 150),
               ('hour', interval '1 hour', %(days)s * 24), ('total', interval '1 day', 1)
    ) AS kept (resolution, step, number)
    CROSS JOIN LATERAL generate_series(1, kept.number) AS nth
    CROSS JOIN generate_series(1, %(counted)s::bigint) AS n
    """,
    # --- where workers look
    """
    INSERT INTO pgbus_levels (queue, priority, suspect)
    SELECT DISTINCT queue, priority, suspect FROM pgbus_messages
    ON CONFLICT DO NOTHING
    """,
)
OF_A_LOG: Final = (
    """
    INSERT INTO pgbus_stream_{log} (payload, appended_at)
    SELECT json_build_object('order_id', n, 'cents', n %% 5000),
           statement_timestamp() - make_interval(secs => (%(rows)s - n) / (%(rows)s / 86400.0))
    FROM generate_series(1, %(rows)s::bigint) AS n
    """,
    """
    INSERT INTO pgbus_stream_exceptions (group_id, position, status, attempts, exception, traceback, failed_at, payload,
                                         appended_at)
    SELECT {group}, n, 'dead', 5, 'shop.rows.BrokenRow', %(traceback)s::text, statement_timestamp(), '{{}}',
           statement_timestamp()
    FROM generate_series(10, 10 + %(dead)s::bigint) AS n
    """,
    """
    INSERT INTO pgbus_stream_leases (token, group_id, low, high, worker, until)
    SELECT gen_random_uuid(), {group}, {claimed} - n * {step}, {claimed} - n * {step} + {step}, gen_random_uuid(),
           statement_timestamp() + interval '1 day'
    FROM generate_series(1, 20) AS n
    """,
)


def seed(rows: int) -> None:
    """Fill an empty schema of ours; two hundred rows are the least that has one of everything."""
    params: dict[str, Any] = {
        "rows": rows,
        "parked": rows // 10,
        "events": rows // 10,
        "keys": rows // 100,
        "dead": rows // 100,
        "batches": max(rows // 1000, 4),
        "running": min(rows // 200, 200),
        "counted": max(rows // 5000, 4),
        "queues": QUEUES,
        "workers": WORKERS,
        "days": DAYS,
        "task": TASK,
        "gone": GONE,
        "handler": HANDLER,
        "topics": list(TOPICS),
        "traceback": TRACEBACK,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in STATEMENTS:
            cursor.execute(statement, params)
        _streams(rows, params, cursor)
        _subscriptions()
    analyze()


def analyze() -> None:
    """Let the planner know how many rows there are."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _streams(rows: int, params: dict[str, Any], cursor: Any) -> None:
    size = max(rows // 8, 100)
    StreamLog.objects.all().delete()
    ledger = a_stream("ledger", partition_size=size)
    for number in range(rows // size + 2):
        partitions.attach(ledger.pk, size, number)
    claimed = rows // 2
    open = rows // 4  # positions that are claimed and not done with
    behind = a_group(ledger, "totals", claimed=claimed, committed=claimed - open)
    a_group(ledger, "mail", claimed=rows // 4, paused_at=a_row.now())
    a_group(ledger, "done", claimed=rows)
    for statement in OF_A_LOG:
        cursor.execute(statement.format(log=ledger.pk, group=behind.pk, claimed=claimed, step=open // 25), params)
    a_failed(behind, claimed - open + 1)
    a_waiting(behind, claimed - open + 2)
    a_dead(behind, 5)
    for number in range(20):
        a_group(a_stream(f"small_{number}", entries=3), "totals", claimed=2)


def _subscriptions() -> None:
    for topic in TOPICS:
        for handler in (HANDLER, *(f"shop.handlers.h{number}" for number in range(1, 4))):
            a_row.a_subscription(topic, handler)
