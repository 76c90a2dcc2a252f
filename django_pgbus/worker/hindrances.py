"""
Read-only: what keeps workers slow or jobs waiting.

Whoever tells it, tells these facts: `verdict.py` in plain English, the overview of the admin in the reader's language.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from django_pgbus.postgres import stats
from django_pgbus.postgres.stats import TableStats
from django_pgbus.queues.stats import QueueStats
from django_pgbus.tasks.runnable import kind_of, load_path
from django_pgbus.worker import doctor_sql
from django_pgbus.worker.doctor_vacuum import MANY_DEAD, OLD
from django_pgbus.worker.stats import Health, WorkerStats, serving

HOT_TABLES: Final = ("pgbus_messages", "pgbus_delayed", "pgbus_workers", "pgbus_levels")
HELD_LONG: Final = OLD
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


def nobody(workers: Iterable[WorkerStats]) -> bool:
    """Return whether no running worker takes jobs; one that only follows streams does not."""
    return not any(worker.takes_jobs and worker.queues for worker in workers)


def silent(workers: Iterable[WorkerStats]) -> list[WorkerStats]:
    """Return the workers that neither beat nor said that they end."""
    return [worker for worker in workers if worker.health is Health.SILENT]


def deaf(workers: Iterable[WorkerStats]) -> list[WorkerStats]:
    """Return the workers that hear no notifications."""
    return [worker for worker in workers if worker.health is Health.DEAF]


def unserved(queues: Iterable[QueueStats], workers: Sequence[WorkerStats]) -> list[QueueStats]:
    """Return the queues that hold ready jobs and are served by nobody; of a paused one that makes no difference."""
    return [queue for queue in queues if queue.ready and not queue.paused and not serving(queue.name, workers)]


def held_up(queues: Iterable[QueueStats]) -> list[QueueStats]:
    """Return the paused queues in which jobs wait, be it for their time."""
    return [queue for queue in queues if queue.paused and (queue.ready or queue.delayed)]


def unheard(subscribed: Iterable[str], workers: Sequence[WorkerStats]) -> list[str]:
    """Return those of the queues of subscribed handlers that nobody serves."""
    return [name for name in sorted(set(subscribed)) if not serving(name, workers)]


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
