"""What the assertions read."""

from django_pgbus.postgres import Statement

# The columns of `tasks.sql.FIND`, for all that waits: in the line and not claimed, or among the delayed.
WAITING = Statement(
    sql="""
    SELECT 'ready' AS state, message.id, message.queue, message.priority, message.task, message.backend,
           message.payload::text AS payload, message.delivery, message.attempts, message.enqueued_at,
           NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, message.errors::text AS errors,
           NULL::text AS result, NULL::uuid AS worker, '' AS note
    FROM pgbus_messages AS message
    WHERE message.leased_until IS NULL
      AND (message.task = %(task)s::text OR %(task)s::text IS NULL)
    UNION ALL
    SELECT 'delayed', delayed.id, delayed.queue, delayed.priority, delayed.task, delayed.backend,
           delayed.payload::text, delayed.delivery, delayed.attempts, delayed.enqueued_at,
           NULL, NULL, delayed.errors::text, NULL, NULL, delayed.reason
    FROM pgbus_delayed AS delayed
    WHERE delayed.task = %(task)s::text OR %(task)s::text IS NULL
    ORDER BY id
    """
)

PAUSED = Statement(
    sql="""
    SELECT queue
    FROM pgbus_queue_states
    WHERE paused_at IS NOT NULL
    """
)

# Time does not pass in a test: the task that would be due next is due now.
MAKE_NEXT_DUE = Statement(
    sql="""
    UPDATE pgbus_delayed AS delayed
    SET due_at = statement_timestamp()
    FROM (
        SELECT waiting.id
        FROM pgbus_delayed AS waiting
        WHERE waiting.queue = ANY (%(queues)s::text[])
        ORDER BY waiting.due_at, waiting.id
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS next
    WHERE delayed.id = next.id
      AND delayed.due_at > statement_timestamp()
    """,
    locks=("delayed",),
)
