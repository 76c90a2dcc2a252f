"""
The statements behind `stats.py`: they only read, and none looks at more than a fixed number of rows.

Members are found by the index (batch_id, id) of each table they can be in, however many jobs of others stand there. With
an equality any index that knows ids could give their order, and a planner who believes that the batch is most of a table
walks through all of it to find that the batch has left; with BETWEEN only ours can.
"""

from django_pgbus.postgres import Statement

# As `sql.STANDING`, which looks at all that was counted: a million members that were enqueued one by one are a million
# rows until a worker folds them. The numbers only rise, so those of the first rows are a lower bound.
STANDING = Statement(
    sql="""
    SELECT batch.id,
           batch.total + counted.added AS total,
           batch.succeeded + counted.succeeded AS succeeded,
           batch.failed + counted.failed AS failed,
           counted.rows
    FROM pgbus_batches AS batch
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(first.added), 0)::bigint AS added,
               coalesce(sum(first.succeeded), 0)::bigint AS succeeded,
               coalesce(sum(first.failed), 0)::bigint AS failed,
               count(*) AS rows
        FROM (
            SELECT one.added, one.succeeded, one.failed
            FROM pgbus_batch_counts AS one
            WHERE one.batch_id BETWEEN batch.id AND batch.id
            ORDER BY one.batch_id, one.id
            LIMIT %(each)s::int + 1
        ) AS first
    ) AS counted
    WHERE batch.id = ANY (%(ids)s::bigint[])
    ORDER BY batch.id
    """
)

# One snapshot sees a member in exactly one place, or in none. What runs has been in the line for longest, so it stands
# among the first.
PLACES = Statement(
    sql="""
    SELECT line.number - line.running AS ready,
           line.running,
           line.number AS in_line,
           (
               SELECT count(*)
               FROM (
                   SELECT delayed.id
                   FROM pgbus_delayed AS delayed
                   WHERE delayed.batch_id BETWEEN %(id)s::bigint AND %(id)s::bigint
                   ORDER BY delayed.batch_id, delayed.id
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS delayed,
           (
               SELECT count(*)
               FROM (
                   SELECT blocked.id
                   FROM pgbus_blocked_executions AS blocked
                   WHERE blocked.batch_id BETWEEN %(id)s::bigint AND %(id)s::bigint
                   ORDER BY blocked.batch_id, blocked.id
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS parked,
           (
               SELECT count(*)
               FROM (
                   SELECT letter.id
                   FROM pgbus_dead_letters AS letter
                   WHERE letter.batch_id BETWEEN %(id)s::bigint AND %(id)s::bigint
                   ORDER BY letter.batch_id, letter.id
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS dead
    FROM (
        SELECT count(*) AS number, count(first.leased_until) AS running
        FROM (
            SELECT message.leased_until
            FROM pgbus_messages AS message
            WHERE message.batch_id BETWEEN %(id)s::bigint AND %(id)s::bigint
            ORDER BY message.batch_id, message.id
            LIMIT %(limit)s::int + 1
        ) AS first
    ) AS line
    """
)

OUTSTANDING = Statement(
    sql="""
    SELECT member.place, member.id, member.task, member.queue, member.attempts, member.suspect,
           member.discard_requested, member.leased_until, member.worker, member.due_at, member.reason, member.waits_for
    FROM (
        (
            SELECT 'line' AS place, message.id, message.task, message.queue, message.attempts, message.suspect,
                   message.discard_requested, message.leased_until, message.worker, NULL::timestamptz AS due_at,
                   '' AS reason, '' AS waits_for
            FROM pgbus_messages AS message
            WHERE message.batch_id BETWEEN %(id)s::bigint AND %(id)s::bigint
            ORDER BY message.batch_id, message.id
            LIMIT %(most)s::int
        )
        UNION ALL
        (
            SELECT 'delayed', delayed.id, delayed.task, delayed.queue, delayed.attempts, false,
                   false, NULL, NULL, delayed.due_at,
                   delayed.reason, ''
            FROM pgbus_delayed AS delayed
            WHERE delayed.batch_id BETWEEN %(id)s::bigint AND %(id)s::bigint
            ORDER BY delayed.batch_id, delayed.id
            LIMIT %(most)s::int
        )
        UNION ALL
        (
            SELECT 'parked', blocked.id, blocked.task, blocked.queue, blocked.attempts, blocked.suspect,
                   false, NULL, NULL, blocked.due_at,
                   '', blocked.waits_for
            FROM pgbus_blocked_executions AS blocked
            WHERE blocked.batch_id BETWEEN %(id)s::bigint AND %(id)s::bigint
            ORDER BY blocked.batch_id, blocked.id
            LIMIT %(most)s::int
        )
    ) AS member
    ORDER BY member.id
    LIMIT %(most)s::int
    """
)

DEAD = Statement(
    sql="""
    SELECT letter.id, letter.task, letter.queue, letter.attempts, letter.reason, letter.died_at
    FROM pgbus_dead_letters AS letter
    WHERE letter.batch_id BETWEEN %(id)s::bigint AND %(id)s::bigint
    ORDER BY letter.batch_id, letter.id
    LIMIT %(most)s::int
    """
)

UNFINISHED = Statement(
    sql="""
    SELECT (
               SELECT count(*)
               FROM (
                   SELECT batch.id
                   FROM pgbus_batches AS batch
                   WHERE batch.finished_at IS NULL
                   ORDER BY batch.id
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS number,
           (
               SELECT extract(epoch FROM statement_timestamp() - first.created_at)::float8
               FROM pgbus_batches AS first
               WHERE first.finished_at IS NULL
               ORDER BY first.id
               LIMIT 1
           ) AS oldest
    """
)

NEWEST = Statement(
    sql="""
    SELECT batch.id, left(batch.description, 1000) AS description, batch.key, batch.created_at, batch.finished_at
    FROM pgbus_batches AS batch
    WHERE batch.id < %(before)s::bigint
    ORDER BY batch.id DESC
    LIMIT %(most)s::int
    """
)
