"""One look at the database: sizes, tuples, sessions, what was written and asked. Only reads, and waits for nobody."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

# A table with its TOAST, and each index apart. Partitions of a stream come and go: they count as their log.
RELATIONS: Final = """
    SELECT relation.relname AS name, relation.relkind = 'i' AS is_index, owner.relname AS of,
           CASE WHEN relation.relkind = 'i' THEN pg_relation_size(relation.oid) ELSE pg_table_size(relation.oid) END AS bytes
    FROM pg_class AS relation
    LEFT JOIN pg_index ON indexrelid = relation.oid
    LEFT JOIN pg_class AS owner ON owner.oid = indrelid
    WHERE relation.relkind IN ('r', 'i')
      AND relation.relnamespace = 'public'::regnamespace
      AND coalesce(owner.relname, relation.relname) LIKE 'pgbus%'
"""
TUPLES: Final = """
    SELECT relname AS name, n_live_tup AS live, n_dead_tup AS dead, n_tup_ins AS inserted, n_tup_upd AS updated,
           n_tup_hot_upd AS hot, n_tup_del AS deleted, vacuum_count + autovacuum_count AS vacuums,
           autoanalyze_count AS analyzes
    FROM pg_stat_user_tables
    WHERE relname LIKE 'pgbus%'
"""
SESSIONS: Final = """
    SELECT CASE WHEN backend_type = 'client backend' THEN application_name ELSE 'server' END AS name, count(*) AS sessions
    FROM pg_stat_activity
    WHERE backend_type = 'client backend'
    GROUP BY 1
"""
WHOLE: Final = """
    SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS wal,
           pg_database_size(current_database()) AS database,
           (SELECT sum(pg_total_relation_size(oid)) FROM pg_class
            WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r') AS catalogs,
           (SELECT n_dead_tup FROM pg_stat_sys_tables WHERE relname = 'pg_attribute') AS dead_attributes,
           (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()) AS longest_transaction,
           (SELECT coalesce(max(age(backend_xmin)), 0) FROM pg_stat_activity WHERE pid <> pg_backend_pid()) AS oldest_xmin,
           (SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid()) AS locks,
           xact_commit AS commits, xact_rollback AS rollbacks, deadlocks, temp_files
    FROM pg_stat_database
    WHERE datname = current_database()
"""
STATEMENTS: Final = r"""
    SELECT sum(calls) AS calls, sum(total_exec_time) / 1000 AS seconds,
           count(*) FILTER (WHERE query !~ 'pgbus_stream_\d+_p\d') AS texts,
           count(*) FILTER (WHERE query ~ 'pgbus_stream_\d+_p\d') AS partition_texts,
           (SELECT dealloc FROM pg_stat_statements_info) AS forgotten
    FROM pg_stat_statements
"""
TOP: Final = r"""
    SELECT regexp_replace(left(query, 300), '\s+', ' ', 'g') AS text, calls, rows, total_exec_time / 1000 AS seconds
    FROM pg_stat_statements
    ORDER BY total_exec_time DESC
    LIMIT 40
"""
STREAM: Final = """
    SELECT stream.id, groups.name, cursor.claimed, cursor.committed
    FROM pgbus_stream_cursors AS cursor
    JOIN pgbus_stream_groups AS groups ON groups.id = cursor.group_id
    JOIN pgbus_streams AS stream ON stream.id = groups.stream_id
    ORDER BY groups.name
"""
PARTITION: Final = re.compile(r"^(pgbus_stream_\d+)_p\d+(_.*)?$")
LEFT: Final = {
    "in the line": "SELECT count(*) FROM pgbus_messages",
    "delayed": "SELECT count(*) FROM pgbus_delayed",
    "parked": "SELECT count(*) FROM pgbus_blocked_executions",
    "slots held": "SELECT count(*) FROM pgbus_semaphore_slots",
    "keys held": "SELECT count(*) FROM pgbus_uniqueness_keys",
    "open batches": "SELECT count(*) FROM pgbus_batches WHERE finished_at IS NULL",
    "counts of batches": "SELECT count(*) FROM pgbus_batch_counts",
    "ranges of streams": "SELECT count(*) FROM pgbus_stream_leases",
    "keys of streams": "SELECT count(*) FROM pgbus_stream_keys",
    "failed entries": "SELECT count(*) FROM pgbus_stream_exceptions",
    "pending claims of events": "SELECT count(*) FROM pgbus_processed_events WHERE completed_at IS NULL",
    "entries behind": """
        SELECT coalesce(sum(pg_sequence_last_value('pgbus_stream_' || stream_id || '_position') - committed), 0)
        FROM pgbus_stream_cursors JOIN pgbus_stream_groups AS groups ON groups.id = group_id
    """,
}
RUN: Final = """
    SELECT sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed, sum(dead)::bigint AS dead,
           sum(superseded)::bigint AS superseded, sum(handed_back)::bigint AS handed_back
    FROM pgbus_run_counts
    WHERE resolution IN ('total', 'raw')
"""


class Observer:
    """A session of its own, that looks at the database."""

    def __init__(self, url: str) -> None:
        self._session: psycopg.Connection[dict[str, Any]] = psycopg.connect(
            url, autocommit=True, row_factory=dict_row, application_name="observer"
        )
        self._session.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        self._session.execute("SET lock_timeout = '1s'")

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Return the rows of a statement."""
        return self._session.execute(statement).fetchall()

    def value(self, statement: str) -> Any:
        """Return the one value of a statement."""
        return next(iter(self.rows(statement)[0].values()))

    def look(self) -> dict[str, Any]:
        """Return one sample."""
        whole = {name: float(value) for name, value in self.rows(WHOLE)[0].items()}
        whole |= {f"statements_{name}": float(value) for name, value in self.rows(STATEMENTS)[0].items()}
        cursors = self.rows(STREAM)
        lag = {}
        for row in cursors:
            head = self.value(f"SELECT coalesce(pg_sequence_last_value('pgbus_stream_{row['id']}_position'), 0)")
            lag[row["name"]] = head - row["committed"]
        return {
            "whole": whole,
            "relations": self._relations(),
            "tuples": self._tuples(),
            "sessions": {row["name"]: row["sessions"] for row in self.rows(SESSIONS)},
            "lag": lag,
        }

    def _relations(self) -> dict[str, float]:
        """Return MB of each table, and of each index as TABLE/INDEX; those of a log summed."""
        sizes: dict[str, float] = {}
        for row in self.rows(RELATIONS):
            name = of_log(row["name"])
            if row["of"] is not None:
                name = f"{of_log(row['of'])}/{name}"
            sizes[name] = sizes.get(name, 0.0) + (row["bytes"] or 0) / (1 << 20)
        return sizes

    def _tuples(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for row in self.rows(TUPLES):
            mine = found.setdefault(of_log(row.pop("name")), dict.fromkeys(row, 0))
            for name, value in row.items():
                mine[name] += value
        return found

    def take(self, part: int) -> list[tuple[int, int, float]]:
        """Empty one part of what the jobs wrote down, and return it: (number, part, when it began)."""
        table = f"soak_runs_{part}"
        with self._session.transaction():
            self._session.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            rows = self.rows(
                f"SELECT number, part, extract(epoch FROM began)::float8 AS began FROM {table} ORDER BY began"
            )
            self._session.execute(f"TRUNCATE {table}")
        return [(row["number"], row["part"], row["began"]) for row in rows]

    def left(self) -> dict[str, int]:
        """Return what is still there that must not be when all is done."""
        return {name: int(self.value(statement)) for name, statement in LEFT.items()}

    def counted(self) -> dict[str, int]:
        """Return what pgbus itself counted: the outcomes of runs, since the beginning."""
        (row,) = self.rows(RUN)
        return {name: int(value or 0) for name, value in row.items()}

    def settings(self, names: list[str]) -> dict[str, str]:
        """Return settings of the server."""
        found = self._session.execute(
            "SELECT name, current_setting(name) AS value FROM pg_settings WHERE name = ANY (%s) ORDER BY name", [names]
        )
        return {row["name"]: row["value"] for row in found.fetchall()}

    def close(self) -> None:
        """End the session."""
        self._session.close()


def of_log(name: str) -> str:
    """Return the name under which a relation is summed: a partition's is that of its log."""
    if match := PARTITION.match(name):
        return match[1] + (match[2] or "")
    return name
