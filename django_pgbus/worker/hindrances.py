"""Read-only, for people: what in the database keeps workers slow or waiting, and what waits that nobody can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django_pgbus.postgres import stats
from django_pgbus.postgres.stats import TableStats
from django_pgbus.tasks.runnable import kind_of, load_path
from django_pgbus.worker import doctor_sql
from django_pgbus.worker.doctor_vacuum import MANY_DEAD

HOT_TABLES: Final = ("pgbus_messages", "pgbus_delayed", "pgbus_workers", "pgbus_levels")
HELD_LONG: Final = 600.0  # seconds
LOOKED_AT: Final = 500  # of the line, and of what is delayed: the oldest
MOST_PATHS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """
    An open transaction: of a session (`name` is its process), or a prepared one (`name` is its gid).

    `about` says whose: application, role and state. While `holds_snapshot`, no dead row of any table can go.
    """

    prepared: bool
    name: str
    about: str
    seconds: float
    holds_snapshot: bool


def tables() -> list[TableStats]:
    """Return how the tables are that every job goes through; asks once."""
    return stats.tables(HOT_TABLES)


def lags(table: TableStats) -> bool:
    """Return whether autovacuum has left so many dead rows that claims become slower."""
    return table.dead > max(MANY_DEAD, table.live)


def held(seconds: float = HELD_LONG) -> list[Held]:
    """Return the transactions of this database that have been open for longer, the longest first; asks once."""
    return [
        Held(
            prepared=row.kind != "session",
            name=row.name,
            about=row.text or "",
            seconds=row.seconds,
            holds_snapshot=row.holds_snapshot,
        )
        for row in doctor_sql.TRANSACTIONS.rows()
        if row.kind in {"session", "prepared transaction"} and row.seconds > seconds
    ]


def unknown_tasks(looked_at: int = LOOKED_AT) -> list[str]:
    """Return the paths among the oldest that wait which this code cannot import; asks once."""
    unknown = []
    for row in doctor_sql.TASKS.rows(rows=looked_at)[:MOST_PATHS]:
        try:
            load_path(row.task, kind_of(row.topic))
        except (Exception, SystemExit):  # whatever a module raises when it is imported
            unknown.append(row.task)
    return unknown
