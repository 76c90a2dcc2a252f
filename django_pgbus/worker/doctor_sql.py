"""What `pgbus_doctor` asks of the work and of dead rows; all of it reads, and none of it locks."""

from django_pgbus.postgres import Statement

# Loose index scans: as many steps as queues, however long they are. What is due among the delayed waits for a worker of
# its queue too.
BACKLOGS = Statement(
    sql="""
    WITH RECURSIVE in_line AS (
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
            WHERE next.queue > in_line.queue
            ORDER BY next.queue
            LIMIT 1
        )
        FROM in_line
        WHERE in_line.queue IS NOT NULL
    ),
    later AS (
        (
            SELECT first.queue
            FROM pgbus_delayed AS first
            ORDER BY first.queue
            LIMIT 1
        )
        UNION ALL
        SELECT (
            SELECT next.queue
            FROM pgbus_delayed AS next
            WHERE next.queue > later.queue
            ORDER BY next.queue
            LIMIT 1
        )
        FROM later
        WHERE later.queue IS NOT NULL
    ),
    used AS (
        SELECT in_line.queue
        FROM in_line
        UNION
        SELECT later.queue
        FROM later
    ),
    counted AS (
        SELECT used.queue,
               (
                   SELECT count(*)
                   FROM (
                       SELECT 1
                       FROM pgbus_messages AS waiting
                       WHERE waiting.queue = used.queue
                       LIMIT %(counted)s::int
                   ) AS some_of_them
               ) + (
                   SELECT count(*)
                   FROM (
                       SELECT 1
                       FROM pgbus_delayed AS due
                       WHERE due.queue = used.queue
                         AND due.due_at <= statement_timestamp()
                       LIMIT %(counted)s::int
                   ) AS some_of_them
               ) AS jobs
        FROM used
        WHERE used.queue IS NOT NULL
    )
    SELECT counted.queue,
           least(counted.jobs, %(counted)s::bigint) AS jobs,
           state.paused_at,
           state.paused_by
    FROM counted
    LEFT JOIN pgbus_queue_states AS state ON state.queue = counted.queue
    WHERE counted.jobs > 0
    ORDER BY counted.queue
    LIMIT 1000
    """
)

LIVING_WORKERS = Statement(
    sql="""
    SELECT name, version, queues, streams, capacity, listening
    FROM pgbus_workers
    WHERE beat_at > statement_timestamp() - lease
    ORDER BY name
    LIMIT 1000
    """
)

TASKS = Statement(
    sql="""
    SELECT seen.task, min(seen.topic) AS topic, count(*) AS jobs
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
        UNION ALL
        (
            SELECT parked.task, parked.topic
            FROM pgbus_blocked_executions AS parked
            ORDER BY parked.id
            LIMIT %(rows)s::int
        )
    ) AS seen
    GROUP BY seen.task, seen.topic IS NULL, strpos(seen.topic, '/') > 0
    ORDER BY seen.task, topic
    LIMIT 200
    """
)

# Partitions of logs too. The statistics may be some seconds old.
TABLES = Statement(
    sql="""
    SELECT class.relname::text AS name,
           current_setting('autovacuum')::boolean AS autovacuum,
           stats.n_live_tup AS live,
           stats.n_dead_tup AS dead,
           extract(
               epoch FROM statement_timestamp() - greatest(stats.last_autovacuum, stats.last_vacuum)
           )::float8 AS since,
           coalesce(
               (
                   SELECT options.value::int
                   FROM pg_options_to_table(class.reloptions) AS options (name, value)
                   WHERE options.name = 'fillfactor'
               ),
               100
           ) AS fillfactor,
           EXISTS (
               SELECT 1
               FROM pg_options_to_table(class.reloptions || toast.reloptions) AS options (name, value)
               WHERE options.name = 'autovacuum_enabled'
                 AND NOT options.value::boolean
           ) AS switched_off
    FROM pg_class AS class
    JOIN pg_stat_user_tables AS stats ON stats.relid = class.oid
    LEFT JOIN pg_class AS toast ON toast.oid = class.reltoastrelid
    WHERE class.relname LIKE 'pgbus\\_%%'
      AND class.relkind = 'r'
      AND pg_table_is_visible(class.oid)
    ORDER BY stats.n_dead_tup DESC, class.relname
    LIMIT 2000
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
    UNION ALL
    SELECT 'standby',
           pid::text,
           concat_ws(', ', nullif(application_name, ''), client_addr::text, 'hot_standby_feedback'),
           0,
           TRUE,
           age(backend_xmin)
    FROM pg_stat_replication
    WHERE backend_xmin IS NOT NULL
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
