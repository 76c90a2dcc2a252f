"""
The statements of the line, the delayed, the archive and the dead letters, with the rows each locks.

Who waits for whom: claims, movers, looks and beats skip what is locked and wait for nobody. Settling waits for a
beat or a claim on the same row, each one short statement. Nothing here waits for a caller's transaction, but for
the person who discards a job in one.
"""

from django_pgbus.postgres import Statement

# Where a row is a job, its time comes as microseconds (postgres/moments.py).
# --- into the line ------------------------------------------------------------------------------------

SEND = Statement(
    sql="""
    INSERT INTO pgbus_messages (queue, priority, task, backend, payload)
    VALUES (%(queue)s::text, %(priority)s::smallint, %(task)s::text, %(backend)s::text, %(payload)s::json)
    RETURNING id, position, (extract(epoch FROM enqueued_at) * 1000000)::bigint AS enqueued_at
    """
)

# The sequence gives ids in the order of the rows, which is the order of the payloads.
SEND_MANY = Statement(
    sql="""
    INSERT INTO pgbus_messages (queue, priority, task, backend, payload, batch_id)
    SELECT %(queue)s::text, %(priority)s::smallint, %(task)s::text, %(backend)s::text, sent.payload::json,
           %(batch)s::bigint
    FROM unnest(%(payloads)s::text[]) WITH ORDINALITY AS sent (payload, ordinal)
    ORDER BY sent.ordinal
    RETURNING id, position, (extract(epoch FROM enqueued_at) * 1000000)::bigint AS enqueued_at
    """
)

# What is due already goes into the line at once; `due_in` counts from the database's clock.
SEND_LATER = Statement(
    sql="""
    WITH sent AS (
        SELECT nextval('pgbus_task_id') AS id,
               coalesce(%(due_at)s::timestamptz, statement_timestamp() + %(due_in)s::interval) AS due_at,
               sent.payload,
               sent.ordinal
        FROM unnest(%(payloads)s::text[]) WITH ORDINALITY AS sent (payload, ordinal)
        ORDER BY sent.ordinal
    ), ready AS (
        INSERT INTO pgbus_messages (id, queue, priority, task, backend, payload, batch_id)
        SELECT id, %(queue)s::text, %(priority)s::smallint, %(task)s::text, %(backend)s::text, payload::json,
               %(batch)s::bigint
        FROM sent
        WHERE due_at <= statement_timestamp()
        ORDER BY ordinal
        RETURNING id, position
    ), later AS (
        INSERT INTO pgbus_delayed (id, queue, priority, task, backend, payload, batch_id, due_at, reason)
        SELECT id, %(queue)s::text, %(priority)s::smallint, %(task)s::text, %(backend)s::text, payload::json,
               %(batch)s::bigint, due_at, 'scheduled'
        FROM sent
        WHERE due_at > statement_timestamp()
        ORDER BY ordinal
    )
    SELECT sent.id,
           ready.position,
           statement_timestamp() AS enqueued_at,
           extract(epoch FROM sent.due_at - statement_timestamp())::float8 AS due_in
    FROM sent
    LEFT JOIN ready ON ready.id = sent.id
    ORDER BY sent.id
    """
)

MOVE_DUE = Statement(
    sql="""
    WITH due AS (
        DELETE FROM pgbus_delayed AS delayed
        WHERE delayed.id = ANY (ARRAY(
            SELECT candidate.id
            FROM unnest(%(queues)s::text[]) AS mine (queue)
            CROSS JOIN LATERAL (
                SELECT waiting.id
                FROM pgbus_delayed AS waiting
                WHERE waiting.queue = mine.queue
                  AND waiting.due_at <= statement_timestamp()
                ORDER BY waiting.due_at
                LIMIT %(limit)s::int
                FOR UPDATE SKIP LOCKED
            ) AS candidate
            -- No ORDER BY: it would sort above the locks, and lock more than it returns.
            LIMIT %(limit)s::int
        ))
        RETURNING delayed.id, delayed.queue, delayed.priority, delayed.task, delayed.backend, delayed.payload,
                  delayed.delivery, delayed.attempts, delayed.errors,
                  delayed.constraints, delayed.batch_id, delayed.event_id, delayed.topic, delayed.enqueued_at,
                  delayed.due_at
    )
    INSERT INTO pgbus_messages (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                                constraints, batch_id, event_id, topic, enqueued_at)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at
    FROM due
    ORDER BY due_at, id
    RETURNING queue, priority, position
    """,
    locks=("delayed",),
)

# The same for jobs that a person names, due or not; one that a mover has locked has gone when it lets go.
RUN_NOW = Statement(
    sql="""
    WITH mine AS (
        SELECT delayed.id
        FROM pgbus_delayed AS delayed
        WHERE delayed.id = ANY (%(ids)s::bigint[])
        ORDER BY delayed.id
        FOR UPDATE OF delayed
    ), gone AS (
        DELETE FROM pgbus_delayed AS delayed
        USING mine
        WHERE delayed.id = mine.id
        RETURNING delayed.id, delayed.queue, delayed.priority, delayed.task, delayed.backend, delayed.payload,
                  delayed.delivery, delayed.attempts, delayed.errors,
                  delayed.constraints, delayed.batch_id, delayed.event_id, delayed.topic, delayed.enqueued_at,
                  delayed.due_at
    )
    INSERT INTO pgbus_messages (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                                constraints, batch_id, event_id, topic, enqueued_at)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at
    FROM gone
    ORDER BY due_at, id
    RETURNING id, queue, priority, suspect, position
    """,
    locks=("delayed",),
)

# --- from the line to a worker ------------------------------------------------------------------------

# Locks exactly what it returns: nothing above the inner LIMIT sorts, and the outer LIMIT stops the inner one.
# A suspect starts as soon as it is claimed, so it is marked as started here (semantics 2.4).
CLAIM = Statement(
    sql="""
    UPDATE pgbus_messages AS message
    SET leased_until = statement_timestamp() + %(lease)s::interval,
        delivery = message.delivery + 1,
        attempts = message.attempts + 1,
        started = message.suspect,
        claimed_at = statement_timestamp(),
        worker = %(worker)s::uuid
    WHERE message.ctid = ANY (ARRAY(
        SELECT free.ctid
        FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(suspects)s::boolean[], %(floors)s::bigint[])
             AS level (queue, priority, suspect, floor)
        CROSS JOIN LATERAL (
            SELECT candidate.ctid
            FROM pgbus_messages AS candidate
            WHERE candidate.queue = level.queue
              AND candidate.priority = level.priority
              AND candidate.suspect = level.suspect
              AND candidate.position > level.floor
              AND candidate.leased_until IS NULL
            ORDER BY candidate.position
            LIMIT %(limit)s::int
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS free
        LIMIT %(limit)s::int
    ))
    RETURNING message.position, message.id, message.queue, message.priority, message.suspect, message.delivery,
              message.attempts, message.task, message.backend, message.payload::text, message.errors::text,
              (extract(epoch FROM message.enqueued_at) * 1000000)::bigint AS enqueued_at,
              message.constraints::text, message.batch_id, message.event_id, message.topic,
              extract(epoch FROM statement_timestamp() - message.ready_at)::float8 AS waited
    """,
    locks=("messages",),
)

# Once a second per process, in one statement: where to look, what is paused, when the next delayed task is due,
# and the full look over what stands between base and floor (all levels with their floor, empty when not due).
# The snapshot row carries what moves the base: this snapshot's xmin, and a transaction id taken after the snapshot
# when the floors have moved since the last mark (an idle worker takes none).
POLL = Statement(
    sql="""
    SELECT 'snapshot' AS kind,
           NULL::text AS queue,
           NULL::smallint AS priority,
           NULL::boolean AS suspect,
           pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS id,
           CASE WHEN %(mark)s::boolean THEN pg_current_xact_id()::text::bigint END AS position,
           -- A sequence that was never used says 1, which it has not given yet.
           (SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM pgbus_position)::float8 AS number
    UNION ALL
    SELECT 'level', level.queue, level.priority, level.suspect, NULL, NULL,
           CASE WHEN state.paused_at IS NULL THEN 0 ELSE 1 END
    FROM (
        SELECT queue, priority, suspect
        FROM pgbus_levels
        ORDER BY queue, priority DESC, suspect
        LIMIT 10000
    ) AS level
    LEFT JOIN pgbus_queue_states AS state ON state.queue = level.queue
    UNION ALL
    SELECT 'paused', stopped.queue, NULL, NULL, NULL, NULL, NULL
    FROM (
        SELECT queue
        FROM pgbus_queue_states
        WHERE paused_at IS NOT NULL
        ORDER BY queue
        LIMIT 10000
    ) AS stopped
    UNION ALL
    SELECT 'due', mine.queue, NULL, NULL, NULL, NULL,
           extract(epoch FROM soonest.due_at - statement_timestamp())::float8
    FROM unnest(%(queues)s::text[]) AS mine (queue)
    CROSS JOIN LATERAL (
        SELECT waiting.due_at
        FROM pgbus_delayed AS waiting
        WHERE waiting.queue = mine.queue
        ORDER BY waiting.due_at
        LIMIT 1
    ) AS soonest
    UNION ALL
    SELECT 'due', mine.queue, NULL, NULL, NULL, NULL,
           extract(epoch FROM soonest.due_at - statement_timestamp())::float8
    FROM unnest(%(queues)s::text[]) AS mine (queue)
    CROSS JOIN LATERAL (
        SELECT parked.due_at
        FROM pgbus_blocked_executions AS parked
        WHERE parked.queue = mine.queue
          AND parked.due_at IS NOT NULL
        ORDER BY parked.due_at
        LIMIT 1
    ) AS soonest
    UNION ALL
    SELECT 'below', level.queue, level.priority, level.suspect, live.id, live.position,
           CASE
               WHEN live.leased_until IS NULL THEN 0
               WHEN live.leased_until < statement_timestamp()
                    AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval THEN 2
               ELSE 1
           END
    FROM unnest(%(level_queues)s::text[], %(priorities)s::smallint[], %(suspects)s::boolean[],
                %(bases)s::bigint[], %(floors)s::bigint[])
         AS level (queue, priority, suspect, base, floor)
    CROSS JOIN LATERAL (
        SELECT message.id, message.position, message.leased_until
        FROM pgbus_messages AS message
        WHERE message.queue = level.queue
          AND message.priority = level.priority
          AND message.suspect = level.suspect
          AND message.position > level.base
          AND message.position <= level.floor
        ORDER BY message.position
        LIMIT 5000
    ) AS live
    UNION ALL
    SELECT 'above', level.queue, level.priority, level.suspect, live.id, live.position,
           CASE WHEN live.leased_until IS NULL THEN 0 WHEN live.lapsed THEN 2 ELSE 1 END
    FROM unnest(%(level_queues)s::text[], %(priorities)s::smallint[], %(suspects)s::boolean[],
                %(bases)s::bigint[], %(floors)s::bigint[])
         AS level (queue, priority, suspect, base, floor)
    CROSS JOIN LATERAL (
        SELECT scanned.id, scanned.position, scanned.leased_until, scanned.lapsed
        FROM (
            SELECT message.id, message.position, message.leased_until, message.place,
                   message.leased_until < statement_timestamp()
                       AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval AS lapsed,
                   row_number() OVER (PARTITION BY message.leased_until IS NULL ORDER BY message.position) AS nth
            FROM (
                SELECT line.id, line.position, line.leased_until,
                       row_number() OVER (ORDER BY line.position) AS place
                FROM pgbus_messages AS line
                WHERE line.queue = level.queue
                  AND line.priority = level.priority
                  AND line.suspect = level.suspect
                  AND line.position > level.floor
                ORDER BY line.position
                LIMIT 1000
            ) AS message
        ) AS scanned
        -- The first that is free, those that lapsed, and the last one read: behind it nothing is known.
        WHERE (scanned.leased_until IS NULL AND scanned.nth = 1)
           OR scanned.lapsed
           OR scanned.place = 1000
    ) AS live
    UNION ALL
    SELECT 'held', message.queue, message.priority, message.suspect, message.id, message.position,
           CASE
               WHEN message.leased_until IS NULL THEN 0
               WHEN message.leased_until < statement_timestamp()
                    AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval THEN 2
               ELSE 1
           END
    FROM pgbus_messages AS message
    WHERE message.id = ANY (%(held)s::bigint[])
    """
)

# --- while it runs ------------------------------------------------------------------------------------

# One statement per process and beat. A lapsed lease is never renewed, but for the time after a restart of
# PostgreSQL in which no lease counts as lapsed.
RENEW = Statement(
    sql="""
    WITH mine AS (
        SELECT message.id, held.started
        FROM unnest(%(ids)s::bigint[], %(deliveries)s::int[], %(started)s::boolean[]) AS held (id, delivery, started)
        JOIN pgbus_messages AS message ON message.id = held.id
        WHERE message.delivery = held.delivery
          AND (message.leased_until > statement_timestamp()
               OR (message.leased_until IS NOT NULL
                   AND statement_timestamp() < pg_postmaster_start_time() + %(lease)s::interval))
        FOR NO KEY UPDATE OF message SKIP LOCKED
    )
    UPDATE pgbus_messages AS message
    SET leased_until = statement_timestamp() + %(lease)s::interval,
        started = message.started OR mine.started
    FROM mine
    WHERE message.id = mine.id
    RETURNING message.id, message.discard_requested
    """,
    locks=("messages",),
)

LEASES = Statement(
    sql="""
    SELECT message.id, message.delivery, message.leased_until IS NOT NULL AS leased
    FROM pgbus_messages AS message
    WHERE message.id = ANY (%(ids)s::bigint[])
    """
)

# Which of these deliveries are still leased under their number. With `patience` nothing in this transaction waits longer
# for a lock: it is set before the first row comes out, and with it before the first is locked.
LOCK_LEASED = Statement(
    sql="""
    WITH patience AS MATERIALIZED (
        SELECT set_config('lock_timeout', coalesce(%(patience)s::text, current_setting('lock_timeout')), true)
    )
    SELECT message.id
    FROM patience
    CROSS JOIN pgbus_messages AS message
    JOIN unnest(%(ids)s::bigint[], %(deliveries)s::int[]) AS held (id, delivery) ON held.id = message.id
    WHERE message.id = ANY (%(ids)s::bigint[])
      AND message.delivery = held.delivery
      AND message.leased_until IS NOT NULL
    ORDER BY message.id
    FOR UPDATE OF message
    """,
    locks=("messages",),
)

# Before something is taken from a holder: who is locked is alive, or is being settled.
LOCK_QUIET = Statement(
    sql="""
    SELECT message.id
    FROM pgbus_messages AS message
    WHERE message.id = ANY (%(ids)s::bigint[])
    ORDER BY message.id
    FOR UPDATE SKIP LOCKED
    """,
    locks=("messages",),
)

LEASE_STATES = Statement(
    sql="""
    SELECT message.id, message.delivery, message.started, message.leased_until IS NOT NULL AS leased,
           message.leased_until < statement_timestamp()
               AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval AS lapsed
    FROM pgbus_messages AS message
    WHERE message.id = ANY (%(ids)s::bigint[])
    ORDER BY message.id
    """
)

# --- out of the line ----------------------------------------------------------------------------------

# Rows of the array come sorted by id and the rows are found through the index on id: locked in ascending order.
# The delivery number fences; NULL in leased_until means that somebody released it.
SUCCEED = Statement(
    sql="""
    WITH done AS (
        DELETE FROM pgbus_messages AS message
        USING unnest(%(ids)s::bigint[], %(deliveries)s::int[], %(results)s::text[],
                     %(ran_for)s::float8[], %(ended_ago)s::float8[])
              AS outcome (id, delivery, result, ran_for, ended_ago)
        WHERE message.id = outcome.id
          AND message.delivery = outcome.delivery
          AND message.leased_until IS NOT NULL
        RETURNING message.id, message.queue, message.priority, message.task, message.backend, message.payload,
                  message.delivery, message.attempts, message.errors,
                  message.constraints, message.batch_id, message.event_id, message.topic, message.enqueued_at,
                  message.worker, message.discard_requested, outcome.result, outcome.ran_for, outcome.ended_ago
    )
    INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                               constraints, batch_id, event_id, topic, enqueued_at, outcome, result, note, worker,
                               started_at, finished_at)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at,
           'succeeded', result::json,
           CASE WHEN discard_requested THEN 'The discard came too late.' ELSE '' END,
           worker,
           statement_timestamp() - make_interval(secs => ended_ago + ran_for),
           statement_timestamp() - make_interval(secs => ended_ago)
    FROM done
    RETURNING id, batch_id
    """,
    locks=("messages",),
)

# A failed or snoozed run: to be run again later. One whose discard was requested is settled instead.
PUT_OFF = Statement(
    sql="""
    WITH gone AS (
        DELETE FROM pgbus_messages AS message
        USING unnest(%(ids)s::bigint[], %(deliveries)s::int[], %(delays)s::float8[], %(reasons)s::text[],
                     %(errors)s::text[], %(ran_for)s::float8[], %(ended_ago)s::float8[])
              AS outcome (id, delivery, delay, reason, error, ran_for, ended_ago)
        WHERE message.id = outcome.id
          AND message.delivery = outcome.delivery
          AND message.leased_until IS NOT NULL
        RETURNING message.id, message.queue, message.priority, message.task, message.backend, message.payload,
                  message.delivery, message.constraints, message.batch_id,
                  message.event_id, message.topic, message.enqueued_at, message.worker, message.discard_requested,
                  message.attempts - CASE WHEN outcome.reason IN ('snoozed', 'owned') THEN 1 ELSE 0 END AS attempts,
                  CASE
                      WHEN outcome.error IS NULL THEN message.errors
                      ELSE jsonb_path_query_array(
                          coalesce(message.errors, '[]'::jsonb) || jsonb_build_array(
                              outcome.error::jsonb || jsonb_build_object(
                                  'started_at',
                                  statement_timestamp() - make_interval(secs => outcome.ended_ago + outcome.ran_for),
                                  'failed_at', statement_timestamp() - make_interval(secs => outcome.ended_ago))),
                          '$[last - 9 to last]')
                  END AS errors,
                  outcome.delay, outcome.reason, outcome.ran_for, outcome.ended_ago
    ), later AS (
        INSERT INTO pgbus_delayed (id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints,
                                   batch_id, event_id, topic, enqueued_at, due_at, reason)
        SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
               event_id, topic, enqueued_at,
               statement_timestamp() + make_interval(secs => delay), reason
        FROM gone
        WHERE NOT discard_requested
    ), discarded AS (
        INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints,
                                   batch_id, event_id, topic, enqueued_at, outcome, note, worker, started_at)
        SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
               event_id, topic, enqueued_at,
               'discarded', '', worker,
               statement_timestamp() - make_interval(secs => ended_ago + ran_for)
        FROM gone
        WHERE discard_requested
    )
    SELECT id, discard_requested, batch_id
    FROM gone
    """,
    locks=("messages",),
    again=("messages",),
)

GIVE_UP = Statement(
    sql="""
    WITH gone AS (
        DELETE FROM pgbus_messages AS message
        USING unnest(%(ids)s::bigint[], %(deliveries)s::int[], %(reasons)s::text[], %(not_run)s::int[],
                     %(errors)s::text[], %(ran_for)s::float8[], %(ended_ago)s::float8[])
              AS outcome (id, delivery, reason, not_run, error, ran_for, ended_ago)
        WHERE message.id = outcome.id
          AND message.delivery = outcome.delivery
          AND message.leased_until IS NOT NULL
        RETURNING message.id, message.queue, message.priority, message.task, message.backend, message.payload,
                  message.delivery, message.constraints, message.batch_id,
                  message.event_id, message.topic, message.enqueued_at, message.worker, message.discard_requested,
                  message.attempts - outcome.not_run AS attempts,
                  CASE
                      WHEN outcome.error IS NULL THEN message.errors
                      ELSE jsonb_path_query_array(
                          coalesce(message.errors, '[]'::jsonb) || jsonb_build_array(
                              outcome.error::jsonb || jsonb_build_object(
                                  'started_at',
                                  statement_timestamp() - make_interval(secs => outcome.ended_ago + outcome.ran_for),
                                  'failed_at', statement_timestamp() - make_interval(secs => outcome.ended_ago))),
                          '$[last - 9 to last]')
                  END AS errors,
                  outcome.reason, outcome.ran_for, outcome.ended_ago
    ), dead AS (
        INSERT INTO pgbus_dead_letters (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                                        constraints, batch_id, event_id, topic,
                                        enqueued_at, reason, worker, started_at)
        SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
               event_id, topic, enqueued_at,
               reason, worker, statement_timestamp() - make_interval(secs => ended_ago + ran_for)
        FROM gone
        WHERE NOT discard_requested
    ), discarded AS (
        INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints,
                                   batch_id, event_id, topic, enqueued_at, outcome, note, worker, started_at)
        SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
               event_id, topic, enqueued_at,
               'discarded', '', worker,
               statement_timestamp() - make_interval(secs => ended_ago + ran_for)
        FROM gone
        WHERE discard_requested
    )
    SELECT id, discard_requested, batch_id
    FROM gone
    """,
    locks=("messages",),
)

# Claimed and not run, since another delivery of the same event has done it or is at it: no attempt.
SKIP = Statement(
    sql="""
    WITH gone AS (
        DELETE FROM pgbus_messages AS message
        USING unnest(%(ids)s::bigint[], %(deliveries)s::int[], %(notes)s::text[]) AS skipped (id, delivery, note)
        WHERE message.id = skipped.id
          AND message.delivery = skipped.delivery
          AND message.leased_until IS NOT NULL
        RETURNING message.id, message.queue, message.priority, message.task, message.backend, message.payload,
                  message.delivery, message.attempts - 1 AS attempts, message.errors, message.constraints,
                  message.batch_id, message.event_id, message.topic, message.enqueued_at, message.worker,
                  message.discard_requested, skipped.note
    )
    INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                               constraints, batch_id, event_id, topic, enqueued_at, outcome, note, worker)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at,
           CASE WHEN discard_requested THEN 'discarded' ELSE 'skipped' END, note, worker
    FROM gone
    RETURNING id
    """,
    locks=("messages",),
    again=("messages",),
)

# Where a settlement whose reply was lost may already have put the message. One that was put off may be in the line
# again by now, or even with its next delivery: one that was lost or handed back would be a suspect, or a number ahead.
SETTLED = Statement(
    sql="""
    SELECT id, delivery FROM pgbus_archive WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT id, delivery FROM pgbus_delayed WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT id, delivery FROM pgbus_dead_letters WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT id, delivery FROM pgbus_blocked_executions WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT id, delivery - CASE WHEN leased_until IS NULL THEN 0 ELSE 1 END
    FROM pgbus_messages
    WHERE id = ANY (%(ids)s::bigint[])
      AND NOT suspect
    """
)

# --- back into the line -------------------------------------------------------------------------------

# A delivery that ended without an outcome: handed back (no attempt counted), or lost with its process (suspect).
RETURN_TO_LINE = Statement(
    sql="""
    WITH mine AS (
        SELECT message.id, held.counted, held.suspect
        FROM pgbus_messages AS message
        JOIN unnest(%(ids)s::bigint[], %(deliveries)s::int[], %(counted)s::boolean[], %(suspects)s::boolean[])
             AS held (id, delivery, counted, suspect) ON held.id = message.id
        WHERE message.id = ANY (%(ids)s::bigint[])
          AND message.delivery = held.delivery
          AND message.leased_until IS NOT NULL
          AND NOT message.discard_requested
        ORDER BY message.id
        FOR UPDATE OF message
    )
    UPDATE pgbus_messages AS message
    SET leased_until = NULL,
        delivery = message.delivery + 1,
        attempts = message.attempts - CASE WHEN mine.counted THEN 0 ELSE 1 END,
        errors = CASE
            WHEN NOT mine.counted THEN message.errors
            ELSE jsonb_path_query_array(
                coalesce(message.errors, '[]'::jsonb) || jsonb_build_array(jsonb_build_object(
                    'exception', 'django_pgbus.exceptions.WorkerLost',
                    'traceback', %(lost)s::text,
                    'worker', message.worker,
                    'attempt', message.attempts,
                    'started_at', message.claimed_at,
                    'failed_at', statement_timestamp())),
                '$[last - 9 to last]')
        END,
        suspect = message.suspect OR mine.suspect,
        started = false,
        ready_at = statement_timestamp(),
        position = nextval('pgbus_position')
    FROM mine
    WHERE message.id = mine.id
    RETURNING message.id, message.queue, message.priority, message.suspect, message.position,
              message.constraints IS NOT NULL AS constrained, message.event_id
    """,
    locks=("messages",),
    again=("messages",),
)

# What a process that ended still holds. There is no index on it (a claim would be no HOT update), and none is needed:
# whoever works takes the lowest positions, so what is leased stands in front.
HELD_BY = Statement(
    sql="""
    SELECT front.id, front.delivery
    FROM (
        SELECT queue, priority, suspect
        FROM pgbus_levels
        ORDER BY queue, priority, suspect
        LIMIT 1000
    ) AS level
    CROSS JOIN LATERAL (
        SELECT message.id, message.delivery, message.worker, message.leased_until
        FROM pgbus_messages AS message
        WHERE message.queue = level.queue
          AND message.priority = level.priority
          AND message.suspect = level.suspect
        ORDER BY message.position
        LIMIT %(limit)s::int
    ) AS front
    WHERE front.worker = %(worker)s::uuid
      AND front.leased_until IS NOT NULL
    ORDER BY front.id
    """
)

# Found by a look. The delivery number stays: a run that comes back is fenced by the missing lease until the next
# claim raises it. If a suspect ran in the same process, only its attempt counts.
RELEASE_LAPSED = Statement(
    sql="""
    WITH lapsed AS (
        SELECT message.id, message.worker, message.suspect, message.started
        FROM pgbus_messages AS message
        WHERE message.id = ANY (%(ids)s::bigint[])
          AND message.leased_until < statement_timestamp()
          AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval
          AND NOT message.discard_requested
        ORDER BY message.id
        FOR UPDATE OF message SKIP LOCKED
    ), judged AS (
        SELECT lapsed.id,
               lapsed.started AND (lapsed.suspect OR NOT EXISTS (
                   SELECT 1
                   FROM lapsed AS other
                   WHERE other.worker = lapsed.worker
                     AND other.suspect
                     AND other.started
               )) AS counted
        FROM lapsed
    )
    UPDATE pgbus_messages AS message
    SET leased_until = NULL,
        attempts = message.attempts - CASE WHEN judged.counted THEN 0 ELSE 1 END,
        errors = CASE
            WHEN NOT judged.counted THEN message.errors
            ELSE jsonb_path_query_array(
                coalesce(message.errors, '[]'::jsonb) || jsonb_build_array(jsonb_build_object(
                    'exception', 'django_pgbus.exceptions.WorkerLost',
                    'traceback', %(lost)s::text,
                    'worker', message.worker,
                    'attempt', message.attempts,
                    'started_at', message.claimed_at,
                    'failed_at', statement_timestamp())),
                '$[last - 9 to last]')
        END,
        suspect = true,
        started = false,
        ready_at = statement_timestamp(),
        position = nextval('pgbus_position')
    FROM judged
    WHERE message.id = judged.id
    RETURNING message.id, message.queue, message.priority, message.suspect, message.position
    """,
    locks=("messages",),
)

# A delivery that ended without an outcome and whose discard was requested never returns to the line. One that somebody
# has locked is left to the look that finds its lease lapsed.
SETTLE_MARKED = Statement(
    sql="""
    WITH mine AS (
        SELECT message.id
        FROM pgbus_messages AS message
        JOIN unnest(%(ids)s::bigint[], %(deliveries)s::int[]) AS held (id, delivery) ON held.id = message.id
        WHERE message.id = ANY (%(ids)s::bigint[])
          AND message.discard_requested
          AND (message.delivery = held.delivery
               OR (held.delivery IS NULL
                   AND message.leased_until < statement_timestamp()
                   AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval))
        ORDER BY message.id
        FOR UPDATE OF message SKIP LOCKED
    ), gone AS (
        DELETE FROM pgbus_messages AS message
        USING mine
        WHERE message.id = mine.id
        RETURNING message.id, message.queue, message.priority, message.task, message.backend, message.payload,
                  message.delivery, message.attempts, message.errors,
                  message.constraints, message.batch_id, message.event_id, message.topic, message.enqueued_at,
                  message.worker, message.claimed_at
    )
    INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                               constraints, batch_id, event_id, topic, enqueued_at, outcome, note, worker, started_at)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at,
           'discarded', '', worker, claimed_at
    FROM gone
    RETURNING id, constraints IS NOT NULL AS constrained, batch_id, event_id, delivery
    """,
    locks=("messages",),
    again=("messages",),
)

# --- a person's decisions -----------------------------------------------------------------------------

DISCARD_READY = Statement(
    sql="""
    WITH mine AS (
        SELECT message.id
        FROM pgbus_messages AS message
        WHERE message.id = ANY (%(ids)s::bigint[])
          AND message.leased_until IS NULL
        ORDER BY message.id
        FOR UPDATE OF message
    ), gone AS (
        DELETE FROM pgbus_messages AS message
        USING mine
        WHERE message.id = mine.id
        RETURNING message.id, message.queue, message.priority, message.task, message.backend, message.payload,
                  message.delivery, message.attempts, message.errors, message.constraints, message.batch_id,
                  message.event_id, message.topic, message.enqueued_at
    )
    INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                               constraints, batch_id, event_id, topic, enqueued_at, outcome)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at, 'discarded'
    FROM gone
    RETURNING id, constraints IS NOT NULL AS constrained, batch_id, event_id, delivery
    """,
    locks=("messages",),
)

DISCARD_DELAYED = Statement(
    sql="""
    WITH mine AS (
        SELECT delayed.id
        FROM pgbus_delayed AS delayed
        WHERE delayed.id = ANY (%(ids)s::bigint[])
        ORDER BY delayed.id
        FOR UPDATE OF delayed
    ), gone AS (
        DELETE FROM pgbus_delayed AS delayed
        USING mine
        WHERE delayed.id = mine.id
        RETURNING delayed.id, delayed.queue, delayed.priority, delayed.task, delayed.backend, delayed.payload,
                  delayed.delivery, delayed.attempts, delayed.errors, delayed.constraints, delayed.batch_id,
                  delayed.event_id, delayed.topic, delayed.enqueued_at
    )
    INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                               constraints, batch_id, event_id, topic, enqueued_at, outcome)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at, 'discarded'
    FROM gone
    RETURNING id, constraints IS NOT NULL AS constrained, batch_id, event_id, delivery
    """,
    locks=("delayed",),
)

MARK_DISCARD = Statement(
    sql="""
    WITH mine AS (
        SELECT message.id
        FROM pgbus_messages AS message
        WHERE message.id = ANY (%(ids)s::bigint[])
          AND message.leased_until IS NOT NULL
        ORDER BY message.id
        FOR NO KEY UPDATE OF message
    )
    UPDATE pgbus_messages AS message
    SET discard_requested = true
    FROM mine
    WHERE message.id = mine.id
    RETURNING message.id
    """,
    locks=("messages",),
)

# What a worker has, as a person saw it: not what was claimed since, nor what is being discarded.
RUNNING_AS_SEEN = Statement(
    sql="""
    SELECT message.id, message.delivery
    FROM pgbus_messages AS message
    WHERE message.id = ANY (%(ids)s::bigint[])
      AND message.leased_until IS NOT NULL
      AND NOT message.discard_requested
      AND (%(seen_at)s::timestamptz IS NULL OR message.claimed_at <= %(seen_at)s::timestamptz)
    ORDER BY message.id
    """
)

WAITING_OR_RUNNING = Statement(
    sql="""
    SELECT id FROM pgbus_messages WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT id FROM pgbus_delayed WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT id FROM pgbus_blocked_executions WHERE id = ANY (%(ids)s::bigint[])
    ORDER BY id
    """
)

# The delivery number goes on rising and the attempts start again; the history stays. A batch that it was a member of has
# counted it as failed, once and for all: it is no member any more.
REDRIVE = Statement(
    sql="""
    WITH mine AS (
        SELECT letter.id
        FROM pgbus_dead_letters AS letter
        WHERE letter.id = ANY (%(ids)s::bigint[])
        ORDER BY letter.id
        FOR UPDATE OF letter
    ), gone AS (
        DELETE FROM pgbus_dead_letters AS letter
        USING mine
        WHERE letter.id = mine.id
        RETURNING letter.id, letter.queue, letter.priority, letter.task, letter.backend, letter.payload,
                  letter.delivery, letter.errors, letter.constraints, letter.event_id, letter.topic, letter.enqueued_at
    )
    INSERT INTO pgbus_messages (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                                constraints, event_id, topic, enqueued_at)
    SELECT id, queue, priority, task, backend, payload, delivery + 1, 0, errors, constraints,
           event_id, topic, enqueued_at
    FROM gone
    ORDER BY id
    RETURNING id, queue, priority, suspect, position
    """,
    locks=("dead_letters",),
    again=("dead_letters",),
)

LOCK_DEAD = Statement(
    sql="""
    SELECT letter.id, letter.queue, letter.priority, letter.task, letter.backend, letter.payload::text AS payload,
           letter.delivery, letter.errors::text AS errors, letter.constraints::text AS constraints, letter.enqueued_at,
           letter.batch_id, letter.event_id, letter.topic
    FROM pgbus_dead_letters AS letter
    WHERE letter.id = ANY (%(ids)s::bigint[])
    ORDER BY letter.id
    FOR UPDATE OF letter
    """,
    locks=("dead_letters",),
)

DELETE_DEAD = Statement(
    sql="""
    DELETE FROM pgbus_dead_letters
    WHERE id = ANY (%(ids)s::bigint[])
    """,
    locks=("dead_letters",),
    again=("dead_letters",),
)

DISCARD_DEAD = Statement(
    sql="""
    WITH mine AS (
        SELECT letter.id
        FROM pgbus_dead_letters AS letter
        WHERE letter.id = ANY (%(ids)s::bigint[])
        ORDER BY letter.id
        FOR UPDATE OF letter
    ), gone AS (
        DELETE FROM pgbus_dead_letters AS letter
        USING mine
        WHERE letter.id = mine.id
        RETURNING letter.id, letter.queue, letter.priority, letter.task, letter.backend, letter.payload,
                  letter.delivery, letter.attempts, letter.errors,
                  letter.constraints, letter.batch_id, letter.event_id, letter.topic, letter.enqueued_at, letter.worker,
                  letter.started_at
    )
    INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                               constraints, batch_id, event_id, topic, enqueued_at, outcome, note, worker, started_at)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at,
           'discarded', 'It was a dead letter.', worker, started_at
    FROM gone
    RETURNING id
    """,
    locks=("dead_letters",),
)

PAUSE = Statement(
    sql="""
    INSERT INTO pgbus_queue_states AS state (queue, paused_at, paused_by)
    VALUES (%(queue)s::text, statement_timestamp(), %(by)s::text)
    ON CONFLICT (queue) DO UPDATE
    SET paused_at = coalesce(state.paused_at, excluded.paused_at),
        paused_by = CASE WHEN state.paused_at IS NULL THEN excluded.paused_by ELSE state.paused_by END
    """,
    locks=("queue_states",),
)

RESUME = Statement(
    sql="""
    UPDATE pgbus_queue_states
    SET paused_at = NULL,
        paused_by = ''
    WHERE queue = %(queue)s::text
      AND paused_at IS NOT NULL
    """,
    locks=("queue_states",),
)

# --- levels and wake-ups ------------------------------------------------------------------------------

ANNOUNCE_LEVELS = Statement(
    sql="""
    INSERT INTO pgbus_levels AS level (queue, priority, suspect)
    SELECT DISTINCT used.queue, used.priority, used.suspect
    FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(suspects)s::boolean[])
         AS used (queue, priority, suspect)
    ORDER BY used.queue, used.priority, used.suspect
    ON CONFLICT (queue, priority, suspect) DO UPDATE
    SET seen_at = statement_timestamp()
    WHERE level.seen_at < statement_timestamp() - interval '10 minutes'
    """,
    locks=("levels",),
)

# Loose index scans: one probe per level and per queue, however long the line is.
FIND_LEVELS = Statement(
    sql="""
    WITH RECURSIVE used AS (
        (
            SELECT queue, priority, suspect
            FROM pgbus_messages
            ORDER BY queue, priority, suspect
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue, following.priority, following.suspect
        FROM used
        CROSS JOIN LATERAL (
            SELECT message.queue, message.priority, message.suspect
            FROM pgbus_messages AS message
            WHERE (message.queue, message.priority, message.suspect) > (used.queue, used.priority, used.suspect)
            ORDER BY message.queue, message.priority, message.suspect
            LIMIT 1
        ) AS following
    )
    SELECT queue, priority, suspect
    FROM used
    LIMIT 10000
    """
)

FIND_DELAYED_QUEUES = Statement(
    sql="""
    WITH RECURSIVE used AS (
        (
            SELECT queue
            FROM pgbus_delayed
            ORDER BY queue
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue
        FROM used
        CROSS JOIN LATERAL (
            SELECT delayed.queue
            FROM pgbus_delayed AS delayed
            WHERE delayed.queue > used.queue
            ORDER BY delayed.queue
            LIMIT 1
        ) AS following
    )
    SELECT queue
    FROM used
    LIMIT 10000
    """
)

FORGET_LEVELS = Statement(
    sql="""
    DELETE FROM pgbus_levels AS level
    USING (
        SELECT stale.queue, stale.priority, stale.suspect
        FROM pgbus_levels AS stale
        WHERE stale.seen_at < statement_timestamp() - interval '1 day'
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_messages AS message
              WHERE message.queue = stale.queue
                AND message.priority = stale.priority
                AND message.suspect = stale.suspect
          )
          AND NOT EXISTS (SELECT 1 FROM pgbus_delayed AS delayed WHERE delayed.queue = stale.queue)
        ORDER BY stale.queue, stale.priority, stale.suspect
        LIMIT %(limit)s::int
        FOR UPDATE OF stale SKIP LOCKED
    ) AS unused
    WHERE level.queue = unused.queue
      AND level.priority = unused.priority
      AND level.suspect = unused.suspect
    """,
    locks=("levels",),
)

# NOTIFY takes a transaction id, so its commit would wait for the disk; losing one in a crash costs a poll.
NOTIFY = Statement(
    sql="""
    SELECT set_config('synchronous_commit', 'off', true), pg_notify('pgbus', note)
    FROM unnest(%(notes)s::text[]) AS notes (note)
    """
)

# --- retention ----------------------------------------------------------------------------------------

PURGE_ARCHIVE = Statement(
    sql="""
    DELETE FROM pgbus_archive
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM pgbus_archive
        WHERE finished_at < statement_timestamp() - %(age)s::interval
        ORDER BY finished_at
        LIMIT %(limit)s::int
        FOR UPDATE SKIP LOCKED
    ))
    """,
    locks=("archive",),
)

PURGE_DEAD_LETTERS = Statement(
    sql="""
    DELETE FROM pgbus_dead_letters
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM pgbus_dead_letters
        WHERE died_at < statement_timestamp() - %(age)s::interval
        ORDER BY died_at
        LIMIT %(limit)s::int
        FOR UPDATE SKIP LOCKED
    ))
    """,
    locks=("dead_letters",),
)
