"""
The statements of consumer groups, with the rows each locks.

Who waits for whom: whoever claims for a group, or rewinds it, waits for the other one at the group's cursor, and holds it
for one statement (two, if the group has a key). The end of a range waits for nobody but a rewind and a claim of the same
lapsed range. Appending waits for nobody.
"""

from django_pgbus.postgres import Statement
from django_pgbus.streams.log_statement import LogStatement

# --- what a connection may do ---------------------------------------------------------------------------

# Positions are settled on the primary; its system identifier is half of an epoch.
SESSION = Statement(
    sql="""
    SELECT pg_is_in_recovery() AS standby,
           pg_current_xact_id_if_assigned() IS NOT NULL AS wrote,
           (SELECT system_identifier::text FROM pg_control_system()) AS system
    """
)

# --- looking: reads, takes no transaction id and writes nothing -----------------------------------------

# One statement for all groups of a process. `head` is the last position that was handed out, committed or not, and 0 for a
# sequence that was never used: it stays when retention empties the log. The snapshot's xmin is what observations are
# proven with; the pair that is stored with the cursor may have been made by anybody.
PROBE = Statement(
    sql="""
    SELECT groups.id, groups.stream_id, cursors.claimed, cursors.committed, cursors.settled_head, cursors.epoch,
           cursors.pending_head, cursors.pending_xid::text::bigint AS pending_xid,
           cursors.fence, cursors.epoch = %(system)s::text || '/' || pg_relation_filenode(log.sequence) AS same_epoch,
           -- Before PostgreSQL 17 whoever may not look gets an error, which would stop all groups.
           coalesce(CASE WHEN log.may_look THEN pg_sequence_last_value(log.sequence) END, 0) AS head,
           log.may_look,
           pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin,
           groups.paused_at IS NOT NULL AS paused,
           EXISTS (
               SELECT FROM pgbus_stream_leases AS lease
               WHERE lease.group_id = groups.id AND lease.until < statement_timestamp()
           ) AS lapsed,
           (
               SELECT extract(epoch FROM min(exception.due_at) - statement_timestamp())::float8
               FROM pgbus_stream_exceptions AS exception
               WHERE exception.group_id = groups.id AND exception.status = 'ready'
           ) AS due_in,
           (
               SELECT extract(epoch FROM min(exception.until) - statement_timestamp())::float8
               FROM pgbus_stream_exceptions AS exception
               WHERE exception.group_id = groups.id AND exception.status = 'running'
           ) AS lapses_in
    FROM pgbus_stream_groups AS groups
    JOIN pgbus_stream_cursors AS cursors ON cursors.group_id = groups.id
    CROSS JOIN LATERAL (
        SELECT named.sequence, has_sequence_privilege(named.sequence, 'USAGE, SELECT') AS may_look
        FROM to_regclass('pgbus_stream_' || groups.stream_id || '_position') AS named (sequence)
    ) AS log
    WHERE groups.id = ANY (%(groups)s::bigint[])
    """
)
# Whether the next entry is there: with it, there is something to claim whatever is proven.
NEXT_IS_THERE = LogStatement(
    sql="""
    SELECT EXISTS (SELECT FROM pgbus_stream_0 WHERE position = %(position)s::bigint)
    """
)

# --- claiming --------------------------------------------------------------------------------------------

# Whether somebody attaches a partition just now. A plan may not know a partition yet whose entries its snapshot would show:
# PostgreSQL makes a commit visible first, then tells other sessions of the new partition, and only then frees the lock on
# the log. So whoever is to pass a hole that was proven before looks here first, and plans afterwards.
IS_REPARTITIONED = LogStatement(
    sql="""
    SELECT EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'relation'
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND relation = 'pgbus_stream_0'::regclass
          AND granted
          AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
    )
    """
)
# One claim; the first statement of its transaction, so that the id it takes is younger than `head`, which an earlier
# statement has read. What is settled is what the worker knew before: after waiting for the lock the cursor is its newest
# version, but the log is that of the snapshot, so nothing that a peer has proven meanwhile may be used.
# `position - claimed > 0` is no condition that partitions are pruned by while the statement runs: PostgreSQL 18 prunes those
# that have entries, if the cursor was changed while the claim waited for it. By `low` and `upper` they are pruned before.
# `low` and `upper` keep the planner to one or two partitions; a cursor that stands elsewhere claims nothing, and the
# worker looks anew. An entry read is an entry leased: only up to `high` are they returned. The first row is the header.
CLAIM = LogStatement(
    sql="""
    WITH cursor AS MATERIALIZED (
        SELECT cursors.claimed, cursors.pending_head, cursors.pending_xid
        FROM pgbus_stream_cursors AS cursors
        WHERE cursors.group_id = %(group)s::bigint
          AND cursors.fence = %(fence)s::smallint
          AND cursors.epoch = %(system)s::text || '/' || pg_relation_filenode('pgbus_stream_0_position')
          AND cursors.claimed >= %(low)s::bigint
          AND cursors.claimed < %(upper)s::bigint
        ORDER BY cursors.group_id
        FOR NO KEY UPDATE
    ), freed AS (
        DELETE FROM pgbus_stream_leases
        WHERE token = %(done)s::uuid
          AND (SELECT count(*) FROM cursor) >= 0
        RETURNING token
    ), proof AS MATERIALIZED (
        SELECT cursor.claimed, %(settled)s::bigint AS settled,
               cursor.pending_xid IS NULL OR cursor.pending_xid <= pg_snapshot_xmin(pg_current_snapshot()) AS is_free
        FROM cursor
        WHERE NOT EXISTS (
            SELECT FROM pgbus_stream_groups AS groups
            WHERE groups.id = %(group)s::bigint AND groups.paused_at IS NOT NULL
        )
    ), visible AS MATERIALIZED (
        SELECT position, appended_at, payload
        FROM pgbus_stream_0
        WHERE position > %(low)s::bigint
          AND position <= %(upper)s::bigint
          AND position - (SELECT claimed FROM proof) > 0
        ORDER BY position
        LIMIT %(limit)s::int
    ), seen AS (
        SELECT count(*) AS entries, max(position) AS last FROM visible
    ), unbroken AS (
        SELECT CASE
                   WHEN seen.entries = 0 THEN proof.claimed
                   WHEN seen.entries = seen.last - proof.claimed THEN seen.last
                   ELSE (
                       SELECT coalesce(max(placed.position), (SELECT claimed FROM proof))
                       FROM (SELECT position, row_number() OVER (ORDER BY position) AS place FROM visible) AS placed
                       WHERE placed.position - placed.place = (SELECT claimed FROM proof)
                   )
               END AS last
        FROM proof, seen
    ), leap AS MATERIALIZED (
        SELECT proof.claimed AS low, proof.is_free, proof.settled,
               greatest(
                   unbroken.last,
                   least(
                       proof.settled,
                       CASE WHEN seen.entries = %(limit)s::int THEN seen.last ELSE %(upper)s::bigint END
                   )
               ) AS high
        FROM proof, seen, unbroken
    ), moved AS (
        UPDATE pgbus_stream_cursors AS cursors
        SET claimed = leap.high,
            settled_head = greatest(cursors.settled_head, leap.settled),
            pending_head = CASE
                               WHEN leap.is_free AND leap.high = leap.low THEN %(head)s::bigint
                               ELSE cursors.pending_head
                           END,
            pending_xid = CASE
                              WHEN leap.is_free AND leap.high = leap.low THEN pg_current_xact_id()
                              WHEN NOT leap.is_free THEN cursors.pending_xid
                          END
        FROM leap
        WHERE cursors.group_id = %(group)s::bigint
          AND (leap.high > leap.low OR (leap.is_free AND %(head)s::bigint > leap.high))
    ), leased AS (
        INSERT INTO pgbus_stream_leases (token, group_id, low, high, worker, until)
        SELECT %(token)s::uuid, %(group)s::bigint, leap.low, leap.high, %(worker)s::uuid,
               statement_timestamp() + %(lease)s::interval
        FROM leap
        WHERE EXISTS (SELECT FROM visible WHERE position <= leap.high)
        RETURNING id
    )
    SELECT 0::bigint AS position, 0::bigint AS appended_at,
           json_build_array(
               (SELECT low FROM leap), (SELECT high FROM leap), (SELECT id FROM leased), (SELECT count(*) FROM freed),
               coalesce(pg_sequence_last_value('pgbus_stream_0_position'), 0),
               pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
               CASE WHEN EXISTS (SELECT FROM cursor) THEN pg_current_xact_id()::text::bigint END
           )::text AS payload
    UNION ALL
    SELECT visible.position, (extract(epoch FROM visible.appended_at) * 1000000)::bigint, visible.payload::text
    FROM visible
    CROSS JOIN leap
    WHERE visible.position <= leap.high
    """,
    locks=("stream_cursors", "stream_leases"),
)

# --- ranges ------------------------------------------------------------------------------------------------

READ_RANGE = LogStatement(
    sql="""
    SELECT position, (extract(epoch FROM appended_at) * 1000000)::bigint, payload::text
    FROM pgbus_stream_0
    WHERE position > %(low)s::bigint
      AND position <= %(high)s::bigint
    ORDER BY position
    LIMIT %(limit)s::int
    """
)
# A claim whose answer was lost.
FIND_LEASE = Statement(
    sql="""
    SELECT id, low, high, reclaims FROM pgbus_stream_leases WHERE token = %(token)s::uuid
    """
)
# A range whose end was not answered. One that is locked is being ended by what was sent: if that fails, it lapses.
BEGIN_AGAIN = Statement(
    sql="""
    WITH mine AS MATERIALIZED (
        SELECT lease.id
        FROM pgbus_stream_leases AS lease
        WHERE lease.token = %(token)s::uuid
        ORDER BY lease.id
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE pgbus_stream_leases AS lease
    SET reclaims = lease.reclaims + 1
    FROM mine
    WHERE lease.id = mine.id
    RETURNING lease.id, lease.low, lease.high, lease.reclaims
    """,
    locks=("stream_leases",),
)
# Another worker's range, once its lease has lapsed; one at a time, the lowest first.
RECLAIM = Statement(
    sql="""
    WITH lapsed AS MATERIALIZED (
        SELECT lease.id
        FROM pgbus_stream_leases AS lease
        WHERE lease.group_id = %(group)s::bigint
          AND lease.until < statement_timestamp()
        ORDER BY lease.low
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
    UPDATE pgbus_stream_leases AS lease
    SET token = %(token)s::uuid,
        worker = %(worker)s::uuid,
        until = statement_timestamp() + %(lease)s::interval,
        claimed_at = statement_timestamp(),
        reclaims = lease.reclaims + 1
    FROM lapsed
    WHERE lease.id = lapsed.id
    RETURNING lease.id, lease.low, lease.high, lease.reclaims
    """,
    locks=("stream_leases",),
)
# Waits for nobody: a row that is locked is ending, or being taken.
RENEW = Statement(
    sql="""
    WITH mine AS MATERIALIZED (
        SELECT lease.id
        FROM pgbus_stream_leases AS lease
        WHERE lease.token = ANY (%(tokens)s::uuid[])
        ORDER BY lease.id
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE pgbus_stream_leases AS lease
    SET until = statement_timestamp() + %(lease)s::interval
    FROM mine
    WHERE lease.id = mine.id
    """,
    locks=("stream_leases",),
)
RENEW_EXCEPTIONS = Statement(
    sql="""
    WITH mine AS MATERIALIZED (
        SELECT exception.id
        FROM pgbus_stream_exceptions AS exception
        WHERE exception.id = ANY (%(ids)s::bigint[])
          AND exception.token = ANY (%(tokens)s::uuid[])
        ORDER BY exception.id
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE pgbus_stream_exceptions AS exception
    SET until = statement_timestamp() + %(lease)s::interval
    FROM mine
    WHERE exception.id = mine.id
    """,
    locks=("stream_exceptions",),
)
STILL_HELD = Statement(
    sql="""
    SELECT token FROM pgbus_stream_leases WHERE token = ANY (%(tokens)s::uuid[])
    UNION
    SELECT token FROM pgbus_stream_exceptions
    WHERE id = ANY (%(ids)s::bigint[]) AND token = ANY (%(tokens)s::uuid[])
    """
)
# The end of a range. Whoever finds no lease under its token has lost it, and enters nothing. What is not tried again brings
# a copy of its entry, and keeps nothing of the log.
COMMIT = Statement(
    sql="""
    WITH lease AS (
        DELETE FROM pgbus_stream_leases
        WHERE token = %(token)s::uuid
        RETURNING id, group_id
    ), keys AS (
        DELETE FROM pgbus_stream_keys
        WHERE lease_id IN (SELECT id FROM lease)
    ), failed AS (
        INSERT INTO pgbus_stream_exceptions
            (group_id, position, attempts, due_at, key, exception, traceback, failed_at, status, payload, appended_at)
        SELECT lease.group_id, failure.position, failure.attempts,
               statement_timestamp() + failure.delay * interval '1 second',
               failure.key, failure.exception, failure.traceback,
               CASE WHEN failure.attempts > 0 THEN statement_timestamp() END,
               CASE WHEN failure.payload IS NULL THEN 'ready' ELSE 'dead' END,
               failure.payload::json, to_timestamp(failure.appended_at / 1000000.0)
        FROM lease
        CROSS JOIN unnest(%(positions)s::bigint[], %(attempts)s::int[], %(delays)s::float8[], %(keys)s::text[],
                          %(exceptions)s::text[], %(tracebacks)s::text[], %(payloads)s::text[], %(appended_at)s::bigint[])
             AS failure (position, attempts, delay, key, exception, traceback, payload, appended_at)
    )
    SELECT group_id FROM lease
    """,
    locks=("stream_leases", "stream_keys"),
)
# What is left of a range, for anybody to go on with at once: it did not fail, so it counts as claimed once less. Nobody has
# its new token, so one that is sent again, without an answer to the first, enters nothing twice.
HAND_BACK = Statement(
    sql="""
    WITH lease AS (
        UPDATE pgbus_stream_leases
        SET low = greatest(low, %(low)s::bigint),
            token = gen_random_uuid(),
            until = statement_timestamp() - interval '1 second',
            reclaims = greatest(reclaims - 1, -1)
        WHERE token = %(token)s::uuid
        RETURNING id, group_id
    ), failed AS (
        INSERT INTO pgbus_stream_exceptions
            (group_id, position, attempts, due_at, key, exception, traceback, failed_at, status, payload, appended_at)
        SELECT lease.group_id, failure.position, failure.attempts,
               statement_timestamp() + failure.delay * interval '1 second',
               failure.key, failure.exception, failure.traceback,
               CASE WHEN failure.attempts > 0 THEN statement_timestamp() END,
               CASE WHEN failure.payload IS NULL THEN 'ready' ELSE 'dead' END,
               failure.payload::json, to_timestamp(failure.appended_at / 1000000.0)
        FROM lease
        CROSS JOIN unnest(%(positions)s::bigint[], %(attempts)s::int[], %(delays)s::float8[], %(keys)s::text[],
                          %(exceptions)s::text[], %(tracebacks)s::text[], %(payloads)s::text[], %(appended_at)s::bigint[])
             AS failure (position, attempts, delay, key, exception, traceback, payload, appended_at)
    )
    SELECT group_id FROM lease
    """,
    locks=("stream_leases",),
)
# A range that has ended its workers before: each of its entries is tried alone from now on.
TAKE_APART = Statement(
    sql="""
    WITH lease AS (
        DELETE FROM pgbus_stream_leases
        WHERE token = %(token)s::uuid
        RETURNING id, group_id, low, high
    ), keys AS (
        DELETE FROM pgbus_stream_keys
        WHERE lease_id IN (SELECT id FROM lease)
    )
    INSERT INTO pgbus_stream_exceptions (group_id, position, key, exception)
    SELECT lease.group_id, apart.position, apart.key, %(reason)s::text
    FROM lease
    JOIN unnest(%(positions)s::bigint[], %(keys)s::text[]) AS apart (position, key)
        ON apart.position > lease.low AND apart.position <= lease.high
    """,
    locks=("stream_leases", "stream_keys"),
)
# The ranges of a worker that is gone: nobody has to wait for their leases. `stopped`: it was asked to end.
LAPSE = Statement(
    sql="""
    WITH held AS MATERIALIZED (
        SELECT lease.id
        FROM pgbus_stream_leases AS lease
        WHERE lease.worker = %(worker)s::uuid
          AND lease.until >= statement_timestamp()
        ORDER BY lease.id
        FOR UPDATE SKIP LOCKED
    )
    UPDATE pgbus_stream_leases AS lease
    SET until = statement_timestamp() - interval '1 second',
        reclaims = greatest(lease.reclaims - %(stopped)s::boolean::int, -1)
    FROM held
    WHERE lease.id = held.id
    """,
    locks=("stream_leases",),
)

# --- keys --------------------------------------------------------------------------------------------------

HOLD_KEYS = Statement(
    sql="""
    INSERT INTO pgbus_stream_keys (lease_id, group_id, key)
    SELECT %(lease)s::bigint, %(group)s::bigint, held.key
    FROM unnest(%(keys)s::text[]) AS held (key)
    """
)
# Which of these keys somebody is ahead with: an open range below, or an entry below that is not done with.
BLOCKED_KEYS = Statement(
    sql="""
    SELECT DISTINCT wanted.key,
           EXISTS (
               SELECT FROM pgbus_stream_exceptions AS exception
               WHERE exception.group_id = %(group)s::bigint
                 AND exception.key = wanted.key
                 AND exception.position <= %(low)s::bigint
                 AND exception.status IN ('ready', 'running')
           ) AS by_exception
    FROM unnest(%(keys)s::text[]) AS wanted (key)
    WHERE EXISTS (
              SELECT FROM pgbus_stream_exceptions AS exception
              WHERE exception.group_id = %(group)s::bigint
                AND exception.key = wanted.key
                AND exception.position <= %(low)s::bigint
                AND exception.status IN ('ready', 'running')
          )
       OR EXISTS (
              SELECT FROM pgbus_stream_keys AS held
              JOIN pgbus_stream_leases AS lease ON lease.id = held.lease_id
              WHERE held.group_id = %(group)s::bigint
                AND held.key = wanted.key
                AND lease.low < %(low)s::bigint
          )
    """
)

# --- entries on their own ----------------------------------------------------------------------------------

# The first of its key only, and only if no open range below has its key.
CLAIM_EXCEPTIONS = Statement(
    sql="""
    WITH due AS MATERIALIZED (
        SELECT exception.id
        FROM pgbus_stream_exceptions AS exception
        WHERE exception.group_id = %(group)s::bigint
          AND (
              (exception.status = 'ready' AND exception.due_at <= statement_timestamp())
              OR (exception.status = 'running' AND exception.until < statement_timestamp())
          )
          AND (
              exception.key IS NULL
              OR NOT EXISTS (
                     SELECT FROM pgbus_stream_exceptions AS earlier
                     WHERE earlier.group_id = exception.group_id
                       AND earlier.key = exception.key
                       AND earlier.position < exception.position
                       AND earlier.status IN ('ready', 'running')
                 )
                 AND NOT EXISTS (
                     SELECT FROM pgbus_stream_keys AS held
                     JOIN pgbus_stream_leases AS lease ON lease.id = held.lease_id
                     WHERE held.group_id = exception.group_id
                       AND held.key = exception.key
                       AND lease.low < exception.position
                 )
          )
        ORDER BY exception.position
        LIMIT %(limit)s::int
        FOR UPDATE OF exception SKIP LOCKED
    )
    UPDATE pgbus_stream_exceptions AS exception
    SET status = 'running',
        token = %(token)s::uuid,
        until = statement_timestamp() + %(lease)s::interval
    FROM due
    WHERE exception.id = due.id
    RETURNING exception.id, exception.position, exception.attempts, exception.key
    """,
    locks=("stream_exceptions",),
)
READ_EXCEPTION = LogStatement(
    sql="""
    SELECT exception.position,
           (extract(epoch FROM coalesce(exception.appended_at, entry.appended_at)) * 1000000)::bigint,
           coalesce(exception.payload, entry.payload)::text
    FROM pgbus_stream_exceptions AS exception
    LEFT JOIN pgbus_stream_0 AS entry ON entry.position = %(position)s::bigint
    WHERE exception.id = %(id)s::bigint
    """
)
EXCEPTION_BEGINS = Statement(
    sql="""
    UPDATE pgbus_stream_exceptions
    SET attempts = attempts + 1
    WHERE id = %(id)s::bigint
      AND token = %(token)s::uuid
    """,
    locks=("stream_exceptions",),
)
EXCEPTION_DONE = Statement(
    sql="""
    DELETE FROM pgbus_stream_exceptions
    WHERE id = %(id)s::bigint
      AND token = %(token)s::uuid
    """,
    locks=("stream_exceptions",),
)
EXCEPTION_FAILED = Statement(
    sql="""
    UPDATE pgbus_stream_exceptions
    SET status = 'ready',
        token = NULL,
        until = NULL,
        due_at = statement_timestamp() + %(delay)s::float8 * interval '1 second',
        exception = CASE WHEN %(uncounted)s::boolean THEN exception ELSE %(exception)s::text END,
        traceback = CASE WHEN %(uncounted)s::boolean THEN traceback ELSE %(traceback)s::text END,
        failed_at = CASE WHEN %(uncounted)s::boolean THEN failed_at ELSE statement_timestamp() END
    WHERE id = %(id)s::bigint
      AND token = %(token)s::uuid
    """,
    locks=("stream_exceptions",),
)
# It keeps nothing of the log any more, so it carries a copy of its entry.
EXCEPTION_DIED = Statement(
    sql="""
    UPDATE pgbus_stream_exceptions AS exception
    SET status = 'dead',
        token = NULL,
        until = NULL,
        exception = %(exception)s::text,
        traceback = %(traceback)s::text,
        failed_at = statement_timestamp(),
        payload = coalesce(exception.payload, %(payload)s::json),
        appended_at = coalesce(exception.appended_at, to_timestamp(%(appended_at)s::bigint / 1000000.0))
    WHERE exception.id = %(id)s::bigint
      AND exception.token = %(token)s::uuid
    """,
    locks=("stream_exceptions",),
)
REDRIVE = Statement(
    sql="""
    WITH dead AS MATERIALIZED (
        SELECT exception.id
        FROM pgbus_stream_exceptions AS exception
        WHERE exception.id = ANY (%(ids)s::bigint[])
          AND exception.status = 'dead'
        ORDER BY exception.id
        FOR UPDATE SKIP LOCKED
    )
    UPDATE pgbus_stream_exceptions AS exception
    SET status = 'ready',
        attempts = 0,
        due_at = statement_timestamp()
    FROM dead
    WHERE exception.id = dead.id
    RETURNING exception.group_id
    """,
    locks=("stream_exceptions",),
)
# One that runs is left to its run.
DISCARD = Statement(
    sql="""
    WITH chosen AS MATERIALIZED (
        SELECT exception.id
        FROM pgbus_stream_exceptions AS exception
        WHERE exception.id = ANY (%(ids)s::bigint[])
          AND exception.status <> 'running'
        ORDER BY exception.id
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM pgbus_stream_exceptions AS exception
    USING chosen
    WHERE exception.id = chosen.id
    RETURNING exception.group_id
    """,
    locks=("stream_exceptions",),
)
PURGE_DEAD = Statement(
    sql="""
    WITH old AS MATERIALIZED (
        SELECT exception.id
        FROM pgbus_stream_exceptions AS exception
        WHERE exception.status = 'dead'
          AND exception.failed_at < statement_timestamp() - %(age)s::interval
        ORDER BY exception.id
        LIMIT %(limit)s::int
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM pgbus_stream_exceptions AS exception
    USING old
    WHERE exception.id = old.id
    """,
    locks=("stream_exceptions",),
)

# --- groups ------------------------------------------------------------------------------------------------

GROUPS = Statement(
    sql="""
    SELECT groups.id, streams.id AS stream_id, streams.name AS stream, groups.name, streams.partition_size
    FROM pgbus_stream_groups AS groups
    JOIN pgbus_streams AS streams ON streams.id = groups.stream_id
    WHERE (streams.name, groups.name) IN (
        SELECT wanted.stream, wanted.name
        FROM unnest(%(streams)s::text[], %(names)s::text[]) AS wanted (stream, name)
    )
    """
)
DECLARE_GROUP = Statement(
    sql="""
    INSERT INTO pgbus_stream_groups AS groups (stream_id, name, handler, keyed, routes)
    VALUES (%(stream)s::bigint, %(name)s::text, %(handler)s::text, %(keyed)s::boolean, %(routes)s::boolean)
    ON CONFLICT (stream_id, name) DO UPDATE
    SET handler = excluded.handler,
        keyed = excluded.keyed,
        routes = excluded.routes,
        declared_at = statement_timestamp()
    RETURNING groups.id, (SELECT count(*) = 0 FROM pgbus_stream_cursors AS cursors WHERE cursors.group_id = groups.id)
        AS is_new
    """,
    locks=("stream_groups",),
)
ADD_CURSOR = Statement(
    sql="""
    INSERT INTO pgbus_stream_cursors (group_id, claimed, committed, fence, epoch)
    SELECT %(group)s::bigint, %(start)s::bigint, %(start)s::bigint, %(fence)s::smallint,
           (SELECT system_identifier::text FROM pg_control_system()) || '/'
               || pg_relation_filenode(to_regclass('pgbus_stream_' || %(stream)s::bigint || '_position'))
    ON CONFLICT (group_id) DO NOTHING
    """
)
# The last before the first that was appended at this time or later: what is missing between the two may still appear.
# Once for a new group, however long it reads.
LAST_BEFORE = LogStatement(
    sql="""
    SELECT max(position)
    FROM pgbus_stream_0
    WHERE position < coalesce(
        (SELECT min(position) FROM pgbus_stream_0 WHERE appended_at >= %(since)s::timestamptz),
        9223372036854775807
    )
    """
)
LOCK_CURSOR = Statement(
    sql="""
    SELECT cursors.claimed, cursors.committed, cursors.rewinds
    FROM pgbus_stream_cursors AS cursors
    WHERE cursors.group_id = %(group)s::bigint
    ORDER BY cursors.group_id
    FOR NO KEY UPDATE
    """,
    locks=("stream_cursors",),
)
# Everything of a group that is above `position` begins anew. In the order of the locks: leases, keys, exceptions.
# What is leased below is not done yet: such a range goes on, and of one that lies on both sides the part below is
# anybody's, under a token that nobody has.
DROP_LEASES = Statement(
    sql="""
    WITH above AS MATERIALIZED (
        SELECT lease.id, lease.low
        FROM pgbus_stream_leases AS lease
        WHERE lease.group_id = %(group)s::bigint
          AND lease.high > %(position)s::bigint
        ORDER BY lease.id
        FOR UPDATE
    ), cut AS (
        UPDATE pgbus_stream_leases AS lease
        SET high = %(position)s::bigint,
            token = gen_random_uuid(),
            until = statement_timestamp() - interval '1 second',
            reclaims = greatest(lease.reclaims - 1, -1)
        FROM above
        WHERE lease.id = above.id
          AND above.low < %(position)s::bigint
    )
    DELETE FROM pgbus_stream_leases AS lease
    USING above
    WHERE lease.id = above.id
      AND above.low >= %(position)s::bigint
    """,
    locks=("stream_leases",),
)
DROP_KEYS = Statement(
    sql="""
    DELETE FROM pgbus_stream_keys AS held
    WHERE held.group_id = %(group)s::bigint
      AND NOT EXISTS (SELECT FROM pgbus_stream_leases AS lease WHERE lease.id = held.lease_id)
    """,
    locks=("stream_keys",),
)
DROP_EXCEPTIONS = Statement(
    sql="""
    WITH above AS MATERIALIZED (
        SELECT exception.id
        FROM pgbus_stream_exceptions AS exception
        WHERE exception.group_id = %(group)s::bigint
          AND exception.position > %(position)s::bigint
        ORDER BY exception.id
        FOR UPDATE
    )
    DELETE FROM pgbus_stream_exceptions AS exception
    USING above
    WHERE exception.id = above.id
    """,
    locks=("stream_exceptions",),
)
REWIND = Statement(
    sql="""
    UPDATE pgbus_stream_cursors
    SET claimed = %(position)s::bigint,
        committed = least(committed, %(position)s::bigint),
        rewinds = rewinds + 1
    WHERE group_id = %(group)s::bigint
    """,
    locks=("stream_cursors",),
)
SET_PAUSED = Statement(
    sql="""
    UPDATE pgbus_stream_groups AS groups
    SET paused_at = CASE WHEN %(paused)s::boolean THEN statement_timestamp() END
    FROM pgbus_streams AS streams
    WHERE streams.id = groups.stream_id
      AND streams.name = %(stream)s::text
      AND groups.name = %(name)s::text
      AND (groups.paused_at IS NOT NULL) <> %(paused)s::boolean
    """,
    locks=("stream_groups",),
)
# Two statements on purpose. One alone would wait for a claim at the cursor, and then see the new `claimed` beside
# the old leases: it would pass the lease that this claim has made.
COMPUTE_COMMITTED = Statement(
    sql="""
    SELECT cursors.group_id, cursors.rewinds, cursors.committed, rolled.committed AS may_be
    FROM pgbus_stream_cursors AS cursors
    JOIN pgbus_stream_groups AS groups ON groups.id = cursors.group_id
    CROSS JOIN LATERAL (
        SELECT least(
            cursors.claimed,
            (SELECT min(lease.low) FROM pgbus_stream_leases AS lease WHERE lease.group_id = cursors.group_id),
            (
                SELECT min(exception.position) - 1
                FROM pgbus_stream_exceptions AS exception
                WHERE exception.group_id = cursors.group_id
                  AND exception.status IN ('ready', 'running')
                  AND exception.payload IS NULL
            )
        ) AS committed
    ) AS rolled
    WHERE rolled.committed > cursors.committed
      AND (%(groups)s::bigint[] IS NULL OR cursors.group_id = ANY (%(groups)s::bigint[]))
    ORDER BY cursors.group_id
    LIMIT %(limit)s::int
    """
)
RAISE_COMMITTED = Statement(
    sql="""
    WITH known AS MATERIALIZED (
        SELECT cursors.group_id, computed.committed
        FROM pgbus_stream_cursors AS cursors
        JOIN unnest(%(groups)s::bigint[], %(rewinds)s::int[], %(committed)s::bigint[])
             AS computed (group_id, rewinds, committed)
            ON computed.group_id = cursors.group_id AND computed.rewinds = cursors.rewinds
        ORDER BY cursors.group_id
        FOR NO KEY UPDATE OF cursors SKIP LOCKED
    )
    UPDATE pgbus_stream_cursors AS cursors
    SET committed = greatest(cursors.committed, known.committed)
    FROM known
    WHERE cursors.group_id = known.group_id
    """,
    locks=("stream_cursors",),
)
# Adopts the log as it is now: what was proven or seen of another one is discarded, `claimed` and `committed` stay.
REPAIR = Statement(
    sql="""
    UPDATE pgbus_stream_cursors AS cursors
    SET fence = %(fence)s::smallint,
        epoch = (SELECT system_identifier::text FROM pg_control_system()) || '/'
                || pg_relation_filenode(to_regclass('pgbus_stream_' || groups.stream_id || '_position')),
        settled_head = 0,
        pending_head = 0,
        pending_xid = NULL
    FROM pgbus_stream_groups AS groups
    WHERE groups.id = cursors.group_id
      AND groups.id = %(group)s::bigint
    RETURNING cursors.claimed, cursors.committed
    """,
    locks=("stream_cursors",),
)

# --- routing -----------------------------------------------------------------------------------------------

LOCK_TO_ROUTE = LogStatement(
    sql="""
    SELECT cursors.claimed, cursors.pending_head, cursors.pending_xid::text::bigint AS pending_xid
    FROM pgbus_stream_cursors AS cursors
    WHERE cursors.group_id = %(group)s::bigint
      AND cursors.fence = %(fence)s::smallint
      AND cursors.epoch = %(system)s::text || '/' || pg_relation_filenode('pgbus_stream_0_position')
      AND NOT EXISTS (
          SELECT FROM pgbus_stream_groups AS groups
          WHERE groups.id = %(group)s::bigint AND groups.paused_at IS NOT NULL
      )
    ORDER BY cursors.group_id
    FOR NO KEY UPDATE OF cursors
    """,
    locks=("stream_cursors",),
)
# The cursor is locked by an earlier statement of the same transaction, so this one sees what whoever held it before has
# routed. Everything visible above the mark that has not been routed; the first row is the header.
UNROUTED = LogStatement(
    sql="""
    WITH visible AS MATERIALIZED (
        SELECT entry.position, entry.appended_at, entry.payload
        FROM pgbus_stream_0 AS entry
        WHERE entry.position > %(low)s::bigint
          AND entry.position <= %(upper)s::bigint
        ORDER BY entry.position
        LIMIT %(limit)s::int
    )
    SELECT 0::bigint AS position, 0::bigint AS appended_at,
           json_build_array(
               coalesce(pg_sequence_last_value('pgbus_stream_0_position'), 0),
               pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
               pg_current_xact_id()::text::bigint
           )::text AS payload,
           false AS is_routed
    UNION ALL
    SELECT visible.position, (extract(epoch FROM visible.appended_at) * 1000000)::bigint,
           CASE WHEN routed.position IS NULL THEN visible.payload::text END,
           routed.position IS NOT NULL
    FROM visible
    LEFT JOIN pgbus_stream_routed AS routed
        ON routed.group_id = %(group)s::bigint AND routed.position = visible.position
    """
)
ROUTE = Statement(
    sql="""
    INSERT INTO pgbus_messages (queue, task, payload, topic)
    SELECT entry.queue, %(task)s::text, entry.payload::json, %(topic)s::text
    FROM unnest(%(queues)s::text[], %(payloads)s::text[]) WITH ORDINALITY AS entry (queue, payload, nth)
    ORDER BY entry.nth
    RETURNING queue, priority, position
    """
)
NOTE_ROUTED = Statement(
    sql="""
    INSERT INTO pgbus_stream_routed (group_id, position)
    SELECT %(group)s::bigint, routed.position
    FROM unnest(%(positions)s::bigint[]) AS routed (position)
    """
)
# A group that had claimed ranges before its code said to route is done with them when they are routed as well.
MOVE_MARK = Statement(
    sql="""
    UPDATE pgbus_stream_cursors
    SET claimed = %(mark)s::bigint,
        committed = CASE
                        WHEN EXISTS (SELECT FROM pgbus_stream_leases AS lease WHERE lease.group_id = %(group)s::bigint)
                            OR EXISTS (
                                SELECT FROM pgbus_stream_exceptions AS exception
                                WHERE exception.group_id = %(group)s::bigint AND exception.status IN ('ready', 'running')
                            )
                            THEN committed
                        ELSE %(mark)s::bigint
                    END,
        settled_head = greatest(settled_head, %(settled)s::bigint),
        pending_head = %(pending_head)s::bigint,
        pending_xid = %(pending_xid)s::text::xid8
    WHERE group_id = %(group)s::bigint
    """,
    locks=("stream_cursors",),
)
FORGET_ROUTED = Statement(
    sql="""
    DELETE FROM pgbus_stream_routed
    WHERE group_id = %(group)s::bigint
      AND position <= %(mark)s::bigint
    """,
    locks=("stream_routed",),
)
DROP_ROUTED = Statement(
    sql="""
    DELETE FROM pgbus_stream_routed
    WHERE group_id = %(group)s::bigint
      AND position > %(position)s::bigint
    """,
    locks=("stream_routed",),
)
