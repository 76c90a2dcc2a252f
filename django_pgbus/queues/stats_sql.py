"""
The statements behind `stats.py`: they only read, and none looks at more than a fixed number of rows.

Queues are found by loose index scans, one probe per queue or level, however many rows stand in it. What may be looked
at (`budget`) is shared out among them, so that a hundred deep queues take no longer than one.
"""

from django_pgbus.postgres import Statement

# What runs stands in front of what is ready: whoever works takes the lowest positions, and whoever returns gets a new
# one. So a few rows of each level are read, and the others counted in the index.
QUEUES = Statement(
    sql="""
    WITH RECURSIVE line AS (
        (
            SELECT queue, priority, suspect
            FROM pgbus_messages
            ORDER BY queue, priority, suspect
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue, following.priority, following.suspect
        FROM line
        CROSS JOIN LATERAL (
            SELECT message.queue, message.priority, message.suspect
            FROM pgbus_messages AS message
            WHERE (message.queue, message.priority, message.suspect) > (line.queue, line.priority, line.suspect)
            ORDER BY message.queue, message.priority, message.suspect
            LIMIT 1
        ) AS following
    ), later AS (
        (
            SELECT queue
            FROM pgbus_delayed
            ORDER BY queue
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue
        FROM later
        CROSS JOIN LATERAL (
            SELECT delayed.queue
            FROM pgbus_delayed AS delayed
            WHERE delayed.queue > later.queue
            ORDER BY delayed.queue
            LIMIT 1
        ) AS following
    ), graves AS (
        (
            SELECT queue
            FROM pgbus_dead_letters
            ORDER BY queue
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue
        FROM graves
        CROSS JOIN LATERAL (
            SELECT letter.queue
            FROM pgbus_dead_letters AS letter
            WHERE letter.queue > graves.queue
            ORDER BY letter.queue
            LIMIT 1
        ) AS following
    ), levels AS (
        SELECT queue, priority, suspect
        FROM line
        LIMIT %(most)s::int
    ), known AS (
        SELECT named.queue
        FROM (
            SELECT queue FROM levels
            UNION
            SELECT queue FROM (SELECT queue FROM pgbus_levels ORDER BY queue LIMIT %(most)s::int) AS used
            UNION
            SELECT queue FROM (SELECT queue FROM pgbus_queue_states ORDER BY queue LIMIT %(most)s::int) AS decided
            UNION
            SELECT queue FROM (SELECT queue FROM later LIMIT %(most)s::int) AS waiting
            UNION
            SELECT queue FROM (SELECT queue FROM graves LIMIT %(most)s::int) AS dead
        ) AS named
        ORDER BY named.queue
        LIMIT %(most)s::int
    ), share AS (
        SELECT least(%(limit)s::bigint, greatest(100, %(budget)s::bigint / greatest(1, (SELECT count(*) FROM levels))))
                   AS of_level,
               least(%(limit)s::bigint, greatest(100, %(budget)s::bigint / greatest(1, (SELECT count(*) FROM known))))
                   AS of_queue
    ), front AS (
        SELECT level.queue,
               sum(placed.number)::bigint AS placed,
               bool_or(placed.number > (SELECT of_level FROM share)) AS more,
               sum(first.running)::bigint AS running,
               bool_or(first.running = first.number AND first.number < placed.number) AS more_running,
               min(first.oldest) AS oldest
        FROM levels AS level
        CROSS JOIN LATERAL (
            SELECT count(*) AS number
            FROM (
                SELECT counted.position
                FROM pgbus_messages AS counted
                WHERE counted.queue = level.queue
                  AND counted.priority = level.priority
                  AND counted.suspect = level.suspect
                ORDER BY counted.position
                LIMIT (SELECT of_level FROM share) + 1
            ) AS message
        ) AS placed
        CROSS JOIN LATERAL (
            SELECT count(*) AS number,
                   count(message.leased_until) AS running,
                   min(message.ready_at) FILTER (WHERE message.leased_until IS NULL) AS oldest
            FROM (
                SELECT read.leased_until, read.ready_at
                FROM pgbus_messages AS read
                WHERE read.queue = level.queue
                  AND read.priority = level.priority
                  AND read.suspect = level.suspect
                ORDER BY read.position
                LIMIT (SELECT greatest(100, of_level / 5) FROM share)
            ) AS message
        ) AS first
        GROUP BY level.queue
    )
    SELECT known.queue,
           (SELECT of_level FROM share) AS of_level,
           (SELECT of_queue FROM share) AS of_queue,
           coalesce(front.placed, 0) AS placed,
           coalesce(front.more, false) AS more,
           coalesce(front.running, 0) AS running,
           coalesce(front.more_running, false) AS more_running,
           extract(epoch FROM statement_timestamp() - front.oldest)::float8 AS oldest_ready,
           (
               SELECT count(*)
               FROM (
                   SELECT waiting.due_at
                   FROM pgbus_delayed AS waiting
                   WHERE waiting.queue = known.queue
                   ORDER BY waiting.due_at
                   LIMIT (SELECT of_queue FROM share) + 1
               ) AS counted
           ) AS delayed,
           (
               SELECT extract(epoch FROM soonest.due_at - statement_timestamp())::float8
               FROM pgbus_delayed AS soonest
               WHERE soonest.queue = known.queue
               ORDER BY soonest.due_at
               LIMIT 1
           ) AS next_due,
           (
               SELECT count(*)
               FROM (
                   SELECT letter.died_at
                   FROM pgbus_dead_letters AS letter
                   WHERE letter.queue = known.queue
                   ORDER BY letter.died_at
                   LIMIT (SELECT of_queue FROM share) + 1
               ) AS counted
           ) AS dead,
           state.paused_at,
           coalesce(state.paused_by, '') AS paused_by
    FROM known
    LEFT JOIN front ON front.queue = known.queue
    LEFT JOIN pgbus_queue_states AS state ON state.queue = known.queue
    ORDER BY known.queue
    """
)

NAMES = Statement(
    sql="""
    WITH RECURSIVE line AS (
        (
            SELECT queue
            FROM pgbus_messages
            ORDER BY queue
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue
        FROM line
        CROSS JOIN LATERAL (
            SELECT message.queue
            FROM pgbus_messages AS message
            WHERE message.queue > line.queue
            ORDER BY message.queue
            LIMIT 1
        ) AS following
    ), later AS (
        (
            SELECT queue
            FROM pgbus_delayed
            ORDER BY queue
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue
        FROM later
        CROSS JOIN LATERAL (
            SELECT delayed.queue
            FROM pgbus_delayed AS delayed
            WHERE delayed.queue > later.queue
            ORDER BY delayed.queue
            LIMIT 1
        ) AS following
    ), graves AS (
        (
            SELECT queue
            FROM pgbus_dead_letters
            ORDER BY queue
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue
        FROM graves
        CROSS JOIN LATERAL (
            SELECT letter.queue
            FROM pgbus_dead_letters AS letter
            WHERE letter.queue > graves.queue
            ORDER BY letter.queue
            LIMIT 1
        ) AS following
    )
    SELECT named.queue
    FROM (
        SELECT queue FROM (SELECT queue FROM line LIMIT %(most)s::int) AS standing
        UNION
        SELECT queue FROM (SELECT queue FROM pgbus_levels ORDER BY queue LIMIT %(most)s::int) AS used
        UNION
        SELECT queue FROM (SELECT queue FROM pgbus_queue_states ORDER BY queue LIMIT %(most)s::int) AS decided
        UNION
        SELECT queue FROM (SELECT queue FROM later LIMIT %(most)s::int) AS waiting
        UNION
        SELECT queue FROM (SELECT queue FROM graves LIMIT %(most)s::int) AS dead
    ) AS named
    ORDER BY named.queue
    LIMIT %(most)s::int
    """
)

# One row at least, for the clock.
PAUSES = Statement(
    sql="""
    SELECT clock.now, state.queue, state.paused_at, state.paused_by
    FROM (SELECT statement_timestamp() AS now) AS clock
    LEFT JOIN (
        SELECT queue, paused_at, paused_by
        FROM pgbus_queue_states
        WHERE paused_at IS NOT NULL
        ORDER BY queue
        LIMIT %(most)s::int
    ) AS state ON true
    """
)

# How many ready ones a worker of this queue would take first.
AHEAD = Statement(
    sql="""
    SELECT count(*) AS number
    FROM (
        SELECT before.position
        FROM (
            SELECT above.position
            FROM pgbus_messages AS above
            WHERE above.queue = %(queue)s::text
              AND above.priority > %(priority)s::smallint
              AND above.leased_until IS NULL
            ORDER BY above.priority, above.suspect, above.position
            LIMIT %(limit)s::int + 1
        ) AS before
        UNION ALL
        SELECT before.position
        FROM (
            SELECT earlier.position
            FROM pgbus_messages AS earlier
            WHERE earlier.queue = %(queue)s::text
              AND earlier.priority = %(priority)s::smallint
              AND earlier.suspect = %(suspect)s::boolean
              AND earlier.position < %(position)s::bigint
              AND earlier.leased_until IS NULL
            ORDER BY earlier.position
            LIMIT %(limit)s::int + 1
        ) AS before
    ) AS counted
    """
)

# No index may tell who is leased, so the front of each level is looked at.
RUNNING = Statement(
    sql="""
    WITH RECURSIVE line AS (
        (
            SELECT queue, priority, suspect
            FROM pgbus_messages
            ORDER BY queue, priority, suspect
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue, following.priority, following.suspect
        FROM line
        CROSS JOIN LATERAL (
            SELECT message.queue, message.priority, message.suspect
            FROM pgbus_messages AS message
            WHERE (message.queue, message.priority, message.suspect) > (line.queue, line.priority, line.suspect)
            ORDER BY message.queue, message.priority, message.suspect
            LIMIT 1
        ) AS following
    ), levels AS (
        SELECT queue, priority, suspect
        FROM line
        LIMIT %(most)s::int
    )
    SELECT front.id
    FROM levels AS level
    CROSS JOIN LATERAL (
        SELECT placed.id, placed.leased_until
        FROM pgbus_messages AS placed
        WHERE placed.queue = level.queue
          AND placed.priority = level.priority
          AND placed.suspect = level.suspect
        ORDER BY placed.position
        LIMIT (
            SELECT least(%(limit)s::bigint, greatest(100, %(budget)s::bigint / greatest(1, count(*))))
            FROM levels
        )
    ) AS front
    WHERE front.leased_until IS NOT NULL
    ORDER BY front.id DESC
    LIMIT %(limit)s::int
    """
)

# A retry is due within minutes: it stands among the first of its queue.
SOONEST = Statement(
    sql="""
    WITH RECURSIVE later AS (
        (
            SELECT queue
            FROM pgbus_delayed
            ORDER BY queue
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue
        FROM later
        CROSS JOIN LATERAL (
            SELECT delayed.queue
            FROM pgbus_delayed AS delayed
            WHERE delayed.queue > later.queue
            ORDER BY delayed.queue
            LIMIT 1
        ) AS following
    ), named AS (
        SELECT queue
        FROM later
        LIMIT %(most)s::int
    )
    SELECT soonest.id
    FROM named
    CROSS JOIN LATERAL (
        SELECT waiting.id, waiting.due_at, waiting.reason
        FROM pgbus_delayed AS waiting
        WHERE waiting.queue = named.queue
        ORDER BY waiting.due_at
        LIMIT (
            SELECT least(%(limit)s::bigint, greatest(100, %(budget)s::bigint / greatest(1, count(*))))
            FROM named
        )
    ) AS soonest
    WHERE soonest.reason = %(reason)s::text
    ORDER BY soonest.due_at
    LIMIT %(limit)s::int
    """
)

# Whatever is due, or is tried again within minutes, stands among the first of its queue.
DELAYS = Statement(
    sql="""
    WITH RECURSIVE later AS (
        (
            SELECT queue
            FROM pgbus_delayed
            ORDER BY queue
            LIMIT 1
        )
        UNION ALL
        SELECT following.queue
        FROM later
        CROSS JOIN LATERAL (
            SELECT delayed.queue
            FROM pgbus_delayed AS delayed
            WHERE delayed.queue > later.queue
            ORDER BY delayed.queue
            LIMIT 1
        ) AS following
    ), known AS (
        SELECT queue
        FROM later
        LIMIT %(most)s::int
    ), share AS (
        SELECT least(%(limit)s::bigint, greatest(20, %(budget)s::bigint / greatest(1, (SELECT count(*) FROM known))))
                   AS of_queue
    )
    SELECT known.queue, share.of_queue, front.number, front.due, front.retrying
    FROM known
    CROSS JOIN share
    CROSS JOIN LATERAL (
        SELECT count(*) AS number,
               count(*) FILTER (WHERE first.due_at <= statement_timestamp()) AS due,
               count(*) FILTER (WHERE first.reason = 'retry') AS retrying
        FROM (
            SELECT delayed.due_at, delayed.reason
            FROM pgbus_delayed AS delayed
            WHERE delayed.queue = known.queue
            ORDER BY delayed.due_at
            LIMIT (SELECT of_queue FROM share) + 1
        ) AS first
    ) AS front
    ORDER BY known.queue
    """
)

DIED = Statement(
    sql="""
    SELECT count(*) AS number
    FROM (
        SELECT letter.died_at
        FROM pgbus_dead_letters AS letter
        WHERE letter.died_at > statement_timestamp() - make_interval(secs => %(seconds)s::float8)
        ORDER BY letter.died_at
        LIMIT %(limit)s::int + 1
    ) AS counted
    """
)
