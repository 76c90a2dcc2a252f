"""
The statements behind `stats.py`: they only read, and none looks at more than a fixed number of rows.

Parked tasks and slots are counted in the order of an index that holds all it takes. What it takes to describe keys is
read for the few that are shown, however many there are.
"""

from django_pgbus.postgres import Statement

# Who waits, by what for. A task that is not due waits for its time, so it has no wait of this kind yet. Nobody is looked
# for among those who wait for something else where nobody waits for this: mostly nobody does for a uniqueness key.
PARKED = Statement(
    sql="""
    SELECT kind.waits_for,
           (
               SELECT count(*)
               FROM (
                   SELECT blocked.id
                   FROM pgbus_blocked_executions AS blocked
                   WHERE blocked.waits_for = kind.waits_for
                   ORDER BY blocked.key, blocked.due_at, blocked.priority DESC, blocked.id
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS number,
           (
               SELECT extract(epoch FROM statement_timestamp() - oldest.parked_at)::float8
               FROM (
                   SELECT blocked.waits_for, blocked.due_at, blocked.parked_at
                   FROM pgbus_blocked_executions AS blocked
                   ORDER BY blocked.parked_at
                   LIMIT %(reach)s::int
               ) AS oldest
               WHERE oldest.waits_for = kind.waits_for
                 AND oldest.due_at IS NULL
                 AND kind.first IS NOT NULL
               ORDER BY oldest.parked_at
               LIMIT 1
           ) AS oldest
    FROM (
        SELECT named.waits_for,
               (
                   SELECT blocked.id
                   FROM pgbus_blocked_executions AS blocked
                   WHERE blocked.waits_for = named.waits_for
                   ORDER BY blocked.key, blocked.due_at, blocked.priority DESC, blocked.id
                   LIMIT 1
               ) AS first
        FROM (VALUES ('semaphore'), ('key')) AS named (waits_for)
    ) AS kind
    """
)

# The semaphore of each key by its own index: nobody says that there are as few semaphores as keys with slots.
SLOTS = Statement(
    sql="""
    SELECT coalesce(sum(held.number), 0)::bigint AS held,
           count(*) FILTER (WHERE held.number >= (
               SELECT semaphore.capacity
               FROM pgbus_semaphores AS semaphore
               WHERE semaphore.key = held.key
           )) AS at_limit
    FROM (
        SELECT counted.key, count(*) AS number
        FROM (
            SELECT slot.key
            FROM pgbus_semaphore_slots AS slot
            ORDER BY slot.key, slot.ordinal
            LIMIT %(limit)s::int + 1
        ) AS counted
        GROUP BY counted.key
    ) AS held
    """
)

BUSIEST = Statement(
    sql="""
    WITH parked AS (
        SELECT counted.key, count(*) AS number
        FROM (
            SELECT blocked.key
            FROM pgbus_blocked_executions AS blocked
            WHERE blocked.waits_for = 'semaphore'
            ORDER BY blocked.key, blocked.due_at, blocked.priority DESC, blocked.id
            LIMIT %(limit)s::int
        ) AS counted
        GROUP BY counted.key
    ), held AS (
        SELECT counted.key, count(*) AS number
        FROM (
            SELECT slot.key
            FROM pgbus_semaphore_slots AS slot
            ORDER BY slot.key, slot.ordinal
            LIMIT %(limit)s::int
        ) AS counted
        GROUP BY counted.key
    )
    SELECT coalesce(parked.key, held.key) AS key
    FROM parked
    FULL JOIN held ON held.key = parked.key
    ORDER BY coalesce(parked.number, 0) DESC, coalesce(held.number, 0) DESC, coalesce(parked.key, held.key)
    LIMIT %(most)s::int
    """
)

# Who holds the row of a semaphore has left its transaction id there; who is about to create the row holds the advisory
# lock of `sql.WAIT_TO_CREATE`. The oldest wait of a key is that of its lowest id or of one at the front of its line.
KEYS = Statement(
    sql="""
    WITH sessions AS MATERIALIZED (
        SELECT held.transactionid,
               CASE WHEN held.locktype = 'advisory' THEN (held.classid::bigint << 32) | held.objid::bigint END AS hash,
               backend.pid,
               backend.application_name,
               backend.xact_start
        FROM pg_locks AS held
        JOIN pg_stat_activity AS backend ON backend.pid = held.pid
        WHERE held.granted
          AND held.pid <> pg_backend_pid()
          AND (held.locktype = 'transactionid'
               OR (held.locktype = 'advisory'
                   AND held.objsubid = 1
                   AND backend.datname = current_database()))
    )
    SELECT wanted.key,
           coalesce(semaphore.name, '') AS name,
           semaphore.capacity,
           (
               SELECT count(*)
               FROM (
                   SELECT slot.ordinal
                   FROM pgbus_semaphore_slots AS slot
                   WHERE slot.key = wanted.key
                   ORDER BY slot.ordinal
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS slots,
           holders.beating,
           holders.waiting,
           holders.silent,
           holders.beating_until,
           holders.silent_since,
           holders.leased,
           parked.number AS parked,
           parked.not_due,
           parked.highest,
           extract(epoch FROM statement_timestamp() - waiting.since)::float8 AS oldest,
           statement_timestamp()::text AS seen_at,
           locker.pid,
           locker.application_name,
           locker.xact_start
    FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS wanted (key, nth)
    LEFT JOIN LATERAL (
        SELECT stored.name, stored.capacity, stored.xmax AS locked_by
        FROM pgbus_semaphores AS stored
        WHERE stored.key = wanted.key
    ) AS semaphore ON true
    LEFT JOIN LATERAL (
        SELECT session.pid, session.application_name, session.xact_start
        FROM sessions AS session
        WHERE session.transactionid = semaphore.locked_by
           OR session.hash = hashtextextended(wanted.key, 20618)
        ORDER BY session.xact_start
        LIMIT 1
    ) AS locker ON true
    CROSS JOIN LATERAL (
        SELECT count(*) AS number,
               count(counted.due_at) AS not_due,
               max(counted.id) AS highest,
               min(counted.id) FILTER (WHERE counted.due_at IS NULL) AS lowest
        FROM (
            SELECT blocked.id, blocked.due_at
            FROM pgbus_blocked_executions AS blocked
            WHERE blocked.waits_for = 'semaphore'
              AND blocked.key = wanted.key
            ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
            LIMIT %(limit)s::int + 1
        ) AS counted
    ) AS parked
    CROSS JOIN LATERAL (
        SELECT least(
                   (
                       SELECT min(front.parked_at)
                       FROM (
                           SELECT blocked.parked_at
                           FROM pgbus_blocked_executions AS blocked
                           WHERE blocked.waits_for = 'semaphore'
                             AND blocked.key = wanted.key
                             AND blocked.due_at IS NULL
                           ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
                           LIMIT %(looked_at)s::int
                       ) AS front
                   ),
                   (SELECT blocked.parked_at FROM pgbus_blocked_executions AS blocked WHERE blocked.id = parked.lowest)
               ) AS since
    ) AS waiting
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE holder.lease = 'beating') AS beating,
               count(*) FILTER (WHERE holder.lease = 'waiting') AS waiting,
               count(*) FILTER (WHERE holder.lease = 'silent') AS silent,
               max(holder.slot_until) FILTER (WHERE holder.lease = 'beating') AS beating_until,
               min(holder.since) FILTER (WHERE holder.lease = 'silent') AS silent_since,
               array_agg(holder.run ORDER BY holder.run) FILTER (WHERE holder.leased) AS leased
        FROM (
            SELECT seen.slot_until,
                   seen.leased,
                   seen.run,
                   CASE
                       WHEN seen.slot_until IS NULL THEN 'waiting'
                       WHEN seen.leased AND NOT seen.slot_past THEN 'beating'
                       ELSE 'silent'
                   END AS lease,
                   least(
                       CASE WHEN seen.slot_past THEN seen.slot_until END,
                       CASE
                           WHEN seen.message_until IS NULL THEN seen.ready_at
                           WHEN NOT seen.leased THEN seen.message_until
                       END
                   ) AS since
            FROM (
                SELECT slot.leased_until AS slot_until,
                       message.leased_until AS message_until,
                       message.ready_at,
                       slot.message_id || ':' || message.delivery AS run,
                       coalesce(message.leased_until >= statement_timestamp() - grace.period, false) AS leased,
                       slot.leased_until < statement_timestamp() - grace.period AS slot_past
                FROM (
                    SELECT taken.message_id, taken.leased_until
                    FROM pgbus_semaphore_slots AS taken
                    WHERE taken.key = wanted.key
                    ORDER BY taken.ordinal
                    LIMIT %(looked_at)s::int
                ) AS slot
                LEFT JOIN pgbus_messages AS message ON message.id = slot.message_id
                CROSS JOIN (
                    SELECT CASE WHEN statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval
                                THEN interval '0'
                                ELSE interval '100 years'
                           END AS period
                ) AS grace
            ) AS seen
        ) AS holder
    ) AS holders
    ORDER BY wanted.nth
    """
)

HOLDERS = Statement(
    sql="""
    SELECT seen.key,
           seen.message_id,
           seen.in_line,
           CASE
               WHEN seen.slot_until IS NULL THEN 'waiting'
               WHEN seen.leased AND NOT seen.slot_past THEN 'beating'
               ELSE 'silent'
           END AS lease
    FROM (
        SELECT wanted.key,
               slot.message_id,
               slot.ordinal,
               slot.leased_until AS slot_until,
               message.id IS NOT NULL AS in_line,
               coalesce(message.leased_until >= statement_timestamp() - grace.period, false) AS leased,
               slot.leased_until < statement_timestamp() - grace.period AS slot_past
        FROM unnest(%(keys)s::text[]) AS wanted (key)
        CROSS JOIN LATERAL (
            SELECT taken.message_id, taken.ordinal, taken.leased_until
            FROM pgbus_semaphore_slots AS taken
            WHERE taken.key = wanted.key
            ORDER BY taken.ordinal
            LIMIT %(each)s::int
        ) AS slot
        LEFT JOIN pgbus_messages AS message ON message.id = slot.message_id
        CROSS JOIN (
            SELECT CASE WHEN statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval
                        THEN interval '0'
                        ELSE interval '100 years'
                   END AS period
        ) AS grace
    ) AS seen
    ORDER BY seen.key, seen.ordinal
    """
)

# How many wait for each of these uniqueness keys.
WAITING_FOR = Statement(
    sql="""
    SELECT wanted.key, waiting.number
    FROM unnest(%(keys)s::text[]) AS wanted (key)
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT blocked.id
            FROM pgbus_blocked_executions AS blocked
            WHERE blocked.waits_for = 'key'
              AND blocked.key = wanted.key
            ORDER BY blocked.due_at, blocked.priority DESC, blocked.id
            LIMIT %(each)s::int + 1
        ) AS counted
    ) AS waiting
    WHERE waiting.number > 0
    """
)

# Of one job: the slot that it holds, if it holds one.
SLOT = Statement(
    sql="""
    SELECT slot.key, slot.ordinal, slot.taken_at, slot.leased_until
    FROM pgbus_semaphore_slots AS slot
    WHERE slot.message_id = %(message)s::bigint
    """
)

# Who of the same line is let in before a parked job that is due: better priority first, then who came first.
AHEAD = Statement(
    sql="""
    SELECT count(*) AS number
    FROM (
        SELECT before.id
        FROM (
            SELECT better.id
            FROM pgbus_blocked_executions AS better
            WHERE better.waits_for = %(waits_for)s::text
              AND better.key = %(key)s::text
              AND better.due_at IS NULL
              AND better.priority > %(priority)s::smallint
            ORDER BY better.due_at, better.priority DESC, better.id
            LIMIT %(limit)s::int + 1
        ) AS before
        UNION ALL
        SELECT before.id
        FROM (
            SELECT earlier.id
            FROM pgbus_blocked_executions AS earlier
            WHERE earlier.waits_for = %(waits_for)s::text
              AND earlier.key = %(key)s::text
              AND earlier.due_at IS NULL
              AND earlier.priority = %(priority)s::smallint
              AND earlier.id < %(id)s::bigint
            ORDER BY earlier.due_at, earlier.priority DESC, earlier.id
            LIMIT %(limit)s::int + 1
        ) AS before
    ) AS counted
    """
)
