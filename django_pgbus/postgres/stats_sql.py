"""The statements behind `stats.py`: the server's own statistics, no row of a table is read."""

from django_pgbus.postgres.statement import Statement

TABLES = Statement(
    sql="""
    SELECT asked.name,
           stats.n_live_tup AS live,
           stats.n_dead_tup AS dead,
           pg_total_relation_size(stats.relid) AS size,
           extract(epoch FROM statement_timestamp() - greatest(stats.last_vacuum, stats.last_autovacuum))::float8
               AS vacuumed
    FROM unnest(%(names)s::text[]) AS asked (name)
    JOIN pg_stat_user_tables AS stats ON stats.relid = to_regclass(asked.name)
    ORDER BY asked.name
    """
)

# A snapshot holds back vacuum in every database of the cluster where it sees shared rows; a slot does for as long as it
# stands, used or not.
TRANSACTIONS = Statement(
    sql="""
    SELECT greatest(0, max(held.seconds))::float8 AS oldest,
           greatest(0, max(held.behind))::bigint AS held_back
    FROM (
        SELECT CASE
                   WHEN session.datname = current_database() AND session.backend_type = 'client backend'
                   THEN extract(epoch FROM statement_timestamp() - session.xact_start)
               END AS seconds,
               age(session.backend_xmin) AS behind
        FROM pg_stat_activity AS session
        WHERE session.pid <> pg_backend_pid()
        UNION ALL
        SELECT CASE
                   WHEN prepared.database = current_database()
                   THEN extract(epoch FROM statement_timestamp() - prepared.prepared)
               END,
               age(prepared.transaction)
        FROM pg_prepared_xacts AS prepared
        UNION ALL
        SELECT NULL, age(slot.xmin)
        FROM pg_replication_slots AS slot
    ) AS held
    """
)
