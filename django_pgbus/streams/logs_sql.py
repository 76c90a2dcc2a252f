"""
The statements about streams and their logs, with the rows each locks; those of groups stand in `sql.py`.

Who waits for whom: appending and reading wait for nobody. Whoever makes or drops partitions holds the row of the stream:
sweeps skip one that is held, an append that finds no partition waits for whoever is making it.
"""

from django_pgbus.postgres import Statement
from django_pgbus.streams.log_statement import LogStatement

# --- streams --------------------------------------------------------------------------------------------

# A row that this very transaction has made is not settled: it may be rolled back, so nobody may remember its id.
FIND = Statement(
    sql="""
    SELECT log.id, log.partition_size, log.created_at < transaction_timestamp() AS is_settled,
           to_regclass('pgbus_stream_' || log.id) IS NOT NULL AS has_log
    FROM pgbus_streams AS log
    WHERE log.name = %(name)s::text
    """
)
# Waits for whoever is entering the same name, and returns no row if that was committed.
ENTER = Statement(
    sql="""
    INSERT INTO pgbus_streams (name, partition_size, retention)
    VALUES (%(name)s::text, %(partition_size)s::bigint, %(retention)s::interval)
    ON CONFLICT (name) DO NOTHING
    RETURNING id, partition_size
    """
)
SET_RETENTION = Statement(
    sql="""
    UPDATE pgbus_streams
    SET retention = %(retention)s::interval
    WHERE name = %(name)s::text
      AND retention IS DISTINCT FROM %(retention)s::interval
    """,
    locks=("streams",),
)
# Not FOR UPDATE: groups that are declared meanwhile refer to the row, and need not wait.
HOLD = Statement(
    sql="""
    SELECT log.id, log.name
    FROM pgbus_streams AS log
    WHERE log.id = %(stream)s::bigint
    ORDER BY log.id
    FOR NO KEY UPDATE
    """,
    locks=("streams",),
)
# Nor does anybody wait long for whoever works on the log; the setting ends with the transaction.
BE_IMPATIENT = Statement(
    sql="""
    SELECT set_config('lock_timeout', %(patience)s::text, true)
    """
)
# The same where there is no transaction: returns what it was before.
SET_PATIENCE = Statement(
    sql="""
    WITH before AS MATERIALIZED (
        SELECT current_setting('lock_timeout') AS patience
    )
    SELECT before.patience, set_config('lock_timeout', %(patience)s::text, false)
    FROM before
    """
)
HOLD_IF_FREE = Statement(
    sql="""
    SELECT log.id, log.name
    FROM pgbus_streams AS log
    WHERE log.id = %(stream)s::bigint
    ORDER BY log.id
    FOR NO KEY UPDATE SKIP LOCKED
    """,
    locks=("streams",),
)

# --- tables of logs ----------------------------------------------------------------------------------------

# Where a partition was made by a transaction that may still run, our own included, its row in the catalog is not older
# than the oldest that runs: such a partition is not settled, and may be rolled back.
PARTITIONS = Statement(
    sql="""
    SELECT substring(child.relname FROM '[0-9]+$')::bigint AS number, inherited.inhdetachpending AS is_pending,
           age(child.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::text::xid) AS is_settled
    FROM pg_inherits AS inherited
    JOIN pg_class AS child ON child.oid = inherited.inhrelid
    WHERE inherited.inhparent = to_regclass(%(log)s::text)
      AND child.relname ~ ('^' || %(log)s::text || '_p[0-9]+$')
    ORDER BY number
    """
)
# These functions look at the catalog as it is now, not as it was when a REPEATABLE READ transaction began.
IS_ATTACHED = Statement(
    sql="""
    SELECT to_regclass(%(table)s::text) IS NOT NULL AS is_there,
           pg_partition_root(to_regclass(%(table)s::text)) IS NOT NULL AS is_attached
    """
)
# Partitions that were detached, and not dropped any more.
DETACHED = Statement(
    sql="""
    SELECT substring(detached.relname FROM '[0-9]+$')::bigint AS number
    FROM pg_class AS detached
    WHERE detached.relname ~ ('^' || %(log)s::text || '_p[0-9]+$')
      AND detached.relkind = 'r'
      AND NOT detached.relispartition
      AND pg_table_is_visible(detached.oid)
    ORDER BY number
    """
)
# Tables of logs whose stream is not there any more: what `flush` leaves behind, since it knows models only. Both are read
# in one snapshot, and made in one transaction. Partitions that are attached go with their log.
LEFT_BEHIND = Statement(
    sql="""
    SELECT left_behind.relname AS table_name, substring(left_behind.relname FROM '^pgbus_stream_([0-9]+)')::bigint AS stream,
           obj_description(left_behind.oid, 'pg_class') AS comment
    FROM pg_class AS left_behind
    WHERE left_behind.relname ~ '^pgbus_stream_[0-9]+(_p[0-9]+)?$'
      AND left_behind.relkind IN ('r', 'p')
      AND NOT left_behind.relispartition
      AND pg_table_is_visible(left_behind.oid)
      AND NOT EXISTS (
          SELECT FROM pgbus_streams AS log
          WHERE log.id = substring(left_behind.relname FROM '^pgbus_stream_([0-9]+)')::bigint
      )
    ORDER BY table_name
    """
)
IS_UNUSED = LogStatement(
    sql="""
    SELECT pg_sequence_last_value('pgbus_stream_0_position') IS NULL
           AND NOT EXISTS (SELECT FROM pgbus_stream_0) AS is_unused
    """
)
ENTER_AGAIN = Statement(
    sql="""
    INSERT INTO pgbus_streams (id, name, partition_size, retention)
    VALUES (%(id)s::bigint, %(name)s::text, %(partition_size)s::bigint, %(retention)s::interval)
    ON CONFLICT DO NOTHING
    """
)
# `flush` also starts the ids anew. A process elsewhere may remember one: it must not find the log of another stream there.
KEEP_IDS_AHEAD = Statement(
    sql="""
    SELECT setval(ids.sequence, %(id)s::bigint)
    FROM (SELECT pg_get_serial_sequence('pgbus_streams', 'id')::regclass AS sequence) AS ids
    WHERE coalesce(pg_sequence_last_value(ids.sequence), 0) < %(id)s::bigint
    """
)
# What the proof of docs/architecture/streams.md rests on. A trigger of type 6: before INSERT, for each statement.
FAULTS = Statement(
    sql="""
    SELECT log.id, log.name, log.parent IS NULL AS is_missing,
           sequence.seqcache AS cache, sequence.seqincrement AS increment, sequence.seqcycle AS cycle,
           ARRAY(
               SELECT relation.relname::text
               FROM pg_class AS relation
               WHERE (relation.oid = log.parent
                      OR relation.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = log.parent))
                 AND NOT EXISTS (
                     SELECT FROM pg_trigger AS trigger
                     WHERE trigger.tgrelid = relation.oid
                       AND trigger.tgfoid = to_regproc('pgbus_take_transaction_id')
                       AND trigger.tgenabled = 'A'
                       AND trigger.tgtype & 7 = 6
                       AND trigger.tgqual IS NULL
                 )
               ORDER BY relation.relname
           ) AS unwatched
    FROM (
        SELECT id, name, to_regclass('pgbus_stream_' || id) AS parent,
               to_regclass('pgbus_stream_' || id || '_position') AS sequence
        FROM pgbus_streams
    ) AS log
    LEFT JOIN pg_sequence AS sequence ON sequence.seqrelid = log.sequence
    WHERE log.id = %(stream)s::bigint OR %(stream)s::bigint IS NULL
    ORDER BY log.id
    """
)

# --- entries -----------------------------------------------------------------------------------------------

APPEND = LogStatement(
    sql="""
    INSERT INTO pgbus_stream_0 (payload)
    VALUES (%(payload)s::json)
    RETURNING position
    """
)
# The sequence gives positions in the order of the rows, which is that of the payloads.
APPEND_MANY = LogStatement(
    sql="""
    INSERT INTO pgbus_stream_0 (payload)
    SELECT appended.payload::json
    FROM unnest(%(payloads)s::text[]) WITH ORDINALITY AS appended (payload, ordinal)
    ORDER BY appended.ordinal
    RETURNING position
    """
)
READ = LogStatement(
    sql="""
    SELECT position, payload::text, (extract(epoch FROM appended_at) * 1000000)::bigint
    FROM pgbus_stream_0
    WHERE position > %(after)s::bigint
    ORDER BY position
    LIMIT %(limit)s::int
    """
)
# The last position that was handed out; NULL for a sequence that was never used, whose own `last_value` is 1 too.
HEAD = LogStatement(
    sql="""
    SELECT coalesce(pg_sequence_last_value('pgbus_stream_0_position'), 0) AS head
    """
)
COMMITTED = Statement(
    sql="""
    SELECT greatest(
               coalesce(cursors.committed, 0),
               least(
                   cursors.claimed,
                   (SELECT min(lease.low) FROM pgbus_stream_leases AS lease WHERE lease.group_id = groups.id),
                   (
                       SELECT min(exception.position) - 1
                       FROM pgbus_stream_exceptions AS exception
                       WHERE exception.group_id = groups.id
                         AND exception.status IN ('ready', 'running')
                         AND exception.payload IS NULL
                   )
               )
           ) AS committed
    FROM pgbus_stream_groups AS groups
    LEFT JOIN pgbus_stream_cursors AS cursors ON cursors.group_id = groups.id
    WHERE groups.stream_id = %(stream)s::bigint
      AND groups.name = %(group)s::text
    """
)
OLDEST_AGE = LogStatement(
    sql="""
    SELECT extract(epoch FROM statement_timestamp() - appended_at)::float8 AS seconds
    FROM pgbus_stream_0
    WHERE position > %(after)s::bigint
    ORDER BY position
    LIMIT 1
    """
)

# --- retention ---------------------------------------------------------------------------------------------

AHEAD = Statement(
    sql="""
    SELECT log.id, log.partition_size,
           coalesce(pg_sequence_last_value(to_regclass('pgbus_stream_' || log.id || '_position')), 0) AS head,
           ARRAY(
               SELECT substring(child.relname FROM '[0-9]+$')::bigint
               FROM pg_inherits AS inherited
               JOIN pg_class AS child ON child.oid = inherited.inhrelid
               WHERE inherited.inhparent = to_regclass('pgbus_stream_' || log.id)
           ) AS numbers
    FROM pgbus_streams AS log
    WHERE to_regclass('pgbus_stream_' || log.id) IS NOT NULL
    ORDER BY log.id
    """
)
# `handled` is how far all groups are; NULL where none is asked. A group without a cursor has not begun.
RETAINED = Statement(
    sql="""
    SELECT log.id, log.partition_size, log.retention,
           coalesce(pg_sequence_last_value(to_regclass('pgbus_stream_' || log.id || '_position')), 0) AS head,
           CASE WHEN NOT log.drops_unhandled THEN (
               SELECT min(coalesce(cursors.committed, 0))
               FROM pgbus_stream_groups AS groups
               LEFT JOIN pgbus_stream_cursors AS cursors ON cursors.group_id = groups.id
               WHERE groups.stream_id = log.id
           ) END AS handled
    FROM pgbus_streams AS log
    WHERE log.retention IS NOT NULL
      AND to_regclass('pgbus_stream_' || log.id) IS NOT NULL
    ORDER BY log.id
    """
)
# By the last entry of a partition. An empty one is as old as what comes after it, and if nothing does, nobody knows:
# a transaction that is not committed may have its entries there.
IS_PAST = LogStatement(
    sql="""
    SELECT coalesce(
        (
            SELECT appended_at
            FROM pgbus_stream_0
            WHERE position >= %(low)s::bigint AND position < %(upper)s::bigint
            ORDER BY position DESC
            LIMIT 1
        ),
        (
            SELECT appended_at
            FROM pgbus_stream_0
            WHERE position >= %(upper)s::bigint
            ORDER BY position
            LIMIT 1
        )
    ) < statement_timestamp() - %(retention)s::interval AS is_past
    """
)
# The age is asked of the first entries only: else a log with none that is old enough would be read to its end.
TRIM = LogStatement(
    sql="""
    DELETE FROM pgbus_stream_0
    WHERE position = ANY (ARRAY(
        SELECT oldest.position
        FROM (
            SELECT position, appended_at
            FROM pgbus_stream_0
            WHERE position >= %(low)s::bigint AND position <= %(high)s::bigint
            ORDER BY position
            LIMIT %(limit)s::int
        ) AS oldest
        WHERE oldest.appended_at < statement_timestamp() - %(retention)s::interval
    ))
      AND position >= %(low)s::bigint
      AND position <= %(high)s::bigint
    """,
    locks=("stream_0",),
)
