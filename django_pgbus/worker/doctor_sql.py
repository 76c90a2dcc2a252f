"""What `pgbus_doctor` asks the database; all of it reads, and none of it locks."""

from django_pgbus.postgres import Statement

SERVER = Statement(
    sql="""
    SELECT current_setting('server_version') AS version,
           pg_is_in_recovery() AS standby,
           extract(epoch FROM statement_timestamp())::float8 AS clock
    """
)

# A loose index scan: as many steps as queues, however long they are.
BACKLOGS = Statement(
    sql="""
    WITH RECURSIVE used AS (
        (
            SELECT first.queue
            FROM pgbus_messages AS first
            ORDER BY first.queue
            LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT next.queue
            FROM pgbus_messages AS next
            WHERE next.queue > used.queue
            ORDER BY next.queue
            LIMIT 1
        )
        FROM used
        WHERE used.queue IS NOT NULL
    )
    SELECT used.queue,
           (
               SELECT count(*)
               FROM (
                   SELECT 1
                   FROM pgbus_messages AS waiting
                   WHERE waiting.queue = used.queue
                   LIMIT %(counted)s::int
               ) AS some_of_them
           ) AS jobs,
           state.paused_at,
           state.paused_by
    FROM used
    LEFT JOIN pgbus_queue_states AS state ON state.queue = used.queue
    WHERE used.queue IS NOT NULL
    ORDER BY used.queue
    LIMIT 1000
    """
)

LIVING_WORKERS = Statement(
    sql="""
    SELECT name, queues, streams, listening
    FROM pgbus_workers
    WHERE beat_at > statement_timestamp() - lease
    ORDER BY name
    LIMIT 1000
    """
)

TASKS = Statement(
    sql="""
    SELECT seen.task, min(seen.topic) AS topic
    FROM (
        (
            SELECT line.task, line.topic
            FROM pgbus_messages AS line
            ORDER BY line.id
            LIMIT %(rows)s::int
        )
        UNION ALL
        (
            SELECT later.task, later.topic
            FROM pgbus_delayed AS later
            ORDER BY later.id
            LIMIT %(rows)s::int
        )
    ) AS seen
    GROUP BY seen.task, seen.topic IS NULL, strpos(seen.topic, '/') > 0
    ORDER BY seen.task, topic
    LIMIT 200
    """
)

TABLES = Statement(
    sql="""
    SELECT stats.relname AS name,
           stats.n_live_tup AS live,
           stats.n_dead_tup AS dead,
           current_setting('autovacuum')::boolean
           AND NOT EXISTS (
               SELECT 1
               FROM unnest(class.reloptions) AS options (option)
               WHERE options.option IN ('autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0')
           ) AS vacuumed
    FROM pg_stat_user_tables AS stats
    JOIN pg_class AS class ON class.oid = stats.relid
    WHERE stats.relname = ANY (%(names)s::text[])
    ORDER BY stats.relname
    """
)

# Without the rights of pg_read_all_stats only the sessions of the same role say how old they are.
TRANSACTIONS = Statement(
    sql="""
    SELECT 'session' AS kind,
           pid::text AS name,
           concat_ws(', ', nullif(application_name, ''), usename, state) AS text,
           extract(epoch FROM statement_timestamp() - xact_start)::float8 AS seconds,
           backend_xmin IS NOT NULL AS holds_snapshot,
           coalesce(age(backend_xmin), 0) AS behind
    FROM pg_stat_activity
    WHERE datname = current_database()
      AND backend_type = 'client backend'
      AND pid <> pg_backend_pid()
      AND xact_start IS NOT NULL
    UNION ALL
    SELECT 'prepared transaction',
           gid,
           owner::text,
           extract(epoch FROM statement_timestamp() - prepared)::float8,
           TRUE,
           age(transaction)
    FROM pg_prepared_xacts
    WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot',
           slot_name,
           CASE WHEN active THEN 'active' ELSE 'inactive' END,
           0,
           TRUE,
           age(xmin)
    FROM pg_replication_slots
    WHERE xmin IS NOT NULL
    ORDER BY seconds DESC
    LIMIT 1000
    """
)

# Of a group: what a worker may be handling at this moment.
HELD_RANGES = Statement(
    sql="""
    SELECT lease.worker, lease.low, lease.high
    FROM pgbus_stream_leases AS lease
    WHERE lease.group_id = %(group)s::bigint
      AND lease.until >= statement_timestamp()
    ORDER BY lease.low
    LIMIT 100
    """
)
