"""
The statements of the claims, with the rows each locks.

Who waits for whom: taking a claim waits for an open transaction that takes, completes or releases the same one, since
only its end tells which; a worker waits there for a tenth of a second at most (the patience of a pick-up). All lock in the
order of (event, handler). The beat and the sweeps skip what is locked.
"""

from django_pgbus.postgres import Statement

# What is known of these claims, without a lock. The holder is under a lease while its message is claimed under that very
# delivery, and none counts as lapsed in the time of one lease after a restart of PostgreSQL. `remaining` is how long the
# claim is certain to be live yet. OFFSET 0: each is looked up by its key, also by a plan that was made while there was none
# and is kept while they become many.
LOOK = Statement(
    sql="""
    SELECT claim.event_id,
           claim.handler,
           claim.message_id,
           claim.delivery,
           claim.completed_at IS NOT NULL AS completed,
           extract(epoch FROM statement_timestamp() - coalesce(claim.completed_at, claim.claimed_at))::float8 AS age,
           coalesce(extract(epoch FROM greatest(
               claim.leased_until,
               holder.leased_until,
               pg_postmaster_start_time() + %(lease)s::interval
           ) - statement_timestamp())::float8, 0) AS remaining,
           claim.completed_at IS NULL
               AND coalesce(claim.leased_until, '-infinity') < statement_timestamp()
               AND (holder.leased_until IS NULL OR holder.leased_until < statement_timestamp())
               AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval AS silent,
           EXISTS (
               SELECT 1
               FROM pgbus_messages AS message
               WHERE message.id = claim.message_id
                 AND NOT message.discard_requested
           )
               OR EXISTS (SELECT 1 FROM pgbus_delayed AS delayed WHERE delayed.id = claim.message_id) AS has_message
    FROM unnest(%(events)s::uuid[], %(handlers)s::text[]) AS wanted (event_id, handler)
    CROSS JOIN LATERAL (
        SELECT one.*
        FROM pgbus_processed_events AS one
        WHERE one.event_id = wanted.event_id
          AND one.handler = wanted.handler
        OFFSET 0
    ) AS claim
    LEFT JOIN pgbus_messages AS holder ON holder.id = claim.message_id AND holder.delivery = claim.delivery
    """
)

# How long the rest of this transaction waits for a lock.
WAIT_AT_MOST = Statement(
    sql="""
    SELECT set_config('lock_timeout', coalesce(%(patience)s::text, current_setting('lock_timeout')), true)
    """
)

# One row per claim: the second of a batch would change the row of the first. A claim that is there is taken over in this
# one UPDATE if it is pending and its holder has fallen silent: of two takers the second waits for the first, and
# then finds the lease of the first. The holder's message is looked at as of the start of this statement, which errs on the
# safe side: a lapsed lease is never renewed, and a holder that was not fenced out before keeps its claim.
TAKE = Statement(
    sql="""
    INSERT INTO pgbus_processed_events AS claim (event_id, handler, message_id, delivery, leased_until)
    SELECT DISTINCT ON (wanted.event_id, wanted.handler)
           wanted.event_id, wanted.handler, wanted.message_id, wanted.delivery,
           statement_timestamp() + %(lease)s::interval
    FROM unnest(%(events)s::uuid[], %(handlers)s::text[], %(ids)s::bigint[], %(deliveries)s::int[])
         WITH ORDINALITY AS wanted (event_id, handler, message_id, delivery, nth)
    ORDER BY wanted.event_id, wanted.handler, wanted.nth
    ON CONFLICT (event_id, handler) DO UPDATE
    SET message_id = excluded.message_id,
        delivery = excluded.delivery,
        claimed_at = statement_timestamp(),
        processed_at = statement_timestamp(),
        leased_until = excluded.leased_until
    WHERE claim.completed_at IS NULL
      AND ((claim.message_id = excluded.message_id AND claim.delivery = excluded.delivery)
           OR (coalesce(claim.leased_until, '-infinity') < statement_timestamp()
               AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval
               AND NOT EXISTS (
                   SELECT 1
                   FROM pgbus_messages AS message
                   WHERE message.id = claim.message_id
                     AND message.delivery = claim.delivery
                     AND message.leased_until IS NOT NULL
               )))
    RETURNING claim.message_id
    """,
    locks=("processed_events",),
)

# By the beat that has just renewed the messages: only while they run, only what is not completed.
STAMP = Statement(
    sql="""
    WITH mine AS (
        SELECT claim.event_id, claim.handler
        FROM unnest(%(ids)s::bigint[], %(deliveries)s::int[]) AS held (id, delivery)
        JOIN pgbus_processed_events AS claim ON claim.message_id = held.id AND claim.delivery = held.delivery
        WHERE claim.completed_at IS NULL
        FOR NO KEY UPDATE OF claim SKIP LOCKED
    )
    UPDATE pgbus_processed_events AS claim
    SET processed_at = statement_timestamp(),
        leased_until = statement_timestamp() + %(lease)s::interval
    FROM mine
    WHERE claim.event_id = mine.event_id
      AND claim.handler = mine.handler
    """,
    locks=("processed_events",),
)

# A claim that is not there was deleted by hand: the run counts all the same. One that is another delivery's is left alone.
COMPLETE = Statement(
    sql="""
    INSERT INTO pgbus_processed_events AS claim (event_id, handler, message_id, delivery, completed_at)
    SELECT done.event_id, done.handler, done.message_id, done.delivery, statement_timestamp()
    FROM unnest(%(events)s::uuid[], %(handlers)s::text[], %(ids)s::bigint[], %(deliveries)s::int[])
         AS done (event_id, handler, message_id, delivery)
    ORDER BY done.event_id, done.handler
    ON CONFLICT (event_id, handler) DO UPDATE
    SET completed_at = statement_timestamp(),
        processed_at = statement_timestamp(),
        leased_until = NULL
    WHERE claim.message_id = excluded.message_id
      AND claim.delivery = excluded.delivery
      AND claim.completed_at IS NULL
    RETURNING claim.message_id
    """,
    locks=("processed_events",),
)

# Ordered by what no index has, and yet in the order of the others: a session that must not sort would read the claims of
# a week by their key.
RELEASE = Statement(
    sql="""
    WITH mine AS (
        SELECT claim.event_id, claim.handler
        FROM unnest(%(ids)s::bigint[], %(deliveries)s::int[]) AS ended (id, delivery)
        JOIN pgbus_processed_events AS claim ON claim.message_id = ended.id AND claim.delivery = ended.delivery
        WHERE claim.completed_at IS NULL
        ORDER BY claim.event_id::text COLLATE "C", claim.handler
        FOR UPDATE OF claim
    )
    DELETE FROM pgbus_processed_events AS claim
    USING mine
    WHERE claim.event_id = mine.event_id
      AND claim.handler = mine.handler
    RETURNING claim.message_id
    """,
    locks=("processed_events",),
)

# --- counts -------------------------------------------------------------------------------------------

COUNT_SKIPPED = Statement(
    sql="""
    INSERT INTO pgbus_event_counts (status, reason, name, amount)
    SELECT 'skipped', skipped.reason, skipped.handler, count(*)
    FROM unnest(%(reasons)s::text[], %(handlers)s::text[]) AS skipped (reason, handler)
    GROUP BY skipped.reason, skipped.handler
    ORDER BY skipped.reason, skipped.handler
    """
)

# One row for many of the same kind, of which there is more than one.
SUM_COUNTS = Statement(
    sql="""
    WITH repeated AS (
        SELECT counted.status, counted.reason, counted.name
        FROM pgbus_event_counts AS counted
        GROUP BY counted.status, counted.reason, counted.name
        HAVING count(*) > 1
        ORDER BY counted.status, counted.reason, counted.name
        LIMIT %(limit)s::int
    ), mine AS (
        SELECT counted.id
        FROM pgbus_event_counts AS counted
        JOIN repeated ON repeated.status = counted.status
                     AND repeated.reason = counted.reason
                     AND repeated.name = counted.name
        ORDER BY counted.id
        LIMIT %(rows)s::int
        FOR UPDATE OF counted SKIP LOCKED
    ), gone AS (
        DELETE FROM pgbus_event_counts AS counted
        USING mine
        WHERE counted.id = mine.id
        RETURNING counted.status, counted.reason, counted.name, counted.amount, counted.last_at
    ), summed AS (
        INSERT INTO pgbus_event_counts (status, reason, name, amount, last_at)
        SELECT status, reason, name, sum(amount), max(last_at)
        FROM gone
        GROUP BY status, reason, name
    )
    SELECT count(*) AS rows
    FROM gone
    """,
    locks=("event_counts",),
)

# --- retention ----------------------------------------------------------------------------------------

# Never while it is pending, nor while a copy of its event may still come to its handler: it would run again.
# OFFSET 0 lets the copies be looked for claim by claim, the oldest first, until there are enough: a planner that made joins
# of it would read the line and all claims.
PURGE_CLAIMS = Statement(
    sql="""
    WITH old AS (
        SELECT claim.event_id, claim.handler
        FROM pgbus_processed_events AS claim
        WHERE claim.completed_at < statement_timestamp() - %(age)s::interval
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_messages AS copy
              WHERE copy.event_id = claim.event_id
                AND copy.task = claim.handler
              OFFSET 0
          )
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_delayed AS copy
              WHERE copy.event_id = claim.event_id
                AND copy.task = claim.handler
              OFFSET 0
          )
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_dead_letters AS copy
              WHERE copy.event_id = claim.event_id
                AND copy.task = claim.handler
              OFFSET 0
          )
        ORDER BY claim.completed_at
        LIMIT %(limit)s::int
        FOR UPDATE OF claim SKIP LOCKED
    )
    DELETE FROM pgbus_processed_events AS claim
    USING old
    WHERE claim.event_id = old.event_id
      AND claim.handler = old.handler
    """,
    locks=("processed_events",),
)

# Pending, and its holder is nowhere: a message was deleted by hand, or discarded after its run had been handed back while it
# was alive. Whoever got the event would take such a claim over, so nothing depends on it.
PURGE_DESERTED = Statement(
    sql="""
    WITH deserted AS (
        SELECT claim.event_id, claim.handler
        FROM pgbus_processed_events AS claim
        WHERE claim.completed_at IS NULL
          AND coalesce(claim.leased_until, '-infinity') < statement_timestamp() - %(age)s::interval
          AND NOT EXISTS (SELECT 1 FROM pgbus_messages AS message WHERE message.id = claim.message_id)
          AND NOT EXISTS (SELECT 1 FROM pgbus_delayed AS delayed WHERE delayed.id = claim.message_id)
        ORDER BY claim.message_id
        LIMIT %(limit)s::int
        FOR UPDATE OF claim SKIP LOCKED
    )
    DELETE FROM pgbus_processed_events AS claim
    USING deserted
    WHERE claim.event_id = deserted.event_id
      AND claim.handler = deserted.handler
    """,
    locks=("processed_events",),
)

PURGE_COUNTS = Statement(
    sql="""
    DELETE FROM pgbus_event_counts
    WHERE id = ANY (ARRAY(
        SELECT counted.id
        FROM pgbus_event_counts AS counted
        WHERE counted.status = 'unrouted'
          AND counted.last_at < statement_timestamp() - %(age)s::interval
        ORDER BY counted.id
        LIMIT %(limit)s::int
        FOR UPDATE SKIP LOCKED
    ))
    """,
    locks=("event_counts",),
)
