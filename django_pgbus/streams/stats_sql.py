"""
The statements behind `stats.py`: they only read, and none looks at more than a fixed number of rows.

What stands in a log is asked for by position, a row at a time, so its primary key answers. How much there is of it is
what the planner believes of each partition; a partition that is still filled is told from the positions that were handed
out.
"""

from django_pgbus.postgres import Statement
from django_pgbus.streams.log_statement import LogStatement

# --- streams ----------------------------------------------------------------------------------------------

# A stream whose log was never made, or was dropped by hand, has no head. `entries` takes every position of a partition that
# is not full yet for an entry, and of one that was never analyzed: the oldest entry that is kept says less at times.
STREAMS = Statement(
    sql="""
    SELECT stream.id, stream.name, stream.retention, stream.drops_unhandled, stream.created_at,
           log.parent IS NOT NULL AND log.sequence IS NOT NULL AS has_log,
           coalesce(last.position, 0) AS head,
           kept.partitions, kept.bytes, kept.entries,
           statement_timestamp() AS now
    FROM (
        SELECT known.id, known.name, known.retention, known.drops_unhandled, known.created_at
        FROM pgbus_streams AS known
        WHERE strpos(lower(known.name), %(text)s::text) > 0
          AND (%(id)s::bigint IS NULL OR known.id = %(id)s::bigint)
        ORDER BY known.name
        LIMIT %(most)s::int
    ) AS stream
    CROSS JOIN LATERAL (
        SELECT to_regclass('pgbus_stream_' || stream.id) AS parent,
               to_regclass('pgbus_stream_' || stream.id || '_position') AS sequence
    ) AS log
    CROSS JOIN LATERAL (
        SELECT pg_sequence_last_value(log.sequence) AS position
    ) AS last
    CROSS JOIN LATERAL (
        SELECT count(*) AS partitions,
               coalesce(sum(pg_total_relation_size(part.oid)), 0)::bigint AS bytes,
               coalesce(
                   sum(
                       CASE
                           WHEN part.reltuples >= 0 AND part.upper <= last.position THEN part.reltuples
                           ELSE greatest(0, least(part.upper, last.position + 1) - greatest(part.lower, 1))
                       END
                   ),
                   0
               )::bigint AS entries
        FROM (
            SELECT relation.oid, relation.reltuples,
                   substring(bounds.text FROM 'FROM \\(''?(\\d+)')::bigint AS lower,
                   substring(bounds.text FROM 'TO \\(''?(\\d+)')::bigint AS upper
            FROM pg_inherits AS inherited
            JOIN pg_class AS relation ON relation.oid = inherited.inhrelid
            CROSS JOIN LATERAL (SELECT pg_get_expr(relation.relpartbound, relation.oid) AS text) AS bounds
            WHERE inherited.inhparent = log.parent
            ORDER BY inherited.inhrelid
            LIMIT %(partitions)s::int + 1
        ) AS part
    ) AS kept
    ORDER BY stream.name
    """
)

NAMED = Statement(
    sql="""
    SELECT stream.id
    FROM pgbus_streams AS stream
    WHERE stream.name = %(name)s::text
    """
)

# For each of some positions the first entry behind it.
NEXT = LogStatement(
    sql="""
    SELECT asked.log, asked.after, entry.position, entry.appended_at,
           extract(epoch FROM statement_timestamp() - entry.appended_at)::float8 AS seconds
    FROM unnest(%(logs)s::text[], %(after)s::bigint[]) AS asked (log, after)
    CROSS JOIN LATERAL (
        SELECT log.position, log.appended_at
        FROM pgbus_stream_0 AS log
        WHERE log.position > asked.after
        ORDER BY log.position
        LIMIT 1
    ) AS entry
    WHERE asked.log = 'pgbus_stream_0'
    """
)

COUNT_ENTRIES = LogStatement(
    sql="""
    SELECT count(*) AS number
    FROM (
        SELECT log.position
        FROM pgbus_stream_0 AS log
        WHERE log.position > %(after)s::bigint
          AND log.position <= %(to)s::bigint
        ORDER BY log.position
        LIMIT %(limit)s::int + 1
    ) AS counted
    """
)

PARTITIONS = Statement(
    sql="""
    SELECT relation.relname AS name,
           substring(bounds.text FROM 'FROM \\(''?(\\d+)')::bigint AS lower,
           substring(bounds.text FROM 'TO \\(''?(\\d+)')::bigint AS upper,
           pg_total_relation_size(relation.oid) AS bytes,
           relation.reltuples::bigint AS analyzed
    FROM pg_inherits AS inherited
    JOIN pg_class AS relation ON relation.oid = inherited.inhrelid
    CROSS JOIN LATERAL (SELECT pg_get_expr(relation.relpartbound, relation.oid) AS text) AS bounds
    WHERE inherited.inhparent = to_regclass('pgbus_stream_' || %(stream)s::bigint)
    ORDER BY lower, name
    LIMIT %(most)s::int
    """
)

# The newest entry of each of some ranges of positions.
NEWEST = LogStatement(
    sql="""
    SELECT asked.lower, extract(epoch FROM statement_timestamp() - entry.appended_at)::float8 AS seconds
    FROM unnest(%(lowers)s::bigint[], %(uppers)s::bigint[]) AS asked (lower, upper)
    CROSS JOIN LATERAL (
        SELECT log.appended_at
        FROM pgbus_stream_0 AS log
        WHERE log.position >= asked.lower
          AND log.position < asked.upper
        ORDER BY log.position DESC
        LIMIT 1
    ) AS entry
    """
)

# --- groups -----------------------------------------------------------------------------------------------

# One snapshot for a group: its cursor, the lowest range that is open, the lowest entry that is not done with, and the
# head. What holds `committed` is what `sql.COMPUTE_COMMITTED` says, but in words that an index knows however many are dead.
GROUPS = Statement(
    sql="""
    SELECT groups.id, groups.stream_id, groups.name, groups.handler, groups.keyed, groups.routes, groups.paused_at,
           groups.declared_at,
           cursors.group_id IS NOT NULL AS has_cursor,
           coalesce(cursors.claimed, 0) AS claimed,
           greatest(
               coalesce(cursors.committed, 0),
               CASE
                   WHEN groups.routes THEN cursors.claimed
                   ELSE least(cursors.claimed, lease.low, failed.position - 1)
               END
           ) AS committed,
           cursors.fence,
           cursors.epoch = (SELECT system_identifier::text FROM pg_control_system())
                           || '/' || pg_relation_filenode(log.sequence) AS same_epoch,
           coalesce(cursors.pending_xid <= pg_snapshot_xmin(pg_current_snapshot()), false) AS is_proven,
           coalesce(pg_sequence_last_value(log.sequence), 0) AS head,
           lease.low AS lease_low, lease.high AS lease_high, lease.worker AS lease_worker,
           lease.claimed_at AS lease_claimed_at, lease.until AS lease_until, lease.lapsed AS lease_lapsed,
           failed.id AS failed_id, failed.position AS failed_position, failed.status AS failed_status,
           failed.attempts AS failed_attempts, failed.due_at AS failed_due_at, failed.is_due AS failed_is_due,
           leases.number AS leases, ready.number AS ready, running.number AS running, dead.number AS dead
    FROM unnest(%(streams)s::bigint[]) AS asked (stream_id)
    CROSS JOIN LATERAL (
        SELECT known.id, known.stream_id, known.name, known.handler, known.keyed, known.routes, known.paused_at,
               known.declared_at
        FROM pgbus_stream_groups AS known
        WHERE known.stream_id = asked.stream_id
          AND (%(name)s::text IS NULL OR known.name = %(name)s::text)
        ORDER BY known.name
        LIMIT %(each)s::int
    ) AS groups
    LEFT JOIN pgbus_stream_cursors AS cursors ON cursors.group_id = groups.id
    CROSS JOIN LATERAL (
        SELECT to_regclass('pgbus_stream_' || groups.stream_id || '_position') AS sequence
    ) AS log
    LEFT JOIN LATERAL (
        SELECT held.low, held.high, held.worker, held.claimed_at, held.until,
               held.until < statement_timestamp() AS lapsed
        FROM pgbus_stream_leases AS held
        WHERE held.group_id = groups.id
        ORDER BY held.low
        LIMIT 1
    ) AS lease ON true
    LEFT JOIN LATERAL (
        SELECT exception.id, exception.position, exception.status, exception.attempts, exception.due_at,
               exception.due_at <= statement_timestamp() AS is_due
        FROM pgbus_stream_exceptions AS exception
        WHERE exception.group_id = groups.id
          AND exception.status IN ('ready', 'running')
          AND exception.payload IS NULL
        ORDER BY exception.position
        LIMIT 1
    ) AS failed ON true
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT held.id
            FROM pgbus_stream_leases AS held
            WHERE held.group_id = groups.id
            LIMIT %(limit)s::int + 1
        ) AS counted
    ) AS leases
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT exception.id
            FROM pgbus_stream_exceptions AS exception
            WHERE exception.group_id = groups.id
              AND exception.status = 'ready'
            ORDER BY exception.due_at
            LIMIT %(limit)s::int + 1
        ) AS counted
    ) AS ready
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT exception.id
            FROM pgbus_stream_exceptions AS exception
            WHERE exception.group_id = groups.id
              AND exception.status = 'running'
            ORDER BY exception.due_at
            LIMIT %(limit)s::int + 1
        ) AS counted
    ) AS running
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT exception.id
            FROM pgbus_stream_exceptions AS exception
            WHERE exception.group_id = groups.id
              AND exception.status = 'dead'
            ORDER BY exception.due_at
            LIMIT %(limit)s::int + 1
        ) AS counted
    ) AS dead
    ORDER BY groups.stream_id, groups.name
    """
)

# What needs a person, told by the cursors and heads alone: for a page that is about more than streams.
ALARMS = Statement(
    sql="""
    SELECT stream.name AS stream, groups.name AS "group", groups.paused_at IS NOT NULL AS is_paused,
           cursors.group_id IS NOT NULL AND (
               cursors.fence <> %(fence)s::smallint
               OR NOT coalesce(
                   cursors.epoch = (SELECT system_identifier::text FROM pg_control_system())
                                   || '/' || pg_relation_filenode(log.sequence),
                   false
               )
               OR cursors.claimed > coalesce(pg_sequence_last_value(log.sequence), 0)
           ) AS refuses,
           dead.number AS dead
    FROM (
        SELECT known.id, known.stream_id, known.name, known.paused_at
        FROM pgbus_stream_groups AS known
        ORDER BY known.id
        LIMIT %(most)s::int
    ) AS groups
    JOIN pgbus_streams AS stream ON stream.id = groups.stream_id
    LEFT JOIN pgbus_stream_cursors AS cursors ON cursors.group_id = groups.id
    CROSS JOIN LATERAL (
        SELECT to_regclass('pgbus_stream_' || groups.stream_id || '_position') AS sequence
    ) AS log
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT exception.id
            FROM pgbus_stream_exceptions AS exception
            WHERE exception.group_id = groups.id
              AND exception.status = 'dead'
            ORDER BY exception.due_at
            LIMIT %(limit)s::int + 1
        ) AS counted
    ) AS dead
    ORDER BY stream.name, groups.name
    """
)

# Of any database of the cluster: transaction ids are handed out to all of them. Whoever may not see another's activity is
# told its id, but not its age.
OLDEST_WRITER = Statement(
    sql="""
    SELECT writer.pid, writer.gid, writer.database, writer.person, writer.application, writer.state, writer.seconds
    FROM (
        SELECT activity.pid, ''::text AS gid, activity.datname::text AS database, activity.usename::text AS person,
               activity.application_name AS application, activity.state,
               extract(epoch FROM statement_timestamp() - activity.xact_start)::float8 AS seconds,
               age(activity.backend_xid) AS behind
        FROM pg_stat_activity AS activity
        WHERE activity.backend_xid IS NOT NULL
          AND activity.pid <> pg_backend_pid()
        UNION ALL
        SELECT NULL, prepared.gid, prepared.database::text, prepared.owner::text, '', 'prepared',
               extract(epoch FROM statement_timestamp() - prepared.prepared)::float8,
               age(prepared.transaction)
        FROM pg_prepared_xacts AS prepared
    ) AS writer
    ORDER BY writer.behind DESC
    LIMIT 1
    """
)

LEASES = Statement(
    sql="""
    SELECT lease.id, lease.group_id, lease.low, lease.high, lease.worker, lease.claimed_at, lease.until, lease.reclaims,
           lease.until < statement_timestamp() AS lapsed
    FROM pgbus_stream_leases AS lease
    WHERE lease.group_id = ANY (%(groups)s::bigint[])
    ORDER BY lease.group_id, lease.low
    LIMIT %(most)s::int
    """
)

# --- failed entries ---------------------------------------------------------------------------------------

# The dead ones first, which wait for a person; each status of each group by its index. Of a traceback only the end is
# read, which says what went wrong.
EXCEPTIONS = Statement(
    sql="""
    SELECT failed.id, failed.group_id, failed.position, failed.status, failed.attempts, failed.due_at, failed.until,
           failed.failed_at, failed.key, failed.exception, right(failed.traceback, 2000) AS traceback
    FROM unnest(%(groups)s::bigint[]) AS asked (group_id)
    CROSS JOIN unnest(%(statuses)s::text[]) WITH ORDINALITY AS wanted (status, place)
    CROSS JOIN LATERAL (
        SELECT exception.id, exception.group_id, exception.position, exception.status, exception.attempts,
               exception.due_at, exception.until, exception.failed_at, exception.key, exception.exception,
               exception.traceback
        FROM pgbus_stream_exceptions AS exception
        WHERE exception.group_id = asked.group_id
          AND exception.status = wanted.status
        ORDER BY exception.due_at
        LIMIT %(most)s::int
    ) AS failed
    ORDER BY wanted.place, failed.due_at, failed.id
    LIMIT %(most)s::int
    """
)

CHOSEN = Statement(
    sql="""
    SELECT exception.id, exception.group_id, groups.name AS "group", groups.handler, exception.position,
           exception.status, exception.attempts, exception.due_at, exception.until, exception.failed_at,
           exception.created_at, exception.key, exception.exception, exception.traceback
    FROM pgbus_stream_exceptions AS exception
    JOIN pgbus_stream_groups AS groups ON groups.id = exception.group_id
    WHERE exception.id = ANY (%(ids)s::bigint[])
      AND groups.stream_id = %(stream)s::bigint
    ORDER BY exception.id
    LIMIT %(most)s::int
    """
)

# A dead letter carries its entry; of any other it stands in the log.
CONTENT = LogStatement(
    sql="""
    SELECT coalesce(exception.payload, entry.payload)::text AS payload,
           coalesce(exception.appended_at, entry.appended_at) AS appended_at
    FROM pgbus_stream_exceptions AS exception
    LEFT JOIN pgbus_stream_0 AS entry ON entry.position = %(position)s::bigint
    WHERE exception.id = %(id)s::bigint
    """
)

# Those that had died when the person looked.
DEAD = Statement(
    sql="""
    SELECT exception.id
    FROM pgbus_stream_exceptions AS exception
    WHERE exception.group_id = %(group)s::bigint
      AND exception.status = 'dead'
      AND coalesce(exception.failed_at, exception.created_at) <= %(seen)s::timestamptz
    ORDER BY exception.due_at
    LIMIT %(most)s::int
    """
)
