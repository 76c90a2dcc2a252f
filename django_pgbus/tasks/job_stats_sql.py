"""
The statements behind `job_stats.py`: they only read, and none looks at more than a fixed number of rows.

Jobs are listed by id, the newest first, which is the order of the primary key of every table they can be in. What no index
knows is looked for among the next `reach` rows of each table; `low` then says how far that was.
"""

from django_pgbus.postgres import Statement

# One statement, one snapshot: a job that moves meanwhile is seen in exactly one place. Where a table has more rows than were
# looked at, what the others have below its lowest is left for the next page.
JOBS = Statement(
    sql="""
    WITH line AS MATERIALIZED (
        SELECT message.id, message.queue, message.priority, message.task, message.topic, message.event_id,
               message.batch_id, message.attempts, message.enqueued_at, message.suspect, message.discard_requested,
               message.leased_until, message.worker, message.ready_at, message.claimed_at
        FROM pgbus_messages AS message
        WHERE 'line' = ANY (%(places)s::text[])
          AND message.id < %(before)s::bigint
          AND (%(ids)s::bigint[] IS NULL OR message.id = ANY (%(ids)s::bigint[]))
        ORDER BY message.id DESC
        LIMIT %(reach)s::int
    ), later AS MATERIALIZED (
        SELECT delayed.id, delayed.queue, delayed.priority, delayed.task, delayed.topic, delayed.event_id,
               delayed.batch_id, delayed.attempts, delayed.enqueued_at, delayed.due_at, delayed.reason
        FROM pgbus_delayed AS delayed
        WHERE 'delayed' = ANY (%(places)s::text[])
          AND delayed.id < %(before)s::bigint
        ORDER BY delayed.id DESC
        LIMIT %(reach)s::int
    ), parked AS MATERIALIZED (
        SELECT blocked.id, blocked.queue, blocked.priority, blocked.task, blocked.topic, blocked.event_id,
               blocked.batch_id, blocked.attempts, blocked.enqueued_at, blocked.due_at, blocked.waits_for, blocked.key,
               blocked.parked_at
        FROM pgbus_blocked_executions AS blocked
        WHERE 'parked' = ANY (%(places)s::text[])
          AND blocked.id < %(before)s::bigint
        ORDER BY blocked.id DESC
        LIMIT %(reach)s::int
    ), done AS MATERIALIZED (
        SELECT archived.id, archived.queue, archived.priority, archived.task, archived.topic, archived.event_id,
               archived.batch_id, archived.attempts, archived.enqueued_at, archived.outcome, archived.note,
               archived.worker, archived.started_at, archived.finished_at
        FROM pgbus_archive AS archived
        WHERE 'done' = ANY (%(places)s::text[])
          AND archived.id < %(before)s::bigint
        ORDER BY archived.id DESC
        LIMIT %(reach)s::int
    ), dead AS MATERIALIZED (
        SELECT letter.id, letter.queue, letter.priority, letter.task, letter.topic, letter.event_id,
               letter.batch_id, letter.attempts, letter.enqueued_at, letter.reason, letter.worker, letter.started_at,
               letter.died_at
        FROM pgbus_dead_letters AS letter
        WHERE 'dead' = ANY (%(places)s::text[])
          AND letter.id < %(before)s::bigint
        ORDER BY letter.id DESC
        LIMIT %(reach)s::int
    ), looked AS (
        SELECT coalesce(max(far.low), 0) AS low
        FROM (
            SELECT CASE WHEN count(*) >= %(reach)s::int THEN min(line.id) END AS low FROM line
            UNION ALL
            SELECT CASE WHEN count(*) >= %(reach)s::int THEN min(later.id) END FROM later
            UNION ALL
            SELECT CASE WHEN count(*) >= %(reach)s::int THEN min(parked.id) END FROM parked
            UNION ALL
            SELECT CASE WHEN count(*) >= %(reach)s::int THEN min(done.id) END FROM done
            UNION ALL
            SELECT CASE WHEN count(*) >= %(reach)s::int THEN min(dead.id) END FROM dead
        ) AS far
    ), seen AS (
        SELECT CASE WHEN line.leased_until IS NULL THEN 'ready' ELSE 'running' END AS state,
               line.id, line.queue, line.priority, line.task, line.topic, line.event_id, line.batch_id, line.attempts,
               line.enqueued_at, line.suspect, line.discard_requested, line.leased_until, line.worker,
               NULL::timestamptz AS due_at, '' AS reason, '' AS waits_for, '' AS key,
               CASE WHEN line.leased_until IS NULL THEN line.ready_at ELSE line.claimed_at END AS since,
               NULL::timestamptz AS started_at
        FROM line
        UNION ALL
        SELECT 'delayed', later.id, later.queue, later.priority, later.task, later.topic, later.event_id,
               later.batch_id, later.attempts, later.enqueued_at, false, false, NULL, NULL, later.due_at, later.reason,
               '', '', NULL, NULL
        FROM later
        UNION ALL
        SELECT 'parked', parked.id, parked.queue, parked.priority, parked.task, parked.topic, parked.event_id,
               parked.batch_id, parked.attempts, parked.enqueued_at, false, false, NULL, NULL, parked.due_at, '',
               parked.waits_for, parked.key, parked.parked_at, NULL
        FROM parked
        UNION ALL
        SELECT done.outcome, done.id, done.queue, done.priority, done.task, done.topic, done.event_id, done.batch_id,
               done.attempts, done.enqueued_at, false, false, NULL, done.worker, NULL, done.note, '', '',
               done.finished_at, done.started_at
        FROM done
        UNION ALL
        SELECT 'dead', dead.id, dead.queue, dead.priority, dead.task, dead.topic, dead.event_id, dead.batch_id,
               dead.attempts, dead.enqueued_at, false, false, NULL, dead.worker, NULL, dead.reason, '', '',
               dead.died_at, dead.started_at
        FROM dead
    ), chosen AS (
        SELECT seen.state, seen.id, seen.queue, seen.priority, seen.task, seen.topic, seen.event_id, seen.batch_id,
               seen.attempts, seen.enqueued_at, seen.suspect, seen.discard_requested, seen.leased_until, seen.worker,
               seen.due_at, seen.reason, seen.waits_for, seen.key, seen.since, seen.started_at
        FROM seen
        WHERE seen.id >= (SELECT looked.low FROM looked)
          AND seen.state = ANY (%(states)s::text[])
          AND (%(queue)s::text = '' OR seen.queue = %(queue)s::text)
          AND (strpos(lower(seen.task), %(text)s::text) > 0 OR strpos(lower(seen.topic), %(text)s::text) > 0)
        ORDER BY seen.id DESC
        LIMIT %(most)s::int + 1
    )
    SELECT looked.low,
           chosen.state, chosen.id, chosen.queue, chosen.priority, chosen.task, chosen.topic, chosen.event_id,
           chosen.batch_id, chosen.attempts, chosen.enqueued_at, chosen.suspect, chosen.discard_requested,
           chosen.leased_until, chosen.worker, chosen.due_at, chosen.reason, chosen.waits_for, chosen.key, chosen.since,
           chosen.started_at,
           CASE chosen.state
               WHEN 'dead'
               THEN (
                   SELECT left(letter.errors -> -1 ->> 'exception', 300)
                   FROM pgbus_dead_letters AS letter
                   WHERE letter.id = chosen.id
               )
               WHEN 'delayed'
               THEN (
                   SELECT left(delayed.errors -> -1 ->> 'exception', 300)
                   FROM pgbus_delayed AS delayed
                   WHERE delayed.id = chosen.id
               )
           END AS exception
    FROM looked
    LEFT JOIN chosen ON true
    ORDER BY chosen.id DESC
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
