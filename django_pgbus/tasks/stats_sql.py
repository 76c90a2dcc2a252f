"""
The statements behind `stats.py`: jobs wherever they are. They only read, and none looks at more than a fixed number of rows.

All ids come from one sequence, so the newest of all tables are found by their primary keys, and a page goes on below the
last id of the one before: no page costs more than the first. What belongs to a page is found by ids alone, then read.
"""

from django_pgbus.postgres import Statement

NEWEST = Statement(
    sql="""
    SELECT newest.id
    FROM (
        (
            SELECT message.id
            FROM pgbus_messages AS message
            WHERE 'line' = ANY (%(places)s::text[])
              AND message.id < %(below)s::bigint
            ORDER BY message.id DESC
            LIMIT %(limit)s::int
        )
        UNION ALL
        (
            SELECT delayed.id
            FROM pgbus_delayed AS delayed
            WHERE 'delayed' = ANY (%(places)s::text[])
              AND delayed.id < %(below)s::bigint
            ORDER BY delayed.id DESC
            LIMIT %(limit)s::int
        )
        UNION ALL
        (
            SELECT parked.id
            FROM pgbus_blocked_executions AS parked
            WHERE 'parked' = ANY (%(places)s::text[])
              AND parked.id < %(below)s::bigint
            ORDER BY parked.id DESC
            LIMIT %(limit)s::int
        )
        UNION ALL
        (
            SELECT letter.id
            FROM pgbus_dead_letters AS letter
            WHERE 'dead' = ANY (%(places)s::text[])
              AND letter.id < %(below)s::bigint
            ORDER BY letter.id DESC
            LIMIT %(limit)s::int
        )
    ) AS newest
    ORDER BY newest.id DESC
    LIMIT %(limit)s::int
    """
)

# No index knows parts of a path or topic: the newest `reach` rows of each table are looked at.
NAMED = Statement(
    sql="""
    SELECT named.id
    FROM (
        (
            SELECT message.id
            FROM (
                SELECT id, task, topic
                FROM pgbus_messages
                WHERE 'line' = ANY (%(places)s::text[])
                ORDER BY id DESC
                LIMIT %(reach)s::int
            ) AS message
            WHERE message.id < %(below)s::bigint
              AND (strpos(lower(message.task), lower(%(text)s::text)) > 0
                   OR strpos(lower(message.topic), lower(%(text)s::text)) > 0)
            ORDER BY message.id DESC
            LIMIT %(limit)s::int
        )
        UNION ALL
        (
            SELECT delayed.id
            FROM (
                SELECT id, task, topic
                FROM pgbus_delayed
                WHERE 'delayed' = ANY (%(places)s::text[])
                ORDER BY id DESC
                LIMIT %(reach)s::int
            ) AS delayed
            WHERE delayed.id < %(below)s::bigint
              AND (strpos(lower(delayed.task), lower(%(text)s::text)) > 0
                   OR strpos(lower(delayed.topic), lower(%(text)s::text)) > 0)
            ORDER BY delayed.id DESC
            LIMIT %(limit)s::int
        )
        UNION ALL
        (
            SELECT parked.id
            FROM (
                SELECT id, task, topic
                FROM pgbus_blocked_executions
                WHERE 'parked' = ANY (%(places)s::text[])
                ORDER BY id DESC
                LIMIT %(reach)s::int
            ) AS parked
            WHERE parked.id < %(below)s::bigint
              AND (strpos(lower(parked.task), lower(%(text)s::text)) > 0
                   OR strpos(lower(parked.topic), lower(%(text)s::text)) > 0)
            ORDER BY parked.id DESC
            LIMIT %(limit)s::int
        )
        UNION ALL
        (
            SELECT letter.id
            FROM (
                SELECT id, task, topic
                FROM pgbus_dead_letters
                WHERE 'dead' = ANY (%(places)s::text[])
                ORDER BY id DESC
                LIMIT %(reach)s::int
            ) AS letter
            WHERE letter.id < %(below)s::bigint
              AND (strpos(lower(letter.task), lower(%(text)s::text)) > 0
                   OR strpos(lower(letter.topic), lower(%(text)s::text)) > 0)
            ORDER BY letter.id DESC
            LIMIT %(limit)s::int
        )
    ) AS named
    ORDER BY named.id DESC
    LIMIT %(limit)s::int
    """
)

# Whether any table holds more rows than a search looks at.
BEYOND = Statement(
    sql="""
    SELECT EXISTS (SELECT 1 FROM pgbus_messages ORDER BY id DESC OFFSET %(reach)s::int)
        OR EXISTS (SELECT 1 FROM pgbus_delayed ORDER BY id DESC OFFSET %(reach)s::int)
        OR EXISTS (SELECT 1 FROM pgbus_blocked_executions ORDER BY id DESC OFFSET %(reach)s::int)
        OR EXISTS (SELECT 1 FROM pgbus_dead_letters ORDER BY id DESC OFFSET %(reach)s::int) AS more
    """
)

# Who has to do with these keys: who is parked for one, in the order in which they are let in, and who holds one. `due_at` is
# NULL for all who may be let in; it is named because the index is sorted by it.
AT_KEYS = Statement(
    sql="""
    (
        SELECT 'parked' AS how, candidate.id
        FROM unnest(%(keys)s::text[]) AS wanted (key)
        CROSS JOIN (VALUES ('semaphore'), ('key')) AS kind (waits_for)
        CROSS JOIN LATERAL (
            SELECT blocked.id
            FROM pgbus_blocked_executions AS blocked
            WHERE blocked.waits_for = kind.waits_for
              AND blocked.key = wanted.key
              AND blocked.due_at IS NULL
            ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
            LIMIT %(limit)s::int
        ) AS candidate
        LIMIT %(limit)s::int
    )
    UNION ALL
    (
        SELECT 'parked', later.id
        FROM unnest(%(keys)s::text[]) AS wanted (key)
        CROSS JOIN (VALUES ('semaphore'), ('key')) AS kind (waits_for)
        CROSS JOIN LATERAL (
            SELECT blocked.id
            FROM pgbus_blocked_executions AS blocked
            WHERE blocked.waits_for = kind.waits_for
              AND blocked.key = wanted.key
              AND blocked.due_at IS NOT NULL
            ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
            LIMIT %(limit)s::int
        ) AS later
        LIMIT %(limit)s::int
    )
    UNION ALL
    (
        SELECT 'slot', slot.message_id
        FROM pgbus_semaphore_slots AS slot
        WHERE slot.key = ANY (%(keys)s::text[])
        ORDER BY slot.key, slot.ordinal
        LIMIT %(limit)s::int
    )
    UNION ALL
    (
        SELECT CASE WHEN held.strategy = 'until_finished' THEN 'batch' ELSE 'lock' END, held.message_id
        FROM pgbus_uniqueness_keys AS held
        WHERE held.key = ANY (%(keys)s::text[])
        ORDER BY held.key
        LIMIT %(limit)s::int
    )
    """
)

# One statement, one snapshot: each job is seen in exactly one place. The last error is read of these rows alone.
JOBS = Statement(
    sql="""
    SELECT message.id, 'line' AS place, message.queue, message.priority, message.task, message.attempts,
           message.batch_id, message.event_id, message.topic, message.enqueued_at,
           CASE WHEN message.leased_until IS NULL THEN message.ready_at ELSE message.claimed_at END AS since,
           NULL::timestamptz AS due_at, '' AS reason, '' AS key, NULL::text AS constraints,
           message.suspect, message.discard_requested, message.leased_until,
           CASE WHEN message.leased_until IS NOT NULL THEN message.worker END AS worker,
           message.errors -> -1 ->> 'exception' AS exception,
           right(message.errors -> -1 ->> 'traceback', 2000) AS traceback
    FROM pgbus_messages AS message
    WHERE message.id = ANY (%(ids)s::bigint[])
      AND 'line' = ANY (%(places)s::text[])
    UNION ALL
    SELECT delayed.id, 'delayed', delayed.queue, delayed.priority, delayed.task, delayed.attempts,
           delayed.batch_id, delayed.event_id, delayed.topic, delayed.enqueued_at,
           NULL, delayed.due_at, delayed.reason, '', NULL,
           false, false, NULL, NULL,
           delayed.errors -> -1 ->> 'exception', right(delayed.errors -> -1 ->> 'traceback', 2000)
    FROM pgbus_delayed AS delayed
    WHERE delayed.id = ANY (%(ids)s::bigint[])
      AND 'delayed' = ANY (%(places)s::text[])
    UNION ALL
    SELECT parked.id, 'parked', parked.queue, parked.priority, parked.task, parked.attempts,
           parked.batch_id, parked.event_id, parked.topic, parked.enqueued_at,
           parked.parked_at, parked.due_at, parked.waits_for, parked.key, parked.constraints::text,
           parked.suspect, false, NULL, NULL,
           parked.errors -> -1 ->> 'exception', right(parked.errors -> -1 ->> 'traceback', 2000)
    FROM pgbus_blocked_executions AS parked
    WHERE parked.id = ANY (%(ids)s::bigint[])
      AND 'parked' = ANY (%(places)s::text[])
    UNION ALL
    SELECT letter.id, 'dead', letter.queue, letter.priority, letter.task, letter.attempts,
           letter.batch_id, letter.event_id, letter.topic, letter.enqueued_at,
           letter.died_at, NULL, letter.reason, '', NULL,
           false, false, NULL, letter.worker,
           letter.errors -> -1 ->> 'exception', right(letter.errors -> -1 ->> 'traceback', 2000)
    FROM pgbus_dead_letters AS letter
    WHERE letter.id = ANY (%(ids)s::bigint[])
      AND 'dead' = ANY (%(places)s::text[])
    UNION ALL
    SELECT archived.id, 'done', archived.queue, archived.priority, archived.task, archived.attempts,
           archived.batch_id, archived.event_id, archived.topic, archived.enqueued_at,
           archived.finished_at, NULL, archived.outcome, '', NULL,
           false, false, NULL, archived.worker, NULL, archived.note
    FROM pgbus_archive AS archived
    WHERE archived.id = ANY (%(ids)s::bigint[])
      AND 'done' = ANY (%(places)s::text[])
    ORDER BY 1 DESC
    """
)

# Beside what the queues count: a retry is due within minutes, so it stands among the first of its queue.
COUNTS = Statement(
    sql="""
    SELECT (
               SELECT count(*)
               FROM (SELECT 1 FROM pgbus_blocked_executions ORDER BY id LIMIT %(limit)s::int + 1) AS parked
           ) AS parked,
           (
               SELECT count(*)
               FROM (SELECT 1 FROM pgbus_archive ORDER BY id LIMIT %(limit)s::int + 1) AS archived
           ) AS finished
    """
)
