"""
The statements behind `stats.py`: they only read, and none looks at more than a fixed number of rows.

Copies of events are found by the index (event_id, id) of each table they can be in, which holds nothing else, however many
tasks stand there; most ids of events tell the time, so its order is that of publishing. A text is looked for among the
first `reach` of them. One event's copies are asked for with BETWEEN, so that no index but theirs gives their order
(`batches/stats_sql.py`).
"""

from django_pgbus.postgres import Statement

# What runs was published before most of what waits, so it stands among the first.
COUNTS = Statement(
    sql="""
    SELECT line.number - line.running AS ready,
           line.running,
           line.number AS in_line,
           (
               SELECT count(*)
               FROM (
                   SELECT delayed.id
                   FROM pgbus_delayed AS delayed
                   WHERE delayed.event_id IS NOT NULL
                   ORDER BY delayed.event_id, delayed.id
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS delayed,
           (
               SELECT count(*)
               FROM (
                   SELECT letter.id
                   FROM pgbus_dead_letters AS letter
                   WHERE letter.event_id IS NOT NULL
                   ORDER BY letter.event_id, letter.id
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS dead,
           (
               SELECT count(*)
               FROM (
                   SELECT archived.id
                   FROM pgbus_archive AS archived
                   WHERE archived.event_id IS NOT NULL
                   ORDER BY archived.event_id, archived.id
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS processed
    FROM (
        SELECT count(*) AS number, count(first.leased_until) AS running
        FROM (
            SELECT message.leased_until
            FROM pgbus_messages AS message
            WHERE message.event_id IS NOT NULL
            ORDER BY message.event_id, message.id
            LIMIT %(limit)s::int + 1
        ) AS first
    ) AS line
    """
)

# What was published first stands first: it should have been handled by now.
PENDING = Statement(
    sql="""
    SELECT copy.place, copy.id, copy.event_id, copy.topic, copy.task, copy.queue, copy.attempts, copy.suspect,
           copy.discard_requested, copy.leased_until, copy.worker, copy.due_at, copy.reason, copy.note, copy.enqueued_at,
           copy.started_at, copy.ended_at
    FROM (
        (
            SELECT 'line' AS place, line.id, line.event_id, line.topic, line.task, line.queue, line.attempts,
                   line.suspect, line.discard_requested, line.leased_until, line.worker,
                   NULL::timestamptz AS due_at, '' AS reason, '' AS note, line.enqueued_at,
                   line.claimed_at AS started_at, NULL::timestamptz AS ended_at
            FROM (
                SELECT message.id, message.event_id, message.topic, message.task, message.queue, message.attempts,
                       message.suspect, message.discard_requested, message.leased_until, message.worker,
                       message.enqueued_at, message.claimed_at
                FROM pgbus_messages AS message
                WHERE message.event_id IS NOT NULL
                ORDER BY message.event_id, message.id
                LIMIT %(reach)s::int
            ) AS line
            WHERE strpos(lower(line.topic), %(text)s::text) > 0
               OR strpos(lower(line.task), %(text)s::text) > 0
            ORDER BY line.event_id, line.id
            LIMIT %(most)s::int
        )
        UNION ALL
        (
            SELECT 'delayed', later.id, later.event_id, later.topic, later.task, later.queue, later.attempts,
                   false, false, NULL, NULL,
                   later.due_at, later.reason, '', later.enqueued_at,
                   NULL, NULL
            FROM (
                SELECT delayed.id, delayed.event_id, delayed.topic, delayed.task, delayed.queue, delayed.attempts,
                       delayed.due_at, delayed.reason, delayed.enqueued_at
                FROM pgbus_delayed AS delayed
                WHERE delayed.event_id IS NOT NULL
                ORDER BY delayed.event_id, delayed.id
                LIMIT %(reach)s::int
            ) AS later
            WHERE strpos(lower(later.topic), %(text)s::text) > 0
               OR strpos(lower(later.task), %(text)s::text) > 0
            ORDER BY later.event_id, later.id
            LIMIT %(most)s::int
        )
    ) AS copy
    ORDER BY copy.event_id, copy.id
    LIMIT %(most)s::int
    """
)

DEAD = Statement(
    sql="""
    SELECT 'dead' AS place, dead.id, dead.event_id, dead.topic, dead.task, dead.queue, dead.attempts, false AS suspect,
           false AS discard_requested, NULL::timestamptz AS leased_until, dead.worker, NULL::timestamptz AS due_at,
           dead.reason, '' AS note, dead.enqueued_at, dead.started_at, dead.died_at AS ended_at
    FROM (
        SELECT letter.id, letter.event_id, letter.topic, letter.task, letter.queue, letter.attempts, letter.worker,
               letter.reason, letter.enqueued_at, letter.started_at, letter.died_at
        FROM pgbus_dead_letters AS letter
        WHERE letter.event_id IS NOT NULL
        ORDER BY letter.event_id DESC, letter.id DESC
        LIMIT %(reach)s::int
    ) AS dead
    WHERE strpos(lower(dead.topic), %(text)s::text) > 0
       OR strpos(lower(dead.task), %(text)s::text) > 0
    ORDER BY dead.event_id DESC, dead.id DESC
    LIMIT %(most)s::int
    """
)

PROCESSED = Statement(
    sql="""
    SELECT 'done' AS place, done.id, done.event_id, done.topic, done.task, done.queue, done.attempts, false AS suspect,
           false AS discard_requested, NULL::timestamptz AS leased_until, done.worker, NULL::timestamptz AS due_at,
           done.outcome AS reason, done.note, done.enqueued_at, done.started_at, done.finished_at AS ended_at
    FROM (
        SELECT archived.id, archived.event_id, archived.topic, archived.task, archived.queue, archived.attempts,
               archived.worker, archived.outcome, archived.note, archived.enqueued_at, archived.started_at,
               archived.finished_at
        FROM pgbus_archive AS archived
        WHERE archived.event_id IS NOT NULL
        ORDER BY archived.event_id DESC, archived.id DESC
        LIMIT %(reach)s::int
    ) AS done
    WHERE strpos(lower(done.topic), %(text)s::text) > 0
       OR strpos(lower(done.task), %(text)s::text) > 0
    ORDER BY done.event_id DESC, done.id DESC
    LIMIT %(most)s::int
    """
)

# One snapshot sees a copy in exactly one place, or in none.
COPIES = Statement(
    sql="""
    SELECT copy.place, copy.id, copy.event_id, copy.topic, copy.task, copy.queue, copy.attempts, copy.suspect,
           copy.discard_requested, copy.leased_until, copy.worker, copy.due_at, copy.reason, copy.note, copy.enqueued_at,
           copy.started_at, copy.ended_at
    FROM (
        (
            SELECT 'line' AS place, message.id, message.event_id, message.topic, message.task, message.queue,
                   message.attempts, message.suspect, message.discard_requested, message.leased_until, message.worker,
                   NULL::timestamptz AS due_at, '' AS reason, '' AS note, message.enqueued_at,
                   message.claimed_at AS started_at, NULL::timestamptz AS ended_at
            FROM pgbus_messages AS message
            WHERE message.event_id BETWEEN %(event)s::uuid AND %(event)s::uuid
            ORDER BY message.event_id, message.id
            LIMIT %(most)s::int
        )
        UNION ALL
        (
            SELECT 'delayed', delayed.id, delayed.event_id, delayed.topic, delayed.task, delayed.queue,
                   delayed.attempts, false, false, NULL, NULL,
                   delayed.due_at, delayed.reason, '', delayed.enqueued_at,
                   NULL, NULL
            FROM pgbus_delayed AS delayed
            WHERE delayed.event_id BETWEEN %(event)s::uuid AND %(event)s::uuid
            ORDER BY delayed.event_id, delayed.id
            LIMIT %(most)s::int
        )
        UNION ALL
        (
            SELECT 'dead', letter.id, letter.event_id, letter.topic, letter.task, letter.queue,
                   letter.attempts, false, false, NULL, letter.worker,
                   NULL, letter.reason, '', letter.enqueued_at,
                   letter.started_at, letter.died_at
            FROM pgbus_dead_letters AS letter
            WHERE letter.event_id BETWEEN %(event)s::uuid AND %(event)s::uuid
            ORDER BY letter.event_id, letter.id
            LIMIT %(most)s::int
        )
        UNION ALL
        (
            SELECT 'done', archived.id, archived.event_id, archived.topic, archived.task, archived.queue,
                   archived.attempts, false, false, NULL, archived.worker,
                   NULL, archived.outcome, archived.note, archived.enqueued_at,
                   archived.started_at, archived.finished_at
            FROM pgbus_archive AS archived
            WHERE archived.event_id BETWEEN %(event)s::uuid AND %(event)s::uuid
            ORDER BY archived.event_id, archived.id
            LIMIT %(most)s::int
        )
    ) AS copy
    ORDER BY copy.id
    LIMIT %(most)s::int
    """
)

# By a part of pattern or handler, or by a topic: then those that would get it. Only an expression all of whose words the
# topic has is asked, as when publishing (`sql.PUBLISH`).
SUBSCRIPTIONS = Statement(
    sql="""
    SELECT known.pattern, known.handler, known.queue, known.priority, known.idempotent, known.created_at,
           known.declared_at
    FROM (
        SELECT subscription.pattern, subscription.handler, subscription.queue, subscription.priority,
               subscription.idempotent, subscription.regex, subscription.created_at, subscription.declared_at
        FROM pgbus_subscriptions AS subscription
        ORDER BY subscription.handler, subscription.pattern
        LIMIT %(reach)s::int
    ) AS known
    WHERE strpos(lower(known.pattern), lower(%(text)s::text)) > 0
       OR strpos(lower(known.handler), lower(%(text)s::text)) > 0
       OR CASE
              WHEN string_to_array(known.pattern, '.') <@ string_to_array(%(text)s::text || '.*.#', '.')
              THEN '.' || %(text)s::text ~ known.regex
              ELSE false
          END
    ORDER BY known.handler, known.pattern
    LIMIT %(most)s::int
    """
)

# Those of these topics that some handler gets by now; found as a publish finds them.
HANDLED = Statement(
    sql="""
    SELECT topic.name
    FROM (
        SELECT asked.name,
               string_to_array(asked.prefixes, ' ') AS prefixes,
               string_to_array(asked.suffixes, ' ') AS suffixes,
               string_to_array(asked.name || '.*.#', '.') AS words
        FROM unnest(%(topics)s::text[], %(prefixes)s::text[], %(suffixes)s::text[]) AS asked (name, prefixes, suffixes)
    ) AS topic
    WHERE EXISTS (
        SELECT 1
        FROM pgbus_subscriptions AS subscription
        WHERE subscription.prefix = ANY (topic.prefixes)
          AND subscription.suffix = ANY (topic.suffixes)
          AND CASE
                  WHEN string_to_array(subscription.pattern, '.') <@ topic.words
                  THEN '.' || topic.name ~ subscription.regex
                  ELSE false
              END
    )
    """
)
