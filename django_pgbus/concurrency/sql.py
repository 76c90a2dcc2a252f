"""
The statements of the limits, with the rows each locks.

Who waits for whom: a promotion skips a semaphore that somebody has locked, and that one looks again after its commit. An
enqueue that must decide at once (`discard`, `raise`) waits for the semaphore, and holds it until its transaction ends.
Settling deletes its own slot and waits for a beat or a pick-up on that row at most. A statement that takes a slot away
repeats in its own WHERE what it saw on the slot's row; pick-up changes that row, so one of the two sees the other.
"""

from django_pgbus.postgres import Statement

# --- semaphores ---------------------------------------------------------------------------------------

MISSING = Statement(
    sql="""
    SELECT wanted.key
    FROM unnest(%(keys)s::text[]) AS wanted (key)
    WHERE NOT EXISTS (SELECT 1 FROM pgbus_semaphores AS semaphore WHERE semaphore.key = wanted.key)
    ORDER BY wanted.key
    """
)

# A row that another transaction has inserted and not committed cannot be skipped, so its creator holds this first.
WAIT_TO_CREATE = Statement(
    sql="""
    SELECT pg_advisory_xact_lock(hashtextextended(missing.key, 20618))
    FROM (
        SELECT wanted.key
        FROM unnest(%(keys)s::text[]) AS wanted (key)
        ORDER BY wanted.key
        OFFSET 0
    ) AS missing
    """
)

TRY_TO_CREATE = Statement(
    sql="""
    SELECT missing.key
    FROM (
        SELECT wanted.key
        FROM unnest(%(keys)s::text[]) AS wanted (key)
        ORDER BY wanted.key
        OFFSET 0
    ) AS missing
    WHERE pg_try_advisory_xact_lock(hashtextextended(missing.key, 20618))
    """
)

CREATE = Statement(
    sql="""
    INSERT INTO pgbus_semaphores (key, name, capacity)
    SELECT wanted.key, wanted.name, wanted.capacity
    FROM unnest(%(keys)s::text[], %(names)s::text[], %(capacities)s::int[]) AS wanted (key, name, capacity)
    ORDER BY wanted.key
    ON CONFLICT (key) DO NOTHING
    """
)

LOCK = Statement(
    sql="""
    SELECT semaphore.key, semaphore.capacity
    FROM pgbus_semaphores AS semaphore
    WHERE semaphore.key = ANY (%(keys)s::text[])
    ORDER BY semaphore.key
    FOR UPDATE
    """,
    locks=("semaphores",),
)

LOCK_FREE = Statement(
    sql="""
    SELECT semaphore.key, semaphore.capacity
    FROM pgbus_semaphores AS semaphore
    WHERE semaphore.key = ANY (%(keys)s::text[])
    ORDER BY semaphore.key
    FOR UPDATE SKIP LOCKED
    """,
    locks=("semaphores",),
)

SET_CAPACITY = Statement(
    sql="""
    UPDATE pgbus_semaphores AS semaphore
    SET capacity = wanted.capacity
    FROM unnest(%(keys)s::text[], %(capacities)s::int[]) AS wanted (key, capacity)
    WHERE semaphore.key = wanted.key
      AND semaphore.capacity <> wanted.capacity
    """,
    locks=("semaphores",),
    again=("semaphores",),
)

# --- looking, without a lock --------------------------------------------------------------------------

# The best candidate of each key and how many slots are held. A queue that is paused is passed over. `due_at` is NULL
# for all of them; it is named because the index is sorted by it.
LOOK = Statement(
    sql="""
    SELECT wanted.key, best.task, best.constraints::text AS constraints, held.slots,
           EXISTS (SELECT 1 FROM pgbus_semaphores AS semaphore WHERE semaphore.key = wanted.key) AS created
    FROM unnest(%(keys)s::text[]) AS wanted (key)
    CROSS JOIN LATERAL (
        SELECT blocked.task, blocked.constraints
        FROM pgbus_blocked_executions AS blocked
        WHERE blocked.waits_for = 'semaphore'
          AND blocked.key = wanted.key
          AND blocked.due_at IS NULL
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_queue_states AS state
              WHERE state.queue = blocked.queue
                AND state.paused_at IS NOT NULL
          )
        ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
        LIMIT 1
    ) AS best
    CROSS JOIN LATERAL (
        SELECT count(*) AS slots
        FROM pgbus_semaphore_slots AS slot
        WHERE slot.key = wanted.key
    ) AS held
    ORDER BY wanted.key
    """
)

# Keys that parked tasks wait for, by a loose index scan.
WAITED_FOR = Statement(
    sql="""
    WITH RECURSIVE waited AS (
        (
            SELECT blocked.key, 1 AS nth
            FROM pgbus_blocked_executions AS blocked
            WHERE blocked.waits_for = %(waits_for)s::text
              AND blocked.key > %(after)s::text
            ORDER BY blocked.key
            LIMIT 1
        )
        UNION ALL
        SELECT following.key, waited.nth + 1
        FROM waited
        CROSS JOIN LATERAL (
            SELECT blocked.key
            FROM pgbus_blocked_executions AS blocked
            WHERE blocked.waits_for = %(waits_for)s::text
              AND blocked.key > waited.key
            ORDER BY blocked.key
            LIMIT 1
        ) AS following
        WHERE waited.nth < %(limit)s::int
    )
    SELECT waited.key
    FROM waited
    ORDER BY waited.key
    LIMIT %(limit)s::int
    """
)

# --- under the lock, each with a snapshot of its own --------------------------------------------------

HELD = Statement(
    sql="""
    SELECT slot.key, slot.ordinal
    FROM pgbus_semaphore_slots AS slot
    WHERE slot.key = ANY (%(keys)s::text[])
    """
)

# Parked tasks that would have a slot before a newcomer, counted as far as matters.
PARKED_BEFORE = Statement(
    sql="""
    SELECT wanted.key, count(parked.id) AS parked
    FROM unnest(%(keys)s::text[], %(limits)s::int[]) AS wanted (key, most)
    CROSS JOIN LATERAL (
        SELECT blocked.id
        FROM pgbus_blocked_executions AS blocked
        WHERE blocked.waits_for = 'semaphore'
          AND blocked.key = wanted.key
          AND blocked.due_at IS NULL
        ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
        LIMIT wanted.most
    ) AS parked
    GROUP BY wanted.key
    """
)

# The ordinals are those held when this statement began, so after the lock was had.
CANDIDATES = Statement(
    sql="""
    SELECT wanted.key, held.ordinals, best.id, best.priority, best.task, best.constraints::text AS constraints
    FROM unnest(%(keys)s::text[], %(limits)s::int[]) AS wanted (key, most)
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(slot.ordinal), '{}') AS ordinals
        FROM pgbus_semaphore_slots AS slot
        WHERE slot.key = wanted.key
    ) AS held
    CROSS JOIN LATERAL (
        SELECT blocked.id, blocked.task, blocked.constraints, blocked.priority
        FROM pgbus_blocked_executions AS blocked
        WHERE blocked.waits_for = 'semaphore'
          AND blocked.key = wanted.key
          AND blocked.due_at IS NULL
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_queue_states AS state
              WHERE state.queue = blocked.queue
                AND state.paused_at IS NOT NULL
          )
        ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
        LIMIT greatest(0, least(%(at_once)s::int, wanted.most - cardinality(held.ordinals)))
        FOR UPDATE OF blocked SKIP LOCKED
    ) AS best
    """,
    locks=("blocked_executions",),
)

# From parked into the line, with a slot where an ordinal is given. `constraints` replaces what the task carries where
# its limit is no longer declared.
PROMOTE = Statement(
    sql="""
    WITH chosen AS (
        SELECT one.id, one.ordinal, one.duration, one.constraints, one.nth
        FROM unnest(%(ids)s::bigint[], %(ordinals)s::int[], %(durations)s::float8[], %(constraints)s::text[])
             WITH ORDINALITY AS one (id, ordinal, duration, constraints, nth)
    ), gone AS (
        DELETE FROM pgbus_blocked_executions AS blocked
        USING chosen
        WHERE blocked.id = chosen.id
        RETURNING blocked.id, blocked.queue, blocked.priority, blocked.task, blocked.backend, blocked.payload,
                  blocked.delivery, blocked.attempts, blocked.errors, blocked.batch_id,
                  blocked.event_id, blocked.topic, blocked.enqueued_at, blocked.suspect, blocked.key,
                  coalesce(chosen.constraints::json, blocked.constraints) AS constraints,
                  chosen.ordinal, chosen.duration, chosen.nth
    ), slot AS (
        INSERT INTO pgbus_semaphore_slots (message_id, key, ordinal, duration)
        SELECT id, key, ordinal, duration
        FROM gone
        WHERE ordinal IS NOT NULL
        ON CONFLICT DO NOTHING -- only under a stricter isolation than ours: PostgreSQL's 40001
    )
    INSERT INTO pgbus_messages (id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints,
                                batch_id, event_id, topic, enqueued_at, suspect)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at, suspect
    FROM gone
    ORDER BY nth
    RETURNING id, queue, priority, suspect, position
    """,
    locks=("blocked_executions",),
)

# --- parking ------------------------------------------------------------------------------------------

# A delivery that does not run now, no attempt counted. One whose discard was requested is settled instead, and so is
# one that is to be dropped (`dropped` says why).
PARK = Statement(
    sql="""
    WITH mine AS (
        SELECT message.id, held.waits_for, held.key, held.semaphore, held.due_in, held.raised, held.dropped
        FROM pgbus_messages AS message
        JOIN unnest(%(ids)s::bigint[], %(deliveries)s::int[], %(waits_for)s::text[], %(keys)s::text[],
                    %(semaphores)s::text[], %(due_in)s::float8[], %(raised)s::int[], %(dropped)s::text[])
             AS held (id, delivery, waits_for, key, semaphore, due_in, raised, dropped) ON held.id = message.id
        WHERE message.id = ANY (%(ids)s::bigint[])
          AND message.delivery = held.delivery
          AND message.leased_until IS NOT NULL
        ORDER BY message.id
        FOR UPDATE OF message
    ), gone AS (
        DELETE FROM pgbus_messages AS message
        USING mine
        WHERE message.id = mine.id
        RETURNING message.id, message.queue, message.priority, message.task, message.backend, message.payload,
                  message.delivery, message.attempts - 1 AS attempts, message.errors, message.constraints,
                  message.batch_id, message.event_id, message.topic,
                  message.enqueued_at, message.suspect, message.worker, message.claimed_at,
                  message.discard_requested OR mine.dropped <> '' AS discarded,
                  mine.waits_for, mine.key, mine.semaphore, mine.due_in, mine.raised, mine.dropped
    ), parked AS (
        INSERT INTO pgbus_blocked_executions (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                                              constraints, batch_id,
                                              event_id, topic, enqueued_at, suspect, waits_for, key, semaphore, due_at)
        SELECT id, queue, priority, task, backend, payload, delivery + raised, attempts, errors, constraints,
               batch_id, event_id, topic, enqueued_at, suspect AND due_in IS NULL, waits_for, key, semaphore,
               statement_timestamp() + make_interval(secs => due_in)
        FROM gone
        WHERE NOT discarded
    ), settled AS (
        INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors,
                                   constraints, batch_id, event_id, topic, enqueued_at, outcome, note, worker,
                                   started_at)
        SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
               event_id, topic, enqueued_at,
               'discarded', dropped, worker, claimed_at
        FROM gone
        WHERE discarded
    )
    SELECT id, discarded, batch_id
    FROM gone
    """,
    locks=("messages",),
    again=("messages",),
)

# Those that waited for their time are candidates, and wait, from then on. Locks exactly what it returns.
MAKE_DUE = Statement(
    sql="""
    WITH due AS (
        SELECT candidate.id
        FROM unnest(%(queues)s::text[]) AS mine (queue)
        CROSS JOIN LATERAL (
            SELECT waiting.id
            FROM pgbus_blocked_executions AS waiting
            WHERE waiting.queue = mine.queue
              AND waiting.due_at <= statement_timestamp()
            ORDER BY waiting.due_at
            LIMIT %(limit)s::int
            FOR UPDATE SKIP LOCKED
        ) AS candidate
        LIMIT %(limit)s::int
    )
    UPDATE pgbus_blocked_executions AS blocked
    SET due_at = NULL,
        parked_at = blocked.due_at
    FROM due
    WHERE blocked.id = due.id
    RETURNING blocked.waits_for, blocked.key
    """,
    locks=("blocked_executions",),
)

# The same for tasks that a person names.
MAKE_DUE_NOW = Statement(
    sql="""
    WITH mine AS (
        SELECT waiting.id
        FROM pgbus_blocked_executions AS waiting
        WHERE waiting.id = ANY (%(ids)s::bigint[])
          AND waiting.due_at IS NOT NULL
        ORDER BY waiting.id
        FOR UPDATE OF waiting
    )
    UPDATE pgbus_blocked_executions AS blocked
    SET due_at = NULL,
        parked_at = statement_timestamp()
    FROM mine
    WHERE blocked.id = mine.id
    RETURNING blocked.id, blocked.waits_for, blocked.key
    """,
    locks=("blocked_executions",),
)

FIND_DUE_QUEUES = Statement(
    sql="""
    WITH RECURSIVE used AS (
        (
            SELECT queue
            FROM pgbus_blocked_executions
            WHERE due_at IS NOT NULL
            ORDER BY queue
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue
        FROM used
        CROSS JOIN LATERAL (
            SELECT blocked.queue
            FROM pgbus_blocked_executions AS blocked
            WHERE blocked.queue > used.queue
              AND blocked.due_at IS NOT NULL
            ORDER BY blocked.queue
            LIMIT 1
        ) AS following
    )
    SELECT queue
    FROM used
    LIMIT 10000
    """
)

# --- who waits for a uniqueness key -------------------------------------------------------------------

HAS_WAITERS = Statement(
    sql="""
    SELECT wanted.key
    FROM unnest(%(keys)s::text[]) AS wanted (key)
    WHERE EXISTS (
        SELECT 1
        FROM pgbus_blocked_executions AS blocked
        WHERE blocked.waits_for = 'key'
          AND blocked.key = wanted.key
          AND blocked.due_at IS NULL
    )
    ORDER BY wanted.key
    """
)

# The best that waits for each key, locked: it is promoted, or pointed to its semaphore, in this transaction.
NEXT_FOR_KEY = Statement(
    sql="""
    SELECT wanted.key, best.id, best.semaphore
    FROM unnest(%(keys)s::text[]) AS wanted (key)
    CROSS JOIN LATERAL (
        SELECT blocked.id, blocked.semaphore
        FROM pgbus_blocked_executions AS blocked
        WHERE blocked.waits_for = 'key'
          AND blocked.key = wanted.key
          AND blocked.due_at IS NULL
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_queue_states AS state
              WHERE state.queue = blocked.queue
                AND state.paused_at IS NOT NULL
          )
        ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
        LIMIT 1
        FOR UPDATE OF blocked SKIP LOCKED
    ) AS best
    ORDER BY best.id
    """,
    locks=("blocked_executions",),
)

POINT_TO_SEMAPHORE = Statement(
    sql="""
    UPDATE pgbus_blocked_executions AS blocked
    SET waits_for = 'semaphore',
        key = blocked.semaphore
    WHERE blocked.id = ANY (%(ids)s::bigint[])
      AND blocked.semaphore IS NOT NULL
    """,
    locks=("blocked_executions",),
)

# --- slots --------------------------------------------------------------------------------------------

# At pick-up: the slots that are there, with their lease started. What is missing here must not run.
START_LEASES = Statement(
    sql="""
    WITH mine AS (
        SELECT slot.message_id
        FROM pgbus_semaphore_slots AS slot
        WHERE slot.message_id = ANY (%(ids)s::bigint[])
        ORDER BY slot.message_id
        FOR UPDATE OF slot
    )
    UPDATE pgbus_semaphore_slots AS slot
    SET leased_until = statement_timestamp() + make_interval(secs => greatest(slot.duration, %(least)s::float8))
    FROM mine
    WHERE slot.message_id = mine.message_id
    RETURNING slot.message_id
    """,
    locks=("semaphore_slots",),
)

# With each beat, for the messages whose lease it has just renewed; waits for nobody.
RENEW = Statement(
    sql="""
    WITH mine AS (
        SELECT slot.message_id
        FROM unnest(%(ids)s::bigint[], %(deliveries)s::int[]) AS held (id, delivery)
        JOIN pgbus_messages AS message ON message.id = held.id
        JOIN pgbus_semaphore_slots AS slot ON slot.message_id = held.id
        WHERE message.delivery = held.delivery
          AND message.leased_until > statement_timestamp()
          AND slot.leased_until IS NOT NULL
        FOR NO KEY UPDATE OF slot SKIP LOCKED
    )
    UPDATE pgbus_semaphore_slots AS slot
    SET leased_until = statement_timestamp() + make_interval(secs => greatest(slot.duration, %(least)s::float8))
    FROM mine
    WHERE slot.message_id = mine.message_id
    """,
    locks=("semaphore_slots",),
)

# Its message waits again, for its next attempt or a worker: waiting is not silence.
STOP_LEASES = Statement(
    sql="""
    WITH mine AS (
        SELECT slot.message_id
        FROM pgbus_semaphore_slots AS slot
        WHERE slot.message_id = ANY (%(ids)s::bigint[])
        ORDER BY slot.message_id
        FOR UPDATE OF slot
    )
    UPDATE pgbus_semaphore_slots AS slot
    SET leased_until = NULL
    FROM mine
    WHERE slot.message_id = mine.message_id
    """,
    locks=("semaphore_slots",),
    again=("semaphore_slots",),
)

# Of messages that are settled or parked; needs no semaphore.
FREE = Statement(
    sql="""
    WITH mine AS (
        SELECT slot.message_id
        FROM pgbus_semaphore_slots AS slot
        WHERE slot.message_id = ANY (%(ids)s::bigint[])
        ORDER BY slot.message_id
        FOR UPDATE OF slot
    )
    DELETE FROM pgbus_semaphore_slots AS slot
    USING mine
    WHERE slot.message_id = mine.message_id
    RETURNING slot.key
    """,
    locks=("semaphore_slots",),
    again=("semaphore_slots",),
)

# Taken away as they were seen. The message was locked before, or has no lease to be locked; a pick-up or a beat in
# between has changed the lease, and the slot stays.
FREE_SEEN = Statement(
    sql="""
    WITH mine AS (
        SELECT slot.message_id
        FROM pgbus_semaphore_slots AS slot
        JOIN unnest(%(ids)s::bigint[], %(leases)s::timestamptz[]) AS seen (message_id, leased_until)
          ON seen.message_id = slot.message_id
        WHERE slot.leased_until IS NOT DISTINCT FROM seen.leased_until
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_messages AS message
              WHERE message.id = slot.message_id
                AND message.leased_until IS NOT NULL
          )
        ORDER BY slot.message_id
        FOR UPDATE OF slot
    )
    DELETE FROM pgbus_semaphore_slots AS slot
    USING mine
    WHERE slot.message_id = mine.message_id
    RETURNING slot.message_id, slot.key
    """,
    locks=("semaphore_slots",),
)

# A running holder that has not been heard of for its duration: presumed dead.
SILENT = Statement(
    sql="""
    SELECT slot.message_id, slot.leased_until::text AS leased_until
    FROM pgbus_semaphore_slots AS slot
    WHERE slot.leased_until < statement_timestamp()
      AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval
    ORDER BY slot.leased_until
    LIMIT %(limit)s::int
    """
)

OF_KEY = Statement(
    sql="""
    SELECT slot.message_id, slot.leased_until::text AS leased_until
    FROM pgbus_semaphore_slots AS slot
    WHERE slot.key = %(key)s::text
    ORDER BY slot.message_id
    LIMIT %(limit)s::int
    """
)

# One snapshot sees a message in exactly one place, or in none.
UNOWNED = Statement(
    sql="""
    SELECT looked.message_id, looked.leased_until::text AS leased_until,
           NOT EXISTS (SELECT 1 FROM pgbus_messages AS message WHERE message.id = looked.message_id)
           AND NOT EXISTS (SELECT 1 FROM pgbus_delayed AS delayed WHERE delayed.id = looked.message_id)
           AS unowned
    FROM (
        SELECT slot.message_id, slot.leased_until
        FROM pgbus_semaphore_slots AS slot
        WHERE slot.message_id > %(after)s::bigint
        ORDER BY slot.message_id
        LIMIT %(limit)s::int
    ) AS looked
    ORDER BY looked.message_id
    """
)

LOCK_UNOWNED = Statement(
    sql="""
    SELECT slot.message_id
    FROM pgbus_semaphore_slots AS slot
    WHERE slot.message_id = ANY (%(ids)s::bigint[])
    ORDER BY slot.message_id
    FOR UPDATE SKIP LOCKED
    """,
    locks=("semaphore_slots",),
)

REAP = Statement(
    sql="""
    DELETE FROM pgbus_semaphore_slots AS slot
    WHERE slot.message_id = ANY (%(ids)s::bigint[])
      AND NOT EXISTS (SELECT 1 FROM pgbus_messages AS message WHERE message.id = slot.message_id)
      AND NOT EXISTS (SELECT 1 FROM pgbus_delayed AS delayed WHERE delayed.id = slot.message_id)
    RETURNING slot.key
    """,
    locks=("semaphore_slots",),
)

# --- retention and a person's decisions ---------------------------------------------------------------

UNUSED = Statement(
    sql="""
    SELECT semaphore.key
    FROM pgbus_semaphores AS semaphore
    WHERE semaphore.key > %(after)s::text
      AND NOT EXISTS (SELECT 1 FROM pgbus_semaphore_slots AS slot WHERE slot.key = semaphore.key)
    ORDER BY semaphore.key
    LIMIT %(limit)s::int
    """
)

FORGET = Statement(
    sql="""
    DELETE FROM pgbus_semaphores AS semaphore
    WHERE semaphore.key = ANY (%(keys)s::text[])
      AND NOT EXISTS (SELECT 1 FROM pgbus_semaphore_slots AS slot WHERE slot.key = semaphore.key)
      AND NOT EXISTS (
          SELECT 1
          FROM pgbus_blocked_executions AS blocked
          WHERE blocked.waits_for = 'semaphore'
            AND blocked.key = semaphore.key
      )
    """,
    locks=("semaphores",),
)

# Up to the highest id that was shown, and what was parked by then: what came since is not what was decided about.
PARKED_OF_KEY = Statement(
    sql="""
    SELECT blocked.id
    FROM pgbus_blocked_executions AS blocked
    WHERE blocked.waits_for = %(waits_for)s::text
      AND blocked.key = %(key)s::text
      AND blocked.id <= %(up_to)s::bigint
      AND (%(seen_at)s::timestamptz IS NULL OR blocked.parked_at <= %(seen_at)s::timestamptz)
    ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
    LIMIT %(limit)s::int
    FOR UPDATE SKIP LOCKED
    """,
    locks=("blocked_executions",),
)

DISCARD = Statement(
    sql="""
    WITH mine AS (
        SELECT blocked.id
        FROM pgbus_blocked_executions AS blocked
        WHERE blocked.id = ANY (%(ids)s::bigint[])
        ORDER BY blocked.id
        FOR UPDATE OF blocked
    ), gone AS (
        DELETE FROM pgbus_blocked_executions AS blocked
        USING mine
        WHERE blocked.id = mine.id
        RETURNING blocked.id, blocked.queue, blocked.priority, blocked.task, blocked.backend, blocked.payload,
                  blocked.delivery, blocked.attempts, blocked.errors, blocked.constraints, blocked.batch_id,
                  blocked.event_id, blocked.topic, blocked.enqueued_at
    )
    INSERT INTO pgbus_archive (id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints,
                               batch_id, event_id, topic, enqueued_at, outcome)
    SELECT id, queue, priority, task, backend, payload, delivery, attempts, errors, constraints, batch_id,
           event_id, topic, enqueued_at, 'discarded'
    FROM gone
    RETURNING id, batch_id
    """,
    locks=("blocked_executions",),
)
