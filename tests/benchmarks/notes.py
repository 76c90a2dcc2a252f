"""What each system does for a job, so that its figures can be judged: read from the sources of the versions measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """One system: its title, and what it does and does not do for each job as it is run here."""

    title: str
    run: str
    durability: str
    crash: str
    results: str
    history: str
    retries: str
    uniqueness: str


ASPECTS: Final = {
    "run": "How it is run here",
    "durability": "A job is safe",
    "crash": "When its worker dies",
    "results": "Results",
    "history": "What is kept of a job that ended",
    "retries": "Retries",
    "uniqueness": "Uniqueness and limits",
}
COMMIT: Final = "with the commit of PostgreSQL, on disk, in the caller's transaction"

NOTES: Final = {
    "pgbus": Notes(
        title="django-pgbus",
        run="`manage.py runworker`, its defaults: one process of ten threads beside its supervisor; sync functions",
        durability=COMMIT,
        crash="it runs again at once (its supervisor sees the death), or when its lease ends",
        results="stored, with arguments and times, by each job",
        history="a row in the archive",
        retries="with backoff; at the end a dead letter with its errors",
        uniqueness="unique keys, limits per key, both checked by the database",
    ),
    "pgqueuer": Notes(
        title="PgQueuer",
        run="its queue manager on asyncpg and uvloop, a batch of 100 (its default is 10); coroutines, all its tables logged",
        durability=COMMIT + " if that is asyncpg's or psycopg's",
        crash="it is picked up again when its heartbeat is 30 s old",
        results="none",
        history="rows in a log table, one for each change of state, summed up every 30 s",
        retries="where a job raises `RetryRequested`; a job that fails otherwise is deleted, or held",
        uniqueness="a dedupe key; limits per entrypoint",
    ),
    "procrastinate": Notes(
        title="Procrastinate",
        run="its async worker on psycopg, 50 at once (its default is 1), listening; coroutines",
        durability=COMMIT + " where its Django connector is used",
        crash="it stays as running until a task of the project's own retries stalled jobs",
        results="none",
        history="the row itself, and an event for each change of state, by triggers",
        retries="by a strategy of the task",
        uniqueness="a queueing lock, and a lock under which one runs at a time",
    ),
    "oban": Notes(
        title="Oban for Python",
        run="the open-source package on psycopg and uvloop, 500 at once; coroutines",
        durability="with the commit of PostgreSQL, on disk, in a transaction of its own or of a psycopg connection",
        crash="it is rescued when it has run for five minutes",
        results="none unless it is told to record them",
        history="the row itself, for a day",
        retries="20 with backoff",
        uniqueness="limits per queue and node; no unique jobs in the open-source package",
    ),
    "djtasksdb": Notes(
        title="django-tasks-db",
        run="`manage.py db_worker`, one thread, polling once a second (its defaults); sync functions",
        durability=COMMIT,
        crash="it stays as running and is not run again",
        results="stored, with arguments and times, by each job",
        history="the row itself, until a command prunes it",
        retries="none",
        uniqueness="none",
    ),
    "celery": Notes(
        title="Celery with Redis",
        run=(
            "one prefork process beside the worker's own, 64 messages fetched ahead, no gossip, no mingle, no events, as "
            "its guide to optimizing has it for many short tasks; sync functions"
        ),
        durability="in the memory of Redis, on disk within a second (appendfsync everysec); not in the caller's transaction",
        crash="it is lost if it was running, as it was acknowledged before (the default); others come back after an hour",
        results="none (`ignore_result`; django-celery-results would store them)",
        history="none",
        retries="where a task asks for them",
        uniqueness="none",
    ),
    "chancy": Notes(
        title="Chancy",
        run="its async executor with eager polling, 1000 at once; coroutines",
        durability=COMMIT + " if that is psycopg's",
        crash="it is recovered by a plugin",
        results="none",
        history="the row itself",
        retries="a number of attempts",
        uniqueness="a unique key",
    ),
    "refskip": Notes(
        title="refskip, a bare loop",
        run="no product: FOR UPDATE SKIP LOCKED, a hundred at a time, a call for each, one statement to archive them",
        durability="with the commit of PostgreSQL, on disk",
        crash="it is visible again after 30 s",
        results="none",
        history="a row in an archive",
        retries="none",
        uniqueness="none",
    ),
}


def title(name: str) -> str:
    """Return how people call a system."""
    return NOTES[name].title if name in NOTES else name
