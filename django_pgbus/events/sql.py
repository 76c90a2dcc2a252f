"""
The statements of the event bus, with the rows each locks.

Who waits for whom: publishing locks nothing and waits for nobody. Subscriptions are changed in the order of (handler,
pattern), in short transactions of workers that start and of people.
"""

from django_pgbus.postgres import Statement

# Any number of events in one statement: an index finds the patterns whose literal beginning and end fit, the regular
# expression decides. A handler gets one copy of an event, however many of its patterns match. An expression takes thirty
# microseconds to compile, and a session keeps but a few: only one all of whose words the topic has is asked. In a CASE,
# since a planner holds the expression for the cheaper question and would ask it first.
PUBLISH = Statement(
    sql="""
    WITH published AS MATERIALIZED (
        SELECT event.nth, event.id, event.topic, event.payload,
               string_to_array(event.prefixes, ' ') AS prefixes,
               string_to_array(event.suffixes, ' ') AS suffixes,
               string_to_array(event.topic || '.*.#', '.') AS words
        FROM unnest(%(ids)s::uuid[], %(topics)s::text[], %(payloads)s::text[], %(prefixes)s::text[],
                    %(suffixes)s::text[])
             WITH ORDINALITY AS event (id, topic, payload, prefixes, suffixes, nth)
    ), routed AS MATERIALIZED (
        SELECT published.nth, published.id, published.topic, published.payload,
               subscriber.handler, subscriber.queue, subscriber.idempotent,
               coalesce(%(priority)s::smallint, subscriber.priority) AS priority
        FROM published
        CROSS JOIN LATERAL (
            SELECT DISTINCT ON (subscription.handler)
                   subscription.handler, subscription.queue, subscription.idempotent, subscription.priority
            FROM pgbus_subscriptions AS subscription
            WHERE subscription.prefix = ANY (published.prefixes)
              AND subscription.suffix = ANY (published.suffixes)
              AND CASE
                      WHEN string_to_array(subscription.pattern, '.') <@ published.words
                      THEN '.' || published.topic ~ subscription.regex
                      ELSE false
                  END
            ORDER BY subscription.handler, subscription.id
        ) AS subscriber
    ), sent AS (
        INSERT INTO pgbus_messages (queue, priority, task, payload, constraints, event_id, topic)
        SELECT queue, priority, handler, payload::json,
               CASE WHEN idempotent THEN '{"idempotent": true}'::json END, id, topic
        FROM routed
        WHERE %(delay)s::interval IS NULL
        ORDER BY nth, handler
        RETURNING queue, priority, position
    ), later AS (
        INSERT INTO pgbus_delayed (queue, priority, task, payload, constraints, event_id, topic, due_at, reason)
        SELECT queue, priority, handler, payload::json,
               CASE WHEN idempotent THEN '{"idempotent": true}'::json END, id, topic,
               statement_timestamp() + %(delay)s::interval, 'scheduled'
        FROM routed
        WHERE %(delay)s::interval IS NOT NULL
        ORDER BY nth, handler
    ), unrouted AS (
        INSERT INTO pgbus_event_counts (status, name, amount)
        SELECT 'unrouted', published.topic, count(*)
        FROM published
        WHERE NOT EXISTS (SELECT 1 FROM routed WHERE routed.nth = published.nth)
        GROUP BY published.topic
        ORDER BY published.topic
    )
    SELECT 'event' AS kind, routed.nth AS number, NULL::text AS queue, NULL::smallint AS priority, count(*) AS copies
    FROM routed
    GROUP BY routed.nth
    UNION ALL
    SELECT 'ready', min(sent.position), sent.queue, sent.priority, count(*)
    FROM sent
    GROUP BY sent.queue, sent.priority
    UNION ALL
    SELECT 'later', 0, routed.queue, routed.priority, count(*)
    FROM routed
    WHERE %(delay)s::interval IS NOT NULL
    GROUP BY routed.queue, routed.priority
    """
)

# --- subscriptions ------------------------------------------------------------------------------------

# With `patience` nothing in this transaction waits longer for a lock.
LOCK_SUBSCRIPTIONS = Statement(
    sql="""
    WITH patience AS MATERIALIZED (
        SELECT set_config('lock_timeout', coalesce(%(patience)s::text, current_setting('lock_timeout')), true)
    )
    SELECT subscription.id
    FROM patience
    CROSS JOIN pgbus_subscriptions AS subscription
    WHERE subscription.handler = ANY (%(handlers)s::text[])
    ORDER BY subscription.handler, subscription.pattern
    FOR UPDATE OF subscription
    """,
    locks=("subscriptions",),
)

# Patterns that the code of a handler does not have any more.
DROP_OTHERS = Statement(
    sql="""
    DELETE FROM pgbus_subscriptions AS subscription
    WHERE subscription.handler = ANY (%(handlers)s::text[])
      AND NOT EXISTS (
          SELECT 1
          FROM unnest(%(handlers)s::text[], %(patterns)s::text[]) AS declared (handler, pattern)
          WHERE declared.handler = subscription.handler
            AND declared.pattern = subscription.pattern
      )
    """,
    locks=("subscriptions",),
)

DECLARE = Statement(
    sql="""
    INSERT INTO pgbus_subscriptions AS known (pattern, handler, queue, priority, idempotent, prefix, suffix, regex)
    SELECT declared.pattern, declared.handler, declared.queue, declared.priority, declared.idempotent,
           declared.prefix, declared.suffix, declared.regex
    FROM unnest(%(patterns)s::text[], %(handlers)s::text[], %(queues)s::text[], %(priorities)s::smallint[],
                %(idempotents)s::boolean[], %(prefixes)s::text[], %(suffixes)s::text[], %(regexes)s::text[])
         AS declared (pattern, handler, queue, priority, idempotent, prefix, suffix, regex)
    ORDER BY declared.handler, declared.pattern
    ON CONFLICT (handler, pattern) DO UPDATE
    SET queue = excluded.queue,
        priority = excluded.priority,
        idempotent = excluded.idempotent,
        prefix = excluded.prefix,
        suffix = excluded.suffix,
        regex = excluded.regex,
        declared_at = statement_timestamp()
    """,
    locks=("subscriptions",),
)

UNBIND = Statement(
    sql="""
    WITH mine AS (
        SELECT subscription.id
        FROM pgbus_subscriptions AS subscription
        WHERE subscription.handler = %(handler)s::text
          AND subscription.pattern = coalesce(%(pattern)s::text, subscription.pattern)
        ORDER BY subscription.handler, subscription.pattern
        FOR UPDATE OF subscription
    )
    DELETE FROM pgbus_subscriptions AS subscription
    USING mine
    WHERE subscription.id = mine.id
    RETURNING subscription.pattern
    """,
    locks=("subscriptions",),
)

SUBSCRIPTIONS = Statement(
    sql="""
    SELECT subscription.pattern, subscription.handler, subscription.queue, subscription.priority,
           subscription.idempotent, subscription.created_at, subscription.declared_at
    FROM pgbus_subscriptions AS subscription
    ORDER BY subscription.handler, subscription.pattern
    LIMIT %(limit)s::int
    """
)
