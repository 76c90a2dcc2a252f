"""
The statements behind `stats.py`: jobs wherever they are. They only read, and none looks at more than a fixed number of rows.

All ids come from one sequence, so the newest of all tables are found by their primary keys, and a page goes on below the
last id of the one before: no page costs more than the first. What belongs to a page is found by ids alone, then read.
"""

from django_pgbus.postgres import Statement

# No index knows a state, a queue or a part of a path: the newest `reach` rows of each table below `within` are looked at,
# and `unseen` is the highest id that this look did not get to. One statement, one snapshot: a job that moves meanwhile is
# found once.
FOUND = Statement(
    sql="""
    SELECT unseen.id AS unseen, found.id
    FROM (
        SELECT max(next.id) AS id
        FROM (
            (
                SELECT message.id
                FROM pgbus_messages AS message
                WHERE 'line' = ANY (%(places)s::text[])
                  AND message.id < %(within)s::bigint
                  AND (%(ids)s::bigint[] IS NULL OR message.id = ANY (%(ids)s::bigint[]))
                ORDER BY message.id DESC
                OFFSET %(reach)s::int
                LIMIT 1
            )
            UNION ALL
            (
                SELECT delayed.id
                FROM pgbus_delayed AS delayed
                WHERE 'delayed' = ANY (%(places)s::text[])
                  AND delayed.id < %(within)s::bigint
                ORDER BY delayed.id DESC
                OFFSET %(reach)s::int
                LIMIT 1
            )
            UNION ALL
            (
                SELECT parked.id
                FROM pgbus_blocked_executions AS parked
                WHERE 'parked' = ANY (%(places)s::text[])
                  AND parked.id < %(within)s::bigint
                ORDER BY parked.id DESC
                OFFSET %(reach)s::int
                LIMIT 1
            )
            UNION ALL
            (
                SELECT archived.id
                FROM pgbus_archive AS archived
                WHERE 'done' = ANY (%(places)s::text[])
                  AND archived.id < %(within)s::bigint
                ORDER BY archived.id DESC
                OFFSET %(reach)s::int
                LIMIT 1
            )
            UNION ALL
            (
                SELECT letter.id
                FROM pgbus_dead_letters AS letter
                WHERE 'dead' = ANY (%(places)s::text[])
                  AND letter.id < %(within)s::bigint
                ORDER BY letter.id DESC
                OFFSET %(reach)s::int
                LIMIT 1
            )
        ) AS next
    ) AS unseen
    LEFT JOIN (
        SELECT seen.id
        FROM (
            (
                SELECT message.id
                FROM (
                    SELECT id, queue, task, topic,
                           CASE WHEN leased_until IS NULL THEN 'ready' ELSE 'running' END AS state
                    FROM pgbus_messages
                    WHERE 'line' = ANY (%(places)s::text[])
                      AND id < %(within)s::bigint
                      AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))
                    ORDER BY id DESC
                    LIMIT %(reach)s::int
                ) AS message
                WHERE message.id < %(below)s::bigint
                  AND message.state = ANY (%(states)s::text[])
                  AND (%(queue)s::text = '' OR message.queue = %(queue)s::text)
                  AND (strpos(lower(message.task), lower(%(text)s::text)) > 0
                       OR strpos(lower(message.topic), lower(%(text)s::text)) > 0)
                ORDER BY message.id DESC
                LIMIT %(limit)s::int
            )
            UNION ALL
            (
                SELECT delayed.id
                FROM (
                    SELECT id, queue, task, topic
                    FROM pgbus_delayed
                    WHERE 'delayed' = ANY (%(places)s::text[])
                      AND id < %(within)s::bigint
                    ORDER BY id DESC
                    LIMIT %(reach)s::int
                ) AS delayed
                WHERE delayed.id < %(below)s::bigint
                  AND (%(queue)s::text = '' OR delayed.queue = %(queue)s::text)
                  AND (strpos(lower(delayed.task), lower(%(text)s::text)) > 0
                       OR strpos(lower(delayed.topic), lower(%(text)s::text)) > 0)
                ORDER BY delayed.id DESC
                LIMIT %(limit)s::int
            )
            UNION ALL
            (
                SELECT parked.id
                FROM (
                    SELECT id, queue, task, topic
                    FROM pgbus_blocked_executions
                    WHERE 'parked' = ANY (%(places)s::text[])
                      AND id < %(within)s::bigint
                    ORDER BY id DESC
                    LIMIT %(reach)s::int
                ) AS parked
                WHERE parked.id < %(below)s::bigint
                  AND (%(queue)s::text = '' OR parked.queue = %(queue)s::text)
                  AND (strpos(lower(parked.task), lower(%(text)s::text)) > 0
                       OR strpos(lower(parked.topic), lower(%(text)s::text)) > 0)
                ORDER BY parked.id DESC
                LIMIT %(limit)s::int
            )
            UNION ALL
            (
                SELECT archived.id
                FROM (
                    SELECT id, queue, task, topic, outcome AS state
                    FROM pgbus_archive
                    WHERE 'done' = ANY (%(places)s::text[])
                      AND id < %(within)s::bigint
                    ORDER BY id DESC
                    LIMIT %(reach)s::int
                ) AS archived
                WHERE archived.id < %(below)s::bigint
                  AND archived.state = ANY (%(states)s::text[])
                  AND (%(queue)s::text = '' OR archived.queue = %(queue)s::text)
                  AND (strpos(lower(archived.task), lower(%(text)s::text)) > 0
                       OR strpos(lower(archived.topic), lower(%(text)s::text)) > 0)
                ORDER BY archived.id DESC
                LIMIT %(limit)s::int
            )
            UNION ALL
            (
                SELECT letter.id
                FROM (
                    SELECT id, queue, task, topic
                    FROM pgbus_dead_letters
                    WHERE 'dead' = ANY (%(places)s::text[])
                      AND id < %(within)s::bigint
                    ORDER BY id DESC
                    LIMIT %(reach)s::int
                ) AS letter
                WHERE letter.id < %(below)s::bigint
                  AND (%(queue)s::text = '' OR letter.queue = %(queue)s::text)
                  AND (strpos(lower(letter.task), lower(%(text)s::text)) > 0
                       OR strpos(lower(letter.topic), lower(%(text)s::text)) > 0)
                ORDER BY letter.id DESC
                LIMIT %(limit)s::int
            )
        ) AS seen
        ORDER BY seen.id DESC
        LIMIT %(limit)s::int
    ) AS found ON true
    ORDER BY found.id DESC
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
    SELECT message.id, 'line' AS place,
           CASE WHEN message.leased_until IS NULL THEN 'ready' ELSE 'running' END AS state,
           message.queue, message.priority, message.task, message.attempts,
           message.batch_id, message.event_id, message.topic, message.enqueued_at,
           CASE WHEN message.leased_until IS NULL THEN message.ready_at ELSE message.claimed_at END AS since,
           NULL::timestamptz AS due_at, '' AS reason, '' AS waits_for, '' AS key, NULL::text AS constraints,
           message.suspect, message.discard_requested, message.leased_until,
           CASE WHEN message.leased_until IS NOT NULL THEN message.worker END AS worker,
           message.errors -> -1 ->> 'exception' AS exception,
           right(message.errors -> -1 ->> 'traceback', 2000) AS traceback
    FROM pgbus_messages AS message
    WHERE message.id = ANY (%(ids)s::bigint[])
      AND 'line' = ANY (%(places)s::text[])
    UNION ALL
    SELECT delayed.id, 'delayed', 'delayed', delayed.queue, delayed.priority, delayed.task, delayed.attempts,
           delayed.batch_id, delayed.event_id, delayed.topic, delayed.enqueued_at,
           NULL, delayed.due_at, delayed.reason, '', '', NULL,
           false, false, NULL, NULL,
           delayed.errors -> -1 ->> 'exception', right(delayed.errors -> -1 ->> 'traceback', 2000)
    FROM pgbus_delayed AS delayed
    WHERE delayed.id = ANY (%(ids)s::bigint[])
      AND 'delayed' = ANY (%(places)s::text[])
    UNION ALL
    SELECT parked.id, 'parked', 'parked', parked.queue, parked.priority, parked.task, parked.attempts,
           parked.batch_id, parked.event_id, parked.topic, parked.enqueued_at,
           parked.parked_at, parked.due_at, '', parked.waits_for, parked.key, parked.constraints::text,
           parked.suspect, false, NULL, NULL,
           parked.errors -> -1 ->> 'exception', right(parked.errors -> -1 ->> 'traceback', 2000)
    FROM pgbus_blocked_executions AS parked
    WHERE parked.id = ANY (%(ids)s::bigint[])
      AND 'parked' = ANY (%(places)s::text[])
    UNION ALL
    SELECT archived.id, 'done', archived.outcome, archived.queue, archived.priority, archived.task, archived.attempts,
           archived.batch_id, archived.event_id, archived.topic, archived.enqueued_at,
           archived.finished_at, NULL, archived.note, '', '', NULL,
           false, false, NULL, archived.worker, NULL, NULL
    FROM pgbus_archive AS archived
    WHERE archived.id = ANY (%(ids)s::bigint[])
      AND 'done' = ANY (%(places)s::text[])
    UNION ALL
    SELECT letter.id, 'dead', 'dead', letter.queue, letter.priority, letter.task, letter.attempts,
           letter.batch_id, letter.event_id, letter.topic, letter.enqueued_at,
           letter.died_at, NULL, letter.reason, '', '', NULL,
           false, false, NULL, letter.worker,
           letter.errors -> -1 ->> 'exception', right(letter.errors -> -1 ->> 'traceback', 2000)
    FROM pgbus_dead_letters AS letter
    WHERE letter.id = ANY (%(ids)s::bigint[])
      AND 'dead' = ANY (%(places)s::text[])
    ORDER BY 1 DESC
    """
)

# Everything that is known of one job, wherever it is; what belongs to another place is empty.
JOB = Statement(
    sql="""
    SELECT 'line' AS place, CASE WHEN message.leased_until IS NULL THEN 'ready' ELSE 'running' END AS state,
           message.id, message.queue, message.priority, message.task, message.backend, message.delivery,
           message.attempts, message.batch_id, message.event_id, message.topic, message.enqueued_at,
           message.payload::text AS payload, message.constraints::text AS constraints, message.errors::text AS errors,
           message.position, message.suspect, message.discard_requested, message.leased_until, message.worker,
           message.ready_at AS since, NULL::timestamptz AS due_at, '' AS reason, '' AS waits_for, '' AS key,
           NULL::text AS semaphore, NULL::text AS result, message.claimed_at AS started_at,
           NULL::timestamptz AS ended_at, statement_timestamp() AS now
    FROM pgbus_messages AS message
    WHERE message.id = %(id)s::bigint
    UNION ALL
    SELECT 'delayed', 'delayed', delayed.id, delayed.queue, delayed.priority, delayed.task, delayed.backend,
           delayed.delivery, delayed.attempts, delayed.batch_id, delayed.event_id, delayed.topic, delayed.enqueued_at,
           delayed.payload::text, delayed.constraints::text, delayed.errors::text, 0, false, false, NULL, NULL, NULL,
           delayed.due_at, delayed.reason, '', '', NULL, NULL, NULL, NULL, statement_timestamp()
    FROM pgbus_delayed AS delayed
    WHERE delayed.id = %(id)s::bigint
    UNION ALL
    SELECT 'parked', 'parked', blocked.id, blocked.queue, blocked.priority, blocked.task, blocked.backend,
           blocked.delivery, blocked.attempts, blocked.batch_id, blocked.event_id, blocked.topic, blocked.enqueued_at,
           blocked.payload::text, blocked.constraints::text, blocked.errors::text, 0, blocked.suspect, false, NULL,
           NULL, blocked.parked_at, blocked.due_at, '', blocked.waits_for, blocked.key, blocked.semaphore, NULL, NULL,
           NULL, statement_timestamp()
    FROM pgbus_blocked_executions AS blocked
    WHERE blocked.id = %(id)s::bigint
    UNION ALL
    SELECT 'done', archived.outcome, archived.id, archived.queue, archived.priority, archived.task, archived.backend,
           archived.delivery, archived.attempts, archived.batch_id, archived.event_id, archived.topic,
           archived.enqueued_at, archived.payload::text, archived.constraints::text, archived.errors::text, 0, false,
           false, NULL, archived.worker, NULL, NULL, archived.note, '', '', NULL, archived.result::text,
           archived.started_at, archived.finished_at, statement_timestamp()
    FROM pgbus_archive AS archived
    WHERE archived.id = %(id)s::bigint
    UNION ALL
    SELECT 'dead', 'dead', letter.id, letter.queue, letter.priority, letter.task, letter.backend, letter.delivery,
           letter.attempts, letter.batch_id, letter.event_id, letter.topic, letter.enqueued_at, letter.payload::text,
           letter.constraints::text, letter.errors::text, 0, false, false, NULL, letter.worker, NULL, NULL,
           letter.reason, '', '', NULL, NULL, letter.started_at, letter.died_at, statement_timestamp()
    FROM pgbus_dead_letters AS letter
    WHERE letter.id = %(id)s::bigint
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
