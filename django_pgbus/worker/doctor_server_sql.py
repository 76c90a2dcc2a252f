"""What `pgbus_doctor` asks the server about itself and about our tables as they stand in its catalog; all of it reads."""

from django_pgbus.postgres import Statement

SERVER = Statement(
    sql="""
    SELECT current_setting('server_version') AS version,
           current_setting('server_version_num')::int AS number,
           pg_is_in_recovery() AS standby,
           extract(epoch FROM statement_timestamp())::float8 AS clock
    """
)
# As a new session of this role has them: the doctor's own has changed some.
SETTINGS = Statement(
    sql="""
    SELECT setting.name, setting.reset_val AS value
    FROM pg_settings AS setting
    WHERE setting.name = ANY (%(names)s::text[])
    ORDER BY setting.name
    """
)
# A limit of -1 is none. `reserved_connections` is of PostgreSQL 16.
ROOM = Statement(
    sql="""
    SELECT current_setting('max_connections')::int
               - current_setting('superuser_reserved_connections')::int
               - coalesce(current_setting('reserved_connections', true)::int, 0) AS server_limit,
           (SELECT role.rolconnlimit FROM pg_roles AS role WHERE role.rolname = session_user) AS role_limit,
           (SELECT base.datconnlimit FROM pg_database AS base WHERE base.datname = current_database()) AS database_limit,
           (SELECT count(*) FROM pg_stat_activity AS session WHERE session.backend_type = 'client backend') AS used
    """
)
NOTIFY = Statement(
    sql="""
    SELECT pg_backend_pid() AS backend,
           pg_notify(%(channel)s::text, json_build_array(%(kind)s::text, %(token)s::text)::text)
    """
)
ROLE = Statement(
    sql="""
    SELECT current_user::text AS role,
           pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all
    """
)
# Tables, sequences and logs; partitions are reached through their log.
LACKING = Statement(
    sql="""
    SELECT ours.relname::text AS name,
           ARRAY(
               SELECT wanted.privilege
               FROM unnest(
                   CASE WHEN ours.relkind = 'S' THEN ARRAY['USAGE'] ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'] END
               ) WITH ORDINALITY AS wanted (privilege, place)
               WHERE NOT CASE
                   WHEN ours.relkind = 'S' THEN has_sequence_privilege(ours.oid, wanted.privilege)
                   ELSE has_table_privilege(ours.oid, wanted.privilege)
               END
               ORDER BY wanted.place
           ) AS lacking,
           ours.relkind <> 'S' AND row_security_active(ours.oid) AS hides_rows,
           ours.relkind = 'p' AND NOT pg_has_role(ours.relowner, 'USAGE') AS foreign_log
    FROM pg_class AS ours
    WHERE ours.relname LIKE 'pgbus\\_%%'
      AND ours.relkind IN ('r', 'p', 'S')
      AND NOT ours.relispartition
      AND pg_table_is_visible(ours.oid)
    ORDER BY ours.relname
    LIMIT 2000
    """
)

# --- what migrations made -----------------------------------------------------------------------------

COLUMNS = Statement(
    sql="""
    SELECT ours.relname::text AS table_name,
           attribute.attname::text AS name,
           attribute.atthasdef OR attribute.attidentity <> '' AS has_default
    FROM pg_class AS ours
    JOIN pg_attribute AS attribute ON attribute.attrelid = ours.oid
    WHERE ours.relname = ANY (%(tables)s::text[])
      AND ours.relkind IN ('r', 'p')
      AND pg_table_is_visible(ours.oid)
      AND attribute.attnum > 0
      AND NOT attribute.attisdropped
    ORDER BY ours.relname, attribute.attnum
    LIMIT 5000
    """
)
# An expression in an index is a column without a name.
INDEXES = Statement(
    sql="""
    SELECT ours.relname::text AS table_name,
           index.relname::text AS name,
           found.indisunique AS is_unique,
           found.indisprimary AS is_primary,
           found.indisvalid AND found.indisready AND found.indislive AS is_usable,
           found.indpred IS NOT NULL AS is_partial,
           ARRAY(
               SELECT coalesce(attribute.attname::text, '')
               FROM unnest(found.indkey::int2[]) WITH ORDINALITY AS key (number, place)
               LEFT JOIN pg_attribute AS attribute
                   ON attribute.attrelid = found.indrelid AND attribute.attnum = key.number
               WHERE key.place <= found.indnkeyatts
               ORDER BY key.place
           ) AS columns
    FROM pg_index AS found
    JOIN pg_class AS index ON index.oid = found.indexrelid
    JOIN pg_class AS ours ON ours.oid = found.indrelid
    WHERE ours.relname LIKE 'pgbus\\_%%'
      AND ours.relkind IN ('r', 'p')
      AND pg_table_is_visible(ours.oid)
    ORDER BY ours.relname, index.relname
    LIMIT 10000
    """
)
CONSTRAINTS = Statement(
    sql="""
    SELECT ours.relname::text AS table_name,
           found.conname::text AS name,
           found.contype::text AS kind,
           found.convalidated AS is_valid,
           ARRAY(
               SELECT attribute.attname::text
               FROM unnest(found.conkey) WITH ORDINALITY AS key (number, place)
               JOIN pg_attribute AS attribute ON attribute.attrelid = found.conrelid AND attribute.attnum = key.number
               ORDER BY key.place
           ) AS columns
    FROM pg_constraint AS found
    JOIN pg_class AS ours ON ours.oid = found.conrelid
    WHERE ours.relname = ANY (%(tables)s::text[])
      AND found.contype IN ('c', 'f', 'p', 'u')
      AND pg_table_is_visible(ours.oid)
    ORDER BY ours.relname, found.conname
    LIMIT 5000
    """
)
FUNCTION_IS_THERE = Statement(
    sql="""
    SELECT to_regproc(%(name)s::text) IS NOT NULL AS is_there
    """
)
APPLIED = Statement(
    sql="""
    SELECT applied.name
    FROM django_migrations AS applied
    WHERE applied.app = 'pgbus'
    ORDER BY applied.name
    LIMIT 1000
    """
)

# --- sequences ----------------------------------------------------------------------------------------

# A sequence that was never used has no last value; nor has one that the role may not read, before PostgreSQL 17 an error.
SEQUENCES = Statement(
    sql="""
    SELECT ours.relname::text AS name,
           found.seqcache AS cache,
           found.seqincrement AS increment,
           found.seqcycle AS cycles,
           CASE WHEN has_sequence_privilege(ours.oid, 'USAGE, SELECT')
                THEN coalesce(pg_sequence_last_value(ours.oid), 0) END AS last
    FROM pg_sequence AS found
    JOIN pg_class AS ours ON ours.oid = found.seqrelid
    WHERE ours.relname = ANY (%(names)s::text[])
      AND pg_table_is_visible(ours.oid)
    ORDER BY ours.relname
    LIMIT 1000
    """
)
# The highest id of a task or a batch, each by the end of its primary key.
HIGHEST_ID = Statement(
    sql="""
    SELECT coalesce(greatest(
               (SELECT max(id) FROM pgbus_messages),
               (SELECT max(id) FROM pgbus_delayed),
               (SELECT max(id) FROM pgbus_blocked_executions),
               (SELECT max(id) FROM pgbus_archive),
               (SELECT max(id) FROM pgbus_dead_letters),
               (SELECT max(id) FROM pgbus_batches)
           ), 0) AS highest
    """
)
# The line is indexed by queue, priority and suspicion first: one step for each part of it that is known.
HIGHEST_POSITION = Statement(
    sql="""
    SELECT coalesce(max(last.position), 0) AS highest
    FROM (
        SELECT level.queue, level.priority, level.suspect
        FROM pgbus_levels AS level
        ORDER BY level.queue, level.priority, level.suspect
        LIMIT 2000
    ) AS known
    CROSS JOIN LATERAL (
        SELECT message.position
        FROM pgbus_messages AS message
        WHERE message.queue = known.queue
          AND message.priority = known.priority
          AND message.suspect = known.suspect
        ORDER BY message.position DESC
        LIMIT 1
    ) AS last
    """
)
SERIAL = Statement(
    sql="""
    SELECT pg_get_serial_sequence(%(table)s::text, %(column)s::text)::regclass::text AS name
    """
)
