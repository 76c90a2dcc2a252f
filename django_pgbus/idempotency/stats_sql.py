"""The statements behind `stats.py`: they only read, and none looks at more than a fixed number of rows."""

from django_pgbus.postgres import Statement

# Silent as `sql.LOOK` has it.
COUNTS = Statement(
    sql="""
    SELECT pending.number AS pending,
           pending.silent,
           (
               SELECT count(*)
               FROM (
                   SELECT claim.completed_at
                   FROM pgbus_processed_events AS claim
                   WHERE claim.completed_at IS NOT NULL
                   ORDER BY claim.completed_at
                   LIMIT %(limit)s::int + 1
               ) AS counted
           ) AS completed
    FROM (
        SELECT count(*) AS number,
               count(*) FILTER (
                   WHERE greatest(first.leased_until, holder.leased_until) < statement_timestamp()
                     AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval
               ) AS silent
        FROM (
            SELECT claim.message_id, claim.delivery, claim.leased_until
            FROM pgbus_processed_events AS claim
            WHERE claim.completed_at IS NULL
            ORDER BY claim.message_id
            LIMIT %(limit)s::int + 1
        ) AS first
        LEFT JOIN pgbus_messages AS holder ON holder.id = first.message_id AND holder.delivery = first.delivery
    ) AS pending
    """
)

# What is pending first, then what was completed last. A text is looked for in the handlers of the first `reach` of each.
CLAIMS = Statement(
    sql="""
    SELECT claim.event_id, claim.handler, claim.message_id, claim.delivery, claim.claimed_at, claim.processed_at,
           claim.completed_at,
           greatest(claim.leased_until, holder.leased_until) AS leased_until,
           claim.completed_at IS NULL
               AND coalesce(greatest(claim.leased_until, holder.leased_until) < statement_timestamp(), false)
               AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval AS silent
    FROM (
        (
            SELECT pending.event_id, pending.handler, pending.message_id, pending.delivery, pending.claimed_at,
                   pending.processed_at, pending.completed_at, pending.leased_until
            FROM (
                SELECT open.event_id, open.handler, open.message_id, open.delivery, open.claimed_at, open.processed_at,
                       open.completed_at, open.leased_until
                FROM pgbus_processed_events AS open
                WHERE open.completed_at IS NULL
                ORDER BY open.message_id
                LIMIT %(reach)s::int
            ) AS pending
            WHERE strpos(lower(pending.handler), %(text)s::text) > 0
            ORDER BY pending.message_id
            LIMIT %(most)s::int
        )
        UNION ALL
        (
            SELECT completed.event_id, completed.handler, completed.message_id, completed.delivery,
                   completed.claimed_at, completed.processed_at, completed.completed_at, NULL
            FROM (
                SELECT done.event_id, done.handler, done.message_id, done.delivery, done.claimed_at, done.processed_at,
                       done.completed_at
                FROM pgbus_processed_events AS done
                WHERE done.completed_at IS NOT NULL
                ORDER BY done.completed_at DESC
                LIMIT %(reach)s::int
            ) AS completed
            WHERE strpos(lower(completed.handler), %(text)s::text) > 0
            ORDER BY completed.completed_at DESC
            LIMIT %(most)s::int
        )
    ) AS claim
    LEFT JOIN pgbus_messages AS holder ON claim.completed_at IS NULL
                                      AND holder.id = claim.message_id
                                      AND holder.delivery = claim.delivery
    ORDER BY claim.completed_at DESC NULLS FIRST, claim.message_id
    LIMIT %(most)s::int
    """
)

OF_EVENT = Statement(
    sql="""
    SELECT claim.event_id, claim.handler, claim.message_id, claim.delivery, claim.claimed_at, claim.processed_at,
           claim.completed_at,
           greatest(claim.leased_until, holder.leased_until) AS leased_until,
           claim.completed_at IS NULL
               AND coalesce(greatest(claim.leased_until, holder.leased_until) < statement_timestamp(), false)
               AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval AS silent
    FROM (
        SELECT one.event_id, one.handler, one.message_id, one.delivery, one.claimed_at, one.processed_at,
               one.completed_at, one.leased_until
        FROM pgbus_processed_events AS one
        WHERE one.event_id BETWEEN %(event)s::uuid AND %(event)s::uuid
        ORDER BY one.event_id, one.handler
        LIMIT %(most)s::int
    ) AS claim
    LEFT JOIN pgbus_messages AS holder ON claim.completed_at IS NULL
                                      AND holder.id = claim.message_id
                                      AND holder.delivery = claim.delivery
    ORDER BY claim.handler
    """
)

# A sweep makes one row of many of a kind; until then the numbers of the first rows are a lower bound.
SKIPPED = Statement(
    sql="""
    SELECT kind.reason, counted.amount, counted.rows, counted.last_at
    FROM (VALUES ('completed'), ('cached'), ('owned')) AS kind (reason)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(first.amount), 0)::bigint AS amount, count(*) AS rows, max(first.last_at) AS last_at
        FROM (
            SELECT one.amount, one.last_at
            FROM pgbus_event_counts AS one
            WHERE one.status = 'skipped'
              AND one.reason = kind.reason
            ORDER BY one.status, one.reason, one.name
            LIMIT %(limit)s::int + 1
        ) AS first
    ) AS counted
    """
)

UNROUTED = Statement(
    sql="""
    SELECT first.name AS topic,
           sum(first.amount)::bigint AS amount,
           max(first.last_at) AS last_at,
           (sum(count(*)) OVER ())::bigint AS rows
    FROM (
        SELECT one.name, one.amount, one.last_at
        FROM pgbus_event_counts AS one
        WHERE one.status = 'unrouted'
        ORDER BY one.status, one.reason, one.name
        LIMIT %(limit)s::int + 1
    ) AS first
    WHERE strpos(lower(first.name), %(text)s::text) > 0
    GROUP BY first.name
    ORDER BY max(first.last_at) DESC, first.name
    LIMIT %(most)s::int
    """
)

UNROUTED_TOTAL = Statement(
    sql="""
    SELECT coalesce(sum(first.amount), 0)::bigint AS amount, count(*) AS rows
    FROM (
        SELECT one.amount
        FROM pgbus_event_counts AS one
        WHERE one.status = 'unrouted'
        ORDER BY one.status, one.reason, one.name
        LIMIT %(limit)s::int + 1
    ) AS first
    """
)
