"""
The statements of the uniqueness keys, with the rows each locks.

Who waits for whom: taking a key waits for an open transaction that takes or frees the same one, since only its end
tells which. Keys are taken and freed in ascending order, so two who take many cannot wait for each other. The reaper
skips what is locked.
"""

from django_pgbus.postgres import Statement

# At pick-up. One row per key: the second of a batch would change the row of the first. A row of the same message
# is its own: from an earlier delivery, or kept for it.
TAKE = Statement(
    sql="""
    INSERT INTO pgbus_uniqueness_keys AS held (key, name, message_id, delivery, strategy, queue)
    SELECT DISTINCT ON (wanted.key)
           wanted.key, wanted.name, wanted.message_id, wanted.delivery, 'while_executing', wanted.queue
    FROM unnest(%(keys)s::text[], %(names)s::text[], %(ids)s::bigint[], %(deliveries)s::int[], %(queues)s::text[])
         WITH ORDINALITY AS wanted (key, name, message_id, delivery, queue, nth)
    LEFT JOIN pgbus_uniqueness_keys AS own ON own.key = wanted.key AND own.message_id = wanted.message_id
    ORDER BY wanted.key, own.key IS NULL, wanted.nth
    ON CONFLICT (key) DO UPDATE
    SET delivery = excluded.delivery,
        created_at = statement_timestamp()
    WHERE held.message_id = excluded.message_id
      AND held.strategy = 'while_executing'
    RETURNING held.message_id
    """,
    locks=("uniqueness_keys",),
)

# For a batch: from when it is opened until it is finished.
HOLD = Statement(
    sql="""
    INSERT INTO pgbus_uniqueness_keys (key, name, message_id, strategy, queue)
    VALUES (%(key)s::text, %(name)s::text, %(holder)s::bigint, 'until_finished', '')
    ON CONFLICT (key) DO NOTHING
    RETURNING key
    """
)

HOLDERS = Statement(
    sql="""
    SELECT held.key, held.message_id
    FROM pgbus_uniqueness_keys AS held
    WHERE held.key = ANY (%(keys)s::text[])
    """
)

# Of messages that are settled, whatever they hold; of those that wait again, what they hold only while they run.
FREE = Statement(
    sql="""
    WITH mine AS (
        SELECT held.key
        FROM pgbus_uniqueness_keys AS held
        WHERE held.message_id = ANY (%(ids)s::bigint[] || %(waiting)s::bigint[])
          AND (held.strategy = 'while_executing' OR held.message_id = ANY (%(ids)s::bigint[]))
        ORDER BY held.key || '' -- in no index: a session that must not sort would read all keys by theirs
        FOR UPDATE OF held
    )
    DELETE FROM pgbus_uniqueness_keys AS held
    USING mine
    WHERE held.key = mine.key
    RETURNING held.key
    """,
    locks=("uniqueness_keys",),
)

# Without a delivery: kept for a message that was let in, and that has to be claimed first.
RESERVE = Statement(
    sql="""
    INSERT INTO pgbus_uniqueness_keys (key, message_id, strategy, queue)
    SELECT wanted.key, message.id, 'while_executing', message.queue
    FROM unnest(%(keys)s::text[], %(ids)s::bigint[]) AS wanted (key, id)
    JOIN pgbus_messages AS message ON message.id = wanted.id
    ORDER BY wanted.key
    ON CONFLICT (key) DO NOTHING
    """
)

# --- whose holder has fallen silent -------------------------------------------------------------------

# Held for a delivery that is under no lease: its message is gone, was claimed again, stands in the line, or lapsed. One
# that is kept for a message counts as live for the time of a lease, while that one may be claimed.
SILENT = Statement(
    sql="""
    SELECT held.key, held.message_id, held.delivery
    FROM pgbus_uniqueness_keys AS held
    WHERE held.key = ANY (%(keys)s::text[])
      AND held.strategy = 'while_executing'
      AND NOT (
          held.delivery IS NULL
          AND held.created_at > statement_timestamp() - %(lease)s::interval
          AND EXISTS (SELECT 1 FROM pgbus_messages AS message WHERE message.id = held.message_id)
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_queue_states AS state
              WHERE state.queue = held.queue
                AND state.paused_at IS NOT NULL
          )
      )
      AND NOT EXISTS (
          SELECT 1
          FROM pgbus_messages AS message
          WHERE message.id = held.message_id
            AND message.delivery = held.delivery
            AND message.leased_until IS NOT NULL
            AND (message.leased_until >= statement_timestamp()
                 OR statement_timestamp() <= pg_postmaster_start_time() + %(lease)s::interval)
      )
    ORDER BY held.key
    """
)

# Its message was locked before, so no lease can come back: the test is made again all the same, in this statement.
TAKE_AWAY = Statement(
    sql="""
    WITH mine AS (
        SELECT held.key
        FROM pgbus_uniqueness_keys AS held
        JOIN unnest(%(keys)s::text[], %(ids)s::bigint[], %(deliveries)s::int[]) AS silent (key, message_id, delivery)
          ON silent.key = held.key
        WHERE held.key = ANY (%(keys)s::text[])
          AND held.message_id = silent.message_id
          AND held.delivery IS NOT DISTINCT FROM silent.delivery
          AND held.strategy = 'while_executing'
          AND NOT EXISTS (
              SELECT 1
              FROM pgbus_messages AS message
              WHERE message.id = held.message_id
                AND message.delivery = held.delivery
                AND message.leased_until IS NOT NULL
          )
        ORDER BY held.key
        FOR UPDATE OF held SKIP LOCKED
    )
    DELETE FROM pgbus_uniqueness_keys AS held
    USING mine
    WHERE held.key = mine.key
    RETURNING held.key
    """,
    locks=("uniqueness_keys",),
)

# --- the reaper ---------------------------------------------------------------------------------------

# One snapshot sees a message in exactly one place, or in none.
UNOWNED = Statement(
    sql="""
    SELECT looked.key,
           looked.strategy <> 'until_finished'
           AND NOT EXISTS (SELECT 1 FROM pgbus_messages AS message WHERE message.id = looked.message_id)
           AND NOT EXISTS (SELECT 1 FROM pgbus_delayed AS delayed WHERE delayed.id = looked.message_id)
           AND NOT EXISTS (SELECT 1 FROM pgbus_blocked_executions AS blocked WHERE blocked.id = looked.message_id)
           AS unowned
    FROM (
        SELECT held.key, held.message_id, held.strategy
        FROM pgbus_uniqueness_keys AS held
        WHERE held.key > %(after)s::text
        ORDER BY held.key
        LIMIT %(limit)s::int
    ) AS looked
    ORDER BY looked.key
    """
)

LOCK_UNOWNED = Statement(
    sql="""
    SELECT held.key
    FROM pgbus_uniqueness_keys AS held
    WHERE held.key = ANY (%(keys)s::text[])
    ORDER BY held.key
    FOR UPDATE SKIP LOCKED
    """,
    locks=("uniqueness_keys",),
)

# After the lock, with a snapshot of its own: a redrive or a successor may have taken the key while we waited.
REAP = Statement(
    sql="""
    DELETE FROM pgbus_uniqueness_keys AS held
    WHERE held.key = ANY (%(keys)s::text[])
      AND held.strategy <> 'until_finished'
      AND NOT EXISTS (SELECT 1 FROM pgbus_messages AS message WHERE message.id = held.message_id)
      AND NOT EXISTS (SELECT 1 FROM pgbus_delayed AS delayed WHERE delayed.id = held.message_id)
      AND NOT EXISTS (SELECT 1 FROM pgbus_blocked_executions AS blocked WHERE blocked.id = held.message_id)
    RETURNING held.key
    """,
    locks=("uniqueness_keys",),
)

# --- a person's decision ------------------------------------------------------------------------------

DISCARD_LOCK = Statement(
    sql="""
    DELETE FROM pgbus_uniqueness_keys AS held
    WHERE held.key = %(key)s::text
      AND held.message_id = %(id)s::bigint
    RETURNING held.key
    """,
    locks=("uniqueness_keys",),
)
