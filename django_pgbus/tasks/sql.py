"""The statements that touch several components: reading a task wherever it is, and letting in one that is constrained."""

from django_pgbus.postgres import Statement

# One statement, one snapshot: a task that moves meanwhile is seen in exactly one place.
FIND = Statement(
    sql="""
    SELECT CASE WHEN message.leased_until IS NULL THEN 'ready' ELSE 'running' END AS state,
           message.id, message.queue, message.priority, message.task, message.backend,
           message.payload::text AS payload, message.delivery, message.attempts, message.enqueued_at,
           CASE WHEN message.leased_until IS NOT NULL THEN message.claimed_at END AS started_at,
           NULL::timestamptz AS finished_at, message.errors::text AS errors, NULL::text AS result,
           CASE WHEN message.leased_until IS NOT NULL THEN message.worker END AS worker, '' AS note,
           message.constraints::text AS constraints, message.batch_id,
           message.event_id, message.topic
    FROM pgbus_messages AS message
    WHERE message.id = %(id)s::bigint
    UNION ALL
    SELECT 'delayed', delayed.id, delayed.queue, delayed.priority, delayed.task, delayed.backend,
           delayed.payload::text, delayed.delivery, delayed.attempts, delayed.enqueued_at,
           NULL, NULL, delayed.errors::text, NULL, NULL, delayed.reason, delayed.constraints::text, delayed.batch_id,
           delayed.event_id, delayed.topic
    FROM pgbus_delayed AS delayed
    WHERE delayed.id = %(id)s::bigint
    UNION ALL
    SELECT 'parked', parked.id, parked.queue, parked.priority, parked.task, parked.backend,
           parked.payload::text, parked.delivery, parked.attempts, parked.enqueued_at,
           NULL, NULL, parked.errors::text, NULL, NULL, parked.waits_for, parked.constraints::text, parked.batch_id,
           parked.event_id, parked.topic
    FROM pgbus_blocked_executions AS parked
    WHERE parked.id = %(id)s::bigint
    UNION ALL
    SELECT archived.outcome, archived.id, archived.queue, archived.priority, archived.task, archived.backend,
           archived.payload::text, archived.delivery, archived.attempts, archived.enqueued_at,
           archived.started_at, archived.finished_at, archived.errors::text, archived.result::text,
           archived.worker, archived.note, archived.constraints::text, archived.batch_id,
           archived.event_id, archived.topic
    FROM pgbus_archive AS archived
    WHERE archived.id = %(id)s::bigint
    UNION ALL
    SELECT 'dead', letter.id, letter.queue, letter.priority, letter.task, letter.backend,
           letter.payload::text, letter.delivery, letter.attempts, letter.enqueued_at,
           letter.started_at, letter.died_at, letter.errors::text, NULL, letter.worker, letter.reason,
           letter.constraints::text, letter.batch_id,
           letter.event_id, letter.topic
    FROM pgbus_dead_letters AS letter
    WHERE letter.id = %(id)s::bigint
    """
)

# Constrained tasks, each with what it needs: its key is taken or it does not enter, a slot that was reserved goes to
# it, without one it is parked. Keys are taken in ascending order: two who take many cannot wait for each other. A task
# that comes back (redrive) brings its id, delivery number, history and the time it was enqueued.
ENTER = Statement(
    sql="""
    WITH asked AS (
        SELECT one.nth,
               coalesce(one.id, nextval('pgbus_task_id')) AS id,
               one.queue, one.priority, one.task, one.backend, one.payload, one.constraints, one.delivery, one.errors,
               coalesce(one.enqueued_at, statement_timestamp()) AS enqueued_at,
               one.batch_id, one.unique_key, one.unique_name, one.semaphore, one.ordinal, one.duration,
               one.semaphore IS NOT NULL AND one.ordinal IS NULL AS parks,
               coalesce(%(due_at)s::timestamptz, statement_timestamp() + %(due_in)s::interval) AS due_at
        FROM unnest(%(ids)s::bigint[], %(queues)s::text[], %(priorities)s::smallint[], %(tasks)s::text[],
                    %(backends)s::text[], %(payloads)s::text[], %(constraints)s::text[], %(deliveries)s::int[],
                    %(errors)s::text[], %(enqueued_at)s::timestamptz[], %(batches)s::bigint[],
                    %(unique_keys)s::text[], %(unique_names)s::text[], %(semaphores)s::text[], %(ordinals)s::int[],
                    %(durations)s::float8[])
             WITH ORDINALITY AS one (id, queue, priority, task, backend, payload, constraints, delivery, errors,
                                     enqueued_at, batch_id, unique_key, unique_name, semaphore, ordinal, duration, nth)
        ORDER BY one.nth
    ), taken AS (
        INSERT INTO pgbus_uniqueness_keys (key, name, message_id, strategy, queue)
        SELECT unique_key, unique_name, id, 'until_executed', queue
        FROM asked
        WHERE unique_key IS NOT NULL
        ORDER BY unique_key, nth
        ON CONFLICT (key) DO NOTHING
        RETURNING message_id
    ), entering AS (
        SELECT asked.*, asked.due_at > statement_timestamp() AS later
        FROM asked
        WHERE asked.unique_key IS NULL
           OR asked.id IN (SELECT message_id FROM taken)
    ), slot AS (
        INSERT INTO pgbus_semaphore_slots (message_id, key, ordinal, duration)
        SELECT id, semaphore, ordinal, duration
        FROM entering
        WHERE ordinal IS NOT NULL
        ON CONFLICT DO NOTHING -- only under a stricter isolation than ours: PostgreSQL's 40001
    ), parked AS (
        INSERT INTO pgbus_blocked_executions (id, queue, priority, task, backend, payload, delivery, errors,
                                              constraints, batch_id, enqueued_at, waits_for, key, semaphore, due_at)
        SELECT id, queue, priority, task, backend, payload::json, delivery, errors::jsonb, constraints::json,
               batch_id, enqueued_at, 'semaphore', semaphore, semaphore, CASE WHEN later THEN due_at END
        FROM entering
        WHERE parks
        ORDER BY nth
    ), delayed AS (
        INSERT INTO pgbus_delayed (id, queue, priority, task, backend, payload, delivery, errors, constraints,
                                   batch_id, enqueued_at, due_at, reason)
        SELECT id, queue, priority, task, backend, payload::json, delivery, errors::jsonb, constraints::json,
               batch_id, enqueued_at, due_at, 'scheduled'
        FROM entering
        WHERE NOT parks
          AND later
        ORDER BY nth
    ), ready AS (
        INSERT INTO pgbus_messages (id, queue, priority, task, backend, payload, delivery, errors, constraints,
                                    batch_id, enqueued_at)
        SELECT id, queue, priority, task, backend, payload::json, delivery, errors::jsonb, constraints::json,
               batch_id, enqueued_at
        FROM entering
        WHERE NOT parks
          AND later IS NOT TRUE
        ORDER BY nth
        RETURNING id, position
    )
    SELECT entering.nth,
           entering.id,
           entering.queue,
           entering.priority,
           entering.enqueued_at,
           entering.parks,
           ready.position,
           CASE WHEN entering.later THEN extract(epoch FROM entering.due_at - statement_timestamp())::float8 END
               AS due_in
    FROM entering
    LEFT JOIN ready ON ready.id = entering.id
    ORDER BY entering.nth
    """
)

# For tasks that are stored later, in one go: whoever enqueues has their results already.
GIVE_IDS = Statement(
    sql="""
    SELECT nextval('pgbus_task_id') AS id, statement_timestamp() AS at
    FROM generate_series(1, %(count)s::int)
    """
)

# Uniqueness keys of batches that are finished or nowhere: only a hand in psql leaves one behind.
FREE_BATCH_KEYS = Statement(
    sql="""
    WITH mine AS (
        SELECT held.key
        FROM pgbus_uniqueness_keys AS held
        WHERE held.strategy = 'until_finished'
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_batches AS batch
              WHERE batch.id = held.message_id
                AND batch.finished_at IS NULL
          )
        ORDER BY held.key
        LIMIT %(limit)s::int
        FOR UPDATE OF held SKIP LOCKED
    )
    DELETE FROM pgbus_uniqueness_keys AS held
    USING mine
    WHERE held.key = mine.key
    RETURNING held.key
    """,
    locks=("uniqueness_keys",),
)

ANY_WAITING = Statement(
    sql="""
    SELECT EXISTS (SELECT 1 FROM pgbus_delayed) AS delayed,
           EXISTS (SELECT 1 FROM pgbus_blocked_executions) AS parked,
           EXISTS (
               SELECT 1
               FROM pgbus_semaphore_slots AS slot
               WHERE slot.leased_until < statement_timestamp()
                 AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval
           ) AS silent
    """
)
