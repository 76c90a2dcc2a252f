"""
Rows by the million for the peers, by SQL: copies of one job that the peer itself has stored.

Triggers are off meanwhile, so nothing is notified and no history of the copies is written. What has ended is what each
keeps of a job that succeeded, one row each; PgQueuer keeps three rows of its log until it has summed them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.benchmarks.bench import Bench
from tests.benchmarks.server import Database
from tests.benchmarks.systems import System

TOMORROW: Final = "statement_timestamp() + make_interval(days => 1, secs => n)"
COLUMNS: Final = """
    SELECT column_name FROM information_schema.columns
    WHERE table_schema = 'public' AND table_name = %s AND is_generated = 'NEVER'
    ORDER BY ordinal_position
"""


@dataclass(frozen=True, slots=True)
class Copies:
    """How jobs are copied: the table, whose ids come by themselves, and what differs in another state."""

    table: str
    delayed: Mapping[str, str]
    ended: Mapping[str, str] = field(default_factory=dict)
    archive: str = ""  # the statement that makes what has ended, where that is in another table

    def make(self, connection: Any, count: int, differing: Mapping[str, str]) -> None:
        """Copy the first job `count` times."""
        columns = [name for (name,) in connection.execute(COLUMNS, [self.table]) if name != "id"]
        values = [differing.get(name, f'one."{name}"') for name in columns]
        connection.execute(
            f"""
            INSERT INTO {self.table} ({", ".join(f'"{name}"' for name in columns)})
            SELECT {", ".join(values)}
            FROM (SELECT * FROM {self.table} LIMIT 1) AS one, generate_series(1, %s) AS n
            """,
            [count],
        )


COPIES: Final = {
    "pgqueuer": Copies(
        "pgqueuer",
        {"execute_after": TOMORROW},
        archive="""
            INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint, aggregated)
            SELECT -n, 'successful', 0, 'noop', true FROM generate_series(1, %s) AS n
        """,
    ),
    "oban": Copies(
        "oban_jobs",
        {"state": "'scheduled'::oban_job_state", "scheduled_at": f"timezone('UTC', {TOMORROW})"},
        {
            "state": "'completed'::oban_job_state",
            "attempt": "1",
            "attempted_at": "timezone('UTC', now())",
            "completed_at": "timezone('UTC', now())",
        },
    ),
    "procrastinate": Copies(
        "procrastinate_jobs",
        {"scheduled_at": TOMORROW},
        {"status": "'succeeded'::procrastinate_job_status", "attempts": "1"},
    ),
}


def copies(bench: Bench, system: System, ready: int, rows: int = 0, state: str = "") -> Callable[[Database], None]:
    """Return what fills a template of a peer: its tables, `rows` jobs in a state, then `ready` that can run."""
    how = COPIES[system.name]

    def fill(database: Database) -> None:
        bench.install(system, database)
        system.run(bench.counters, database, "send_many", 1)
        with database.connect() as connection:
            connection.execute("SET session_replication_role = replica")
            if state == "delayed":
                how.make(connection, rows, how.delayed)
            elif state == "archived" and how.archive:
                connection.execute(how.archive, [rows])
            elif state == "archived":
                how.make(connection, rows, how.ended)
            elif state == "pending":
                how.make(connection, rows, {})
            how.make(connection, ready - 1, {})

    return fill
