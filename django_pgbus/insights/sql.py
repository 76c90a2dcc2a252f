"""
The statements that count and add up, with the rows each locks.

Nobody waits for anybody: writers insert, and a sweep skips what another one has locked. Whatever a sweep adds up it takes
away in the same statement, so a reader counts each run once, before and after.
"""

from django_pgbus.postgres import Statement

# For the rest of this transaction: numbers are not worth waiting for, whoever has locked the table.
WAIT_AT_MOST = Statement(
    sql="""
    SELECT set_config('lock_timeout', %(patience)s::text, true)
    """
)

# One array per column but for the histograms: theirs stand one behind the other, since arrays of arrays come apart.
COUNT = Statement(
    sql="""
    INSERT INTO pgbus_run_counts (resolution, bucket, queue, task, event, succeeded, failed, dead, snoozed, superseded,
                                  handed_back, run_seconds, wait_seconds, longest, run, wait)
    SELECT 'raw', statement_timestamp(), counted.queue, counted.task, counted.event, counted.succeeded, counted.failed,
           counted.dead, counted.snoozed, counted.superseded, counted.handed_back, counted.run_seconds,
           counted.wait_seconds, counted.longest,
           (%(runs)s::bigint[])[(counted.nth - 1) * 16 + 1 : counted.nth * 16],
           (%(waits)s::bigint[])[(counted.nth - 1) * 16 + 1 : counted.nth * 16]
    FROM unnest(%(queues)s::text[], %(tasks)s::text[], %(events)s::boolean[], %(succeeded)s::bigint[],
                %(failed)s::bigint[], %(dead)s::bigint[], %(snoozed)s::bigint[], %(superseded)s::bigint[],
                %(handed_back)s::bigint[], %(run_seconds)s::float8[], %(wait_seconds)s::float8[], %(longest)s::float8[])
         WITH ORDINALITY AS counted (queue, task, event, succeeded, failed, dead, snoozed, superseded, handed_back,
                                     run_seconds, wait_seconds, longest, nth)
    """
)

# Rows of one resolution become fewer of the next, once their whole span is older than `age`. Rows as they were written are
# added to the totals, too: these are taken away and written anew in the same statement, so a sum is never seen twice, nor
# missed. A total that another sweep has just locked, or written, is left alone: there are two rows of it until the next
# time.
ROLL_UP = Statement(
    sql="""
    WITH mine AS (
        SELECT counted.id
        FROM pgbus_run_counts AS counted
        WHERE counted.resolution = %(finer)s::text
          AND counted.bucket < date_bin(
              %(span)s::interval, statement_timestamp() - %(age)s::interval, 'epoch'::timestamptz)
        ORDER BY counted.bucket, counted.id
        LIMIT %(limit)s::int
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM pgbus_run_counts AS counted
        USING mine
        WHERE counted.id = mine.id
        RETURNING counted.bucket, counted.queue, counted.task, counted.event, counted.succeeded, counted.failed,
                  counted.dead, counted.snoozed, counted.superseded, counted.handed_back, counted.run_seconds,
                  counted.wait_seconds, counted.longest, counted.run, counted.wait
    ), totals AS (
        SELECT total.id
        FROM pgbus_run_counts AS total
        WHERE %(finer)s::text = 'raw'
          AND total.resolution = 'total'
          AND EXISTS (
              SELECT 1
              FROM gone
              WHERE gone.queue = total.queue
                AND gone.task = total.task
                AND gone.event = total.event
          )
        ORDER BY total.id
        FOR UPDATE OF total SKIP LOCKED
    ), before AS (
        DELETE FROM pgbus_run_counts AS total
        USING totals
        WHERE total.id = totals.id
        RETURNING total.bucket, total.queue, total.task, total.event, total.succeeded, total.failed, total.dead,
                  total.snoozed, total.superseded, total.handed_back, total.run_seconds, total.wait_seconds,
                  total.longest, total.run, total.wait
    ), summed AS (
        INSERT INTO pgbus_run_counts (resolution, bucket, queue, task, event, succeeded, failed, dead, snoozed,
                                      superseded, handed_back, run_seconds, wait_seconds, longest, run, wait)
        SELECT counted.resolution,
               coalesce(counted.span, max(counted.bucket)) AS bucket,
               counted.queue,
               counted.task,
               counted.event,
               sum(counted.succeeded)::bigint AS succeeded,
               sum(counted.failed)::bigint AS failed,
               sum(counted.dead)::bigint AS dead,
               sum(counted.snoozed)::bigint AS snoozed,
               sum(counted.superseded)::bigint AS superseded,
               sum(counted.handed_back)::bigint AS handed_back,
               sum(counted.run_seconds) AS run_seconds,
               sum(counted.wait_seconds) AS wait_seconds,
               max(counted.longest) AS longest,
               ARRAY[
                   sum(counted.run[1]), sum(counted.run[2]), sum(counted.run[3]), sum(counted.run[4]),
                   sum(counted.run[5]), sum(counted.run[6]), sum(counted.run[7]), sum(counted.run[8]),
                   sum(counted.run[9]), sum(counted.run[10]), sum(counted.run[11]), sum(counted.run[12]),
                   sum(counted.run[13]), sum(counted.run[14]), sum(counted.run[15]), sum(counted.run[16])
               ]::bigint[] AS run,
               ARRAY[
                   sum(counted.wait[1]), sum(counted.wait[2]), sum(counted.wait[3]), sum(counted.wait[4]),
                   sum(counted.wait[5]), sum(counted.wait[6]), sum(counted.wait[7]), sum(counted.wait[8]),
                   sum(counted.wait[9]), sum(counted.wait[10]), sum(counted.wait[11]), sum(counted.wait[12]),
                   sum(counted.wait[13]), sum(counted.wait[14]), sum(counted.wait[15]), sum(counted.wait[16])
               ]::bigint[] AS wait
        FROM (
            SELECT %(coarser)s::text AS resolution,
                   date_bin(%(span)s::interval, gone.bucket, 'epoch'::timestamptz) AS span,
                   gone.*
            FROM gone
            UNION ALL
            SELECT 'total', NULL, gone.*
            FROM gone
            WHERE %(finer)s::text = 'raw'
            UNION ALL
            SELECT 'total', NULL, before.*
            FROM before
        ) AS counted
        GROUP BY counted.resolution, counted.span, counted.queue, counted.task, counted.event
    )
    SELECT count(*) AS rows
    FROM gone
    """,
    locks=("run_counts",),
)

# --- retention ----------------------------------------------------------------------------------------

FORGET = Statement(
    sql="""
    DELETE FROM pgbus_run_counts
    WHERE id = ANY (ARRAY(
        SELECT counted.id
        FROM pgbus_run_counts AS counted
        WHERE counted.resolution = %(resolution)s::text
          AND counted.bucket < statement_timestamp() - %(age)s::interval
        ORDER BY counted.bucket, counted.id
        LIMIT %(limit)s::int
        FOR UPDATE SKIP LOCKED
    ))
    """,
    locks=("run_counts",),
)
