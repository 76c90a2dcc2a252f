"""
The statements behind `stats.py`: they only read.

Rows of different resolutions never count the same run, but for the totals: so whoever wants a span of time adds up all that
is not a total, however far the sweeps have come. Sums of histograms are written out: PostgreSQL does not add arrays.
"""

from django_pgbus.postgres import Statement

# One statement for all together, by task and by queue: what is not asked for is grouped away. The span begins with a step,
# as the points of `SERIES` do.
GROUPED = Statement(
    sql="""
    SELECT CASE WHEN %(by_task)s::boolean THEN counted.task ELSE '' END AS task,
           CASE WHEN %(by_queue)s::boolean THEN counted.queue ELSE '' END AS queue,
           %(by_task)s::boolean AND counted.event AS event,
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
    FROM pgbus_run_counts AS counted
    WHERE counted.resolution IN ('raw', 'minute', 'ten_minutes', 'hour')
      AND counted.bucket >= date_bin(%(step)s::interval, statement_timestamp(), 'epoch'::timestamptz)
                            - %(window)s::interval + %(step)s::interval
      AND (%(task)s::text = '' OR counted.task = %(task)s::text)
      AND (%(queue)s::text = '' OR counted.queue = %(queue)s::text)
    GROUP BY 1, 2, 3
    ORDER BY CASE %(order)s::text
                 WHEN 'number' THEN sum(counted.succeeded + counted.failed + counted.dead + counted.snoozed)::float8
                 WHEN 'failures' THEN sum(counted.failed + counted.dead)::float8
                 WHEN 'average' THEN sum(counted.run_seconds)
                     / greatest(sum(counted.succeeded + counted.failed + counted.dead + counted.snoozed), 1)::float8
                 ELSE sum(counted.run_seconds)
             END DESC, 1, 2, 3
    LIMIT %(most)s::int
    """
)

# One row per step, also where nothing ran.
SERIES = Statement(
    sql="""
    SELECT point.at,
           coalesce(summed.succeeded, 0) AS succeeded,
           coalesce(summed.failed, 0) AS failed,
           coalesce(summed.dead, 0) AS dead,
           summed.longest,
           summed.run,
           summed.wait
    FROM generate_series(
        date_bin(%(step)s::interval, statement_timestamp(), 'epoch'::timestamptz)
            - %(window)s::interval + %(step)s::interval,
        statement_timestamp(),
        %(step)s::interval
    ) AS point (at)
    LEFT JOIN (
        SELECT date_bin(%(step)s::interval, counted.bucket, 'epoch'::timestamptz) AS at,
               sum(counted.succeeded)::bigint AS succeeded,
               sum(counted.failed)::bigint AS failed,
               sum(counted.dead)::bigint AS dead,
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
        FROM pgbus_run_counts AS counted
        WHERE counted.resolution IN ('raw', 'minute', 'ten_minutes', 'hour')
          AND counted.bucket >= date_bin(%(step)s::interval, statement_timestamp(), 'epoch'::timestamptz)
                                - %(window)s::interval + %(step)s::interval
          AND (%(task)s::text = '' OR counted.task = %(task)s::text)
          AND (%(queue)s::text = '' OR counted.queue = %(queue)s::text)
        GROUP BY 1
    ) AS summed ON summed.at = point.at
    ORDER BY point.at
    LIMIT 1000
    """
)

# What is not summed yet belongs to the total: read in one statement, so in one snapshot, a sum never goes down while a sweep
# takes rows from here to there. Where there are more rows than `reach`, the oldest are read, which are summed first.
TOTALS = Statement(
    sql="""
    SELECT counted.task,
           counted.queue,
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
        (
            SELECT total.task, total.queue, total.event, total.succeeded, total.failed, total.dead, total.snoozed,
                   total.superseded, total.handed_back, total.run_seconds, total.wait_seconds, total.longest, total.run,
                   total.wait
            FROM pgbus_run_counts AS total
            WHERE total.resolution = 'total'
            ORDER BY total.bucket DESC
            LIMIT %(reach)s::int
        )
        UNION ALL
        (
            SELECT raw.task, raw.queue, raw.event, raw.succeeded, raw.failed, raw.dead, raw.snoozed, raw.superseded,
                   raw.handed_back, raw.run_seconds, raw.wait_seconds, raw.longest, raw.run, raw.wait
            FROM pgbus_run_counts AS raw
            WHERE raw.resolution = 'raw'
            ORDER BY raw.bucket, raw.id
            LIMIT %(reach)s::int
        )
    ) AS counted
    GROUP BY counted.task, counted.queue, counted.event
    ORDER BY sum(counted.succeeded + counted.failed + counted.dead + counted.snoozed) DESC, counted.task, counted.queue,
             counted.event
    LIMIT %(most)s::int
    """
)

# By whole minutes: those that are summed know no finer time.
RATES = Statement(
    sql="""
    SELECT counted.queue,
           sum(counted.succeeded + counted.failed + counted.dead + counted.snoozed)::float8
               / extract(epoch FROM statement_timestamp() - date_bin(
                   '1 minute', statement_timestamp() - %(span)s::interval, 'epoch'::timestamptz))::float8 AS rate
    FROM pgbus_run_counts AS counted
    WHERE counted.resolution IN ('raw', 'minute', 'ten_minutes', 'hour')
      AND counted.bucket >= date_bin(
          '1 minute', statement_timestamp() - %(span)s::interval, 'epoch'::timestamptz)
    GROUP BY counted.queue
    ORDER BY counted.queue
    LIMIT %(most)s::int
    """
)
