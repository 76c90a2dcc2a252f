"""The statements behind `stats.py`: they only read, and none looks at more than a fixed number of rows."""

from django_pgbus.postgres import Statement

TOTAL = Statement(
    sql="""
    SELECT count(*) AS number
    FROM (
        SELECT held.key
        FROM pgbus_uniqueness_keys AS held
        ORDER BY held.key
        LIMIT %(limit)s::int + 1
    ) AS counted
    """
)

OLDEST = Statement(
    sql="""
    SELECT held.key
    FROM pgbus_uniqueness_keys AS held
    ORDER BY held.created_at, held.key
    LIMIT %(most)s::int
    """
)

# One snapshot sees a message in exactly one place, or in none; a batch holds its key until it is finished.
KEYS = Statement(
    sql="""
    SELECT held.key, held.name, held.strategy, held.queue, held.message_id, held.created_at,
           extract(epoch FROM statement_timestamp() - held.created_at)::float8 AS held_for,
           CASE
               WHEN held.strategy = 'until_finished'
               THEN CASE
                   WHEN EXISTS (
                       SELECT 1
                       FROM pgbus_batches AS batch
                       WHERE batch.id = held.message_id
                         AND batch.finished_at IS NULL
                   )
                   THEN 'batch'
                   ELSE ''
               END
               WHEN EXISTS (
                   SELECT 1
                   FROM pgbus_messages AS message
                   WHERE message.id = held.message_id
                     AND message.leased_until IS NOT NULL
               )
               THEN 'running'
               WHEN EXISTS (SELECT 1 FROM pgbus_messages AS message WHERE message.id = held.message_id)
               THEN 'line'
               WHEN EXISTS (SELECT 1 FROM pgbus_delayed AS delayed WHERE delayed.id = held.message_id)
               THEN 'delayed'
               WHEN EXISTS (SELECT 1 FROM pgbus_blocked_executions AS blocked WHERE blocked.id = held.message_id)
               THEN 'parked'
               ELSE ''
           END AS place
    FROM pgbus_uniqueness_keys AS held
    WHERE held.key = ANY (%(keys)s::text[])
    ORDER BY held.created_at, held.key
    """
)
