"""Rows by the million, by SQL: what years of use leave behind, in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.benchmarks.payload import TEXT
from tests.benchmarks.server import Database

PENDING: Final = """
    INSERT INTO pgbus_messages (queue, priority, task, backend, payload)
    SELECT 'default', 0, 'tests.benchmarks.project.tasks.noop', 'default', %s::json
    FROM generate_series(1, %s)
"""
DELAYED: Final = """
    INSERT INTO pgbus_delayed (queue, priority, task, backend, payload, due_at, reason)
    SELECT 'default', 0, 'tests.benchmarks.project.tasks.noop', 'default', %s::json,
           statement_timestamp() + make_interval(days => 1, secs => n), 'scheduled'
    FROM generate_series(1, %s) AS n
"""
ARCHIVED: Final = """
    INSERT INTO pgbus_archive (queue, priority, task, backend, payload, delivery, attempts, outcome, result,
                               worker, started_at, finished_at)
    SELECT 'default', 0, 'tests.benchmarks.project.tasks.noop', 'default', %s::json, 1, 1, 'succeeded', 'null',
           gen_random_uuid(), statement_timestamp(), statement_timestamp()
    FROM generate_series(1, %s)
"""


def seed(database: Database, sql: str, count: int) -> None:
    """Put `count` rows into a table."""
    with database.connect() as connection:
        connection.execute(sql, [TEXT, count])


def seeds(install: Callable[[Database], None], *parts: tuple[str, int]) -> Callable[[Database], None]:
    """Return what fills a template: the tables, then these rows."""

    def fill(database: Database) -> None:
        install(database)
        for sql, count in parts:
            seed(database, sql, count)

    return fill
