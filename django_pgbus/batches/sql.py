"""
The statements of the batches, with the rows each locks.

Who waits for whom: counting waits for nobody, since it inserts. Who finishes, folds or repairs passes over a batch that is
locked. Who opens one again shares its lock with others who do, and waits at most for whoever folds or finishes it, which are
short transactions of our own.
"""

from django_pgbus.postgres import Statement

OPEN = Statement(
    sql="""
    INSERT INTO pgbus_batches (description, properties, callbacks, key)
    VALUES (%(description)s::text, %(properties)s::json, %(callbacks)s::json, %(key)s::text)
    RETURNING id
    """
)

# Held until the caller's transaction ends: nobody finishes it before. None comes back for one that is finished.
OPEN_AGAIN = Statement(
    sql="""
    SELECT batch.id
    FROM pgbus_batches AS batch
    WHERE batch.id = %(id)s::bigint
      AND batch.finished_at IS NULL
    FOR SHARE
    """,
    locks=("batches",),
)

FIND = Statement(
    sql="""
    SELECT batch.id, batch.description, batch.properties::text AS properties, batch.key
    FROM pgbus_batches AS batch
    WHERE batch.id = %(id)s::bigint
    """
)

COUNT = Statement(
    sql="""
    INSERT INTO pgbus_batch_counts (batch_id, added, succeeded, failed)
    SELECT one.batch_id, one.added, one.succeeded, one.failed
    FROM unnest(%(batches)s::bigint[], %(added)s::int[], %(succeeded)s::int[], %(failed)s::int[])
         AS one (batch_id, added, succeeded, failed)
    ORDER BY one.batch_id
    """
)

# One snapshot: what a transaction has added or settled is counted in it, or not at all.
STANDING = Statement(
    sql="""
    SELECT batch.id,
           batch.total + counted.added AS total,
           batch.succeeded + counted.succeeded AS succeeded,
           batch.failed + counted.failed AS failed,
           batch.finished_at,
           counted.rows
    FROM pgbus_batches AS batch
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(one.added), 0)::bigint AS added,
               coalesce(sum(one.succeeded), 0)::bigint AS succeeded,
               coalesce(sum(one.failed), 0)::bigint AS failed,
               count(*) AS rows
        FROM pgbus_batch_counts AS one
        WHERE one.batch_id BETWEEN batch.id AND batch.id -- an equality may be taken for a reason to scan them all
    ) AS counted
    WHERE batch.id = ANY (%(ids)s::bigint[])
    ORDER BY batch.id
    """
)

# The first statement of its transaction.
READ_COMMITTED = Statement(sql="SET TRANSACTION ISOLATION LEVEL READ COMMITTED")

# --- under the lock -----------------------------------------------------------------------------------

LOCK_UNFINISHED = Statement(
    sql="""
    SELECT batch.id
    FROM pgbus_batches AS batch
    WHERE batch.id = ANY (%(ids)s::bigint[])
      AND batch.finished_at IS NULL
    ORDER BY batch.id
    FOR UPDATE SKIP LOCKED
    """,
    locks=("batches",),
)

# A statement of its own after the lock: it sees what was counted while the lock was waited for. Only who has the lock
# deletes rows here, so nobody is waited for.
FOLD = Statement(
    sql="""
    WITH folded AS (
        DELETE FROM pgbus_batch_counts AS counted
        WHERE counted.id = ANY (ARRAY(
            SELECT one.id
            FROM pgbus_batch_counts AS one
            -- With an equality the order by id alone would do, and a planner may walk the primary key for it.
            WHERE one.batch_id BETWEEN %(id)s::bigint AND %(id)s::bigint
            ORDER BY one.batch_id, one.id
            LIMIT %(limit)s::int
        ))
        RETURNING counted.added, counted.succeeded, counted.failed
    ), summed AS (
        SELECT coalesce(sum(added), 0)::bigint AS added,
               coalesce(sum(succeeded), 0)::bigint AS succeeded,
               coalesce(sum(failed), 0)::bigint AS failed,
               count(*) AS rows
        FROM folded
    )
    UPDATE pgbus_batches AS batch
    SET total = batch.total + summed.added,
        succeeded = batch.succeeded + summed.succeeded,
        failed = batch.failed + summed.failed
    FROM summed
    WHERE batch.id = %(id)s::bigint
    RETURNING batch.id, batch.total, batch.succeeded, batch.failed, summed.rows
    """,
    locks=("batches", "batch_counts"),
    again=("batches",),
)

FINISH = Statement(
    sql="""
    UPDATE pgbus_batches AS batch
    SET finished_at = statement_timestamp()
    WHERE batch.id = %(id)s::bigint
      AND batch.finished_at IS NULL
    RETURNING batch.id, batch.description, batch.properties::text AS properties, batch.callbacks::text AS callbacks,
              batch.total, batch.succeeded, batch.failed
    """,
    locks=("batches",),
    again=("batches",),
)

# --- sweeps -------------------------------------------------------------------------------------------

UNFINISHED = Statement(
    sql="""
    SELECT batch.id
    FROM pgbus_batches AS batch
    WHERE batch.finished_at IS NULL
      AND batch.id > %(after)s::bigint
    ORDER BY batch.id
    LIMIT %(limit)s::int
    """
)

# Batches of which the counts say that members are outstanding, and none is anywhere: somebody has deleted them by hand.
# One snapshot sees a member either in one of these places or counted. With BETWEEN it is one probe of an index for each
# batch; an equality the planner may take for a reason to hash a whole table.
DESERTED = Statement(
    sql="""
    SELECT batch.id, batch.total + counted.added - batch.succeeded - batch.failed - counted.settled AS missing
    FROM pgbus_batches AS batch
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(one.added), 0)::bigint AS added,
               coalesce(sum(one.succeeded + one.failed), 0)::bigint AS settled
        FROM pgbus_batch_counts AS one
        WHERE one.batch_id BETWEEN batch.id AND batch.id
    ) AS counted
    WHERE batch.id = ANY (%(ids)s::bigint[])
      AND batch.finished_at IS NULL
      AND batch.total + counted.added > batch.succeeded + batch.failed + counted.settled
      AND NOT EXISTS (
          SELECT 1
          FROM pgbus_messages AS message
          WHERE message.batch_id BETWEEN batch.id AND batch.id
      )
      AND NOT EXISTS (
          SELECT 1
          FROM pgbus_delayed AS delayed
          WHERE delayed.batch_id BETWEEN batch.id AND batch.id
      )
      AND NOT EXISTS (
          SELECT 1
          FROM pgbus_blocked_executions AS blocked
          WHERE blocked.batch_id BETWEEN batch.id AND batch.id
      )
    ORDER BY batch.id
    """
)

PURGE = Statement(
    sql="""
    DELETE FROM pgbus_batches
    WHERE id = ANY (ARRAY(
        SELECT batch.id
        FROM pgbus_batches AS batch
        WHERE batch.finished_at < statement_timestamp() - %(age)s::interval
        ORDER BY batch.finished_at
        LIMIT %(limit)s::int
        FOR UPDATE SKIP LOCKED
    ))
    """,
    locks=("batches",),
)

# Counts of a batch that somebody has deleted by hand while it had members.
PURGE_COUNTS = Statement(
    sql="""
    DELETE FROM pgbus_batch_counts
    WHERE id = ANY (ARRAY(
        SELECT one.id
        FROM pgbus_batch_counts AS one
        WHERE NOT EXISTS (SELECT 1 FROM pgbus_batches AS batch WHERE batch.id = one.batch_id)
        ORDER BY one.id
        LIMIT %(limit)s::int
        FOR UPDATE OF one SKIP LOCKED
    ))
    """,
    locks=("batch_counts",),
)
