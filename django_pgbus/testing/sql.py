"""What the assertions read."""

from django_pgbus.postgres import Statement

# The columns of `tasks.sql.FIND`, for all tasks that wait: in the line and not claimed, among the delayed, or parked.
WAITING = Statement(
    sql="""
    SELECT 'ready' AS state, message.id, message.queue, message.priority, message.task, message.backend,
           message.payload::text AS payload, message.delivery, message.attempts, message.enqueued_at,
           NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, message.errors::text AS errors,
           NULL::text AS result, NULL::uuid AS worker, '' AS note
    FROM pgbus_messages AS message
    WHERE message.leased_until IS NULL
      AND message.topic IS NULL
      AND (message.task = %(task)s::text OR %(task)s::text IS NULL)
    UNION ALL
    SELECT 'delayed', delayed.id, delayed.queue, delayed.priority, delayed.task, delayed.backend,
           delayed.payload::text, delayed.delivery, delayed.attempts, delayed.enqueued_at,
           NULL, NULL, delayed.errors::text, NULL, NULL, delayed.reason
    FROM pgbus_delayed AS delayed
    WHERE delayed.topic IS NULL
      AND (delayed.task = %(task)s::text OR %(task)s::text IS NULL)
    UNION ALL
    SELECT 'parked', parked.id, parked.queue, parked.priority, parked.task, parked.backend,
           parked.payload::text, parked.delivery, parked.attempts, parked.enqueued_at,
           NULL, NULL, parked.errors::text, NULL, NULL, parked.waits_for
    FROM pgbus_blocked_executions AS parked
    WHERE parked.task = %(task)s::text OR %(task)s::text IS NULL
    ORDER BY id
    """
)

# Every copy of every event, wherever it is, oldest event first; the copies of one event follow one another.
PUBLISHED = Statement(
    sql="""
    SELECT copy.event_id, copy.topic, copy.payload, copy.enqueued_at, copy.attempts
    FROM (
        SELECT id, event_id, topic, payload::text AS payload, enqueued_at, attempts FROM pgbus_messages
        UNION ALL
        SELECT id, event_id, topic, payload::text, enqueued_at, attempts FROM pgbus_delayed
        UNION ALL
        SELECT id, event_id, topic, payload::text, enqueued_at, attempts FROM pgbus_archive
        UNION ALL
        SELECT id, event_id, topic, payload::text, enqueued_at, attempts FROM pgbus_dead_letters
    ) AS copy
    WHERE strpos(copy.topic, '/') = 0 -- those of entries have one: STREAM/GROUP
    ORDER BY min(copy.id) OVER (PARTITION BY copy.event_id), copy.id
    """
)

# Nothing is kept of an event without a handler but how often there was one of its topic.
UNROUTED = Statement(
    sql="""
    SELECT counted.name AS topic, sum(counted.amount)::int AS events
    FROM pgbus_event_counts AS counted
    WHERE counted.status = 'unrouted'
    GROUP BY counted.name
    ORDER BY counted.name
    """
)

PAUSED = Statement(
    sql="""
    SELECT queue
    FROM pgbus_queue_states
    WHERE paused_at IS NOT NULL
    """
)

# In a TestCase nothing is committed, so nobody looks: whoever runs the tasks has to.
WAITED_FOR = Statement(
    sql="""
    SELECT DISTINCT parked.waits_for, parked.key
    FROM pgbus_blocked_executions AS parked
    WHERE parked.due_at IS NULL
    """
)

# Time does not pass in a test: the task that would be due next is due now.
NEXT_DUE = Statement(
    sql="""
    SELECT waiting.place, waiting.id
    FROM (
        SELECT 'delayed' AS place, delayed.id, delayed.due_at
        FROM pgbus_delayed AS delayed
        WHERE delayed.queue = ANY (%(queues)s::text[])
        UNION ALL
        SELECT 'parked', parked.id, parked.due_at
        FROM pgbus_blocked_executions AS parked
        WHERE parked.queue = ANY (%(queues)s::text[])
          AND parked.due_at IS NOT NULL
    ) AS waiting
    ORDER BY waiting.due_at, waiting.id
    LIMIT 1
    """
)

MAKE_DELAYED_DUE = Statement(
    sql="""
    UPDATE pgbus_delayed AS delayed
    SET due_at = statement_timestamp()
    WHERE delayed.id = %(id)s::bigint
      AND delayed.due_at > statement_timestamp()
    """,
    locks=("delayed",),
)

MAKE_PARKED_DUE = Statement(
    sql="""
    UPDATE pgbus_blocked_executions AS parked
    SET due_at = statement_timestamp()
    WHERE parked.id = %(id)s::bigint
      AND parked.due_at > statement_timestamp()
    """,
    locks=("blocked_executions",),
)

# The failed entries of a group.
MAKE_ENTRIES_DUE = Statement(
    sql="""
    UPDATE pgbus_stream_exceptions AS exception
    SET due_at = statement_timestamp()
    WHERE exception.group_id = %(group)s::bigint
      AND exception.status = 'ready'
      AND exception.due_at > statement_timestamp()
    """,
    locks=("stream_exceptions",),
)
