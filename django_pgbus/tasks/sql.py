"""The statements that read a task wherever it is."""

from django_pgbus.postgres import Statement

# One statement, one snapshot: a task that moves meanwhile is seen in exactly one place.
FIND = Statement(
    sql="""
    SELECT CASE WHEN message.leased_until IS NULL THEN 'ready' ELSE 'running' END AS state,
           message.id, message.queue, message.priority, message.task, message.backend,
           message.payload::text AS payload, message.delivery, message.attempts, message.enqueued_at,
           CASE WHEN message.leased_until IS NOT NULL THEN message.claimed_at END AS started_at,
           NULL::timestamptz AS finished_at, message.errors::text AS errors, NULL::text AS result,
           CASE WHEN message.leased_until IS NOT NULL THEN message.worker END AS worker, '' AS note
    FROM pgbus_messages AS message
    WHERE message.id = %(id)s::bigint
    UNION ALL
    SELECT 'delayed', delayed.id, delayed.queue, delayed.priority, delayed.task, delayed.backend,
           delayed.payload::text, delayed.delivery, delayed.attempts, delayed.enqueued_at,
           NULL, NULL, delayed.errors::text, NULL, NULL, delayed.reason
    FROM pgbus_delayed AS delayed
    WHERE delayed.id = %(id)s::bigint
    UNION ALL
    SELECT archived.outcome, archived.id, archived.queue, archived.priority, archived.task, archived.backend,
           archived.payload::text, archived.delivery, archived.attempts, archived.enqueued_at,
           archived.started_at, archived.finished_at, archived.errors::text, archived.result::text,
           archived.worker, archived.note
    FROM pgbus_archive AS archived
    WHERE archived.id = %(id)s::bigint
    UNION ALL
    SELECT 'dead', letter.id, letter.queue, letter.priority, letter.task, letter.backend,
           letter.payload::text, letter.delivery, letter.attempts, letter.enqueued_at,
           letter.started_at, letter.died_at, letter.errors::text, NULL, letter.worker, letter.reason
    FROM pgbus_dead_letters AS letter
    WHERE letter.id = %(id)s::bigint
    """
)
