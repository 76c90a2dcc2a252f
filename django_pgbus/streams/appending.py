"""
Appending: one statement in the caller's transaction, whatever happens to the partitions.

It waits for nobody. One that finds no partition makes it and is run again; where it stands in somebody's
transaction it stands in a savepoint, so that this transaction goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from django.db import DatabaseError, connections, transaction

from django_pgbus.conf import database
from django_pgbus.postgres.arrays import texts
from django_pgbus.postgres.retrying import sqlstate
from django_pgbus.streams import logs, logs_sql, partitions, waking
from django_pgbus.streams.log_statement import log_table
from django_pgbus.streams.logs import Log

T = TypeVar("T")

ATTEMPTS: Final = 5
STATEMENT: Final = 1000  # entries of one statement; more are copied
NO_TABLE: Final = "42P01"
CHECK_VIOLATION: Final = "23514"


def append(stream: str, payload: str) -> int:
    """Append one entry, encoded, and return its position."""

    def insert(log: Log) -> int:
        position: int = logs_sql.APPEND.of(log.id).tuples(payload=payload)[0][0]
        log.room.saw(position)
        return position

    return _appended(stream, 1, insert)


def append_many(stream: str, payloads: Sequence[str]) -> int:
    """Append entries, encoded, all or none in one statement, and return how many."""

    def insert(log: Log) -> int:
        rows = logs_sql.APPEND_MANY.of(log.id).tuples(payloads=texts(payloads))
        log.room.saw(rows[-1][0])
        return len(rows)

    def copy(log: Log) -> int:
        _copy(log, payloads)
        return len(payloads)

    return _appended(stream, len(payloads), insert if len(payloads) <= STATEMENT else copy)


def _appended(stream: str, entries: int, insert: Callable[[Log], T]) -> T:
    for attempt in range(1, ATTEMPTS + 1):
        log = logs.find(stream)
        if entries > log.partition_size:
            partitions.make_room(log.id, log.partition_size, entries)
        alone = partitions.is_alone()
        bare = alone or log.room.is_enough(log.id, log.partition_size, entries)
        try:
            if bare:
                result = insert(log)
            else:
                with transaction.atomic(using=database()):
                    result = insert(log)
        except DatabaseError as error:
            can_go_on = (alone or not bare) and attempt < ATTEMPTS  # else the caller's transaction is lost
            if sqlstate(error) == NO_TABLE:
                logs.forget(stream)  # dropped, and perhaps made anew since
                if not can_go_on:
                    raise logs.does_not_exist(stream) from error
            elif _finds_no_partition(error) and can_go_on:
                partitions.make_room(log.id, log.partition_size, entries)
            else:
                raise
        else:
            waking.after_commit(log.id)
            return result
    raise AssertionError("unreachable")


def _finds_no_partition(error: DatabaseError) -> bool:
    """Return whether there is no partition for an entry; a constraint that somebody has put on a log has a name."""
    diagnosis: Any = getattr(error.__cause__, "diag", None)
    return sqlstate(error) == CHECK_VIOLATION and diagnosis is not None and diagnosis.constraint_name is None


def _copy(log: Log, payloads: Sequence[str]) -> None:
    """Append by COPY, which passes the trigger too; a line of JSON has no tabs or newlines, but it has backslashes."""
    connection = connections[database()]
    connection.validate_no_broken_transaction()
    text = f"COPY {log_table(log.id)} (payload) FROM STDIN"
    with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(text) as copy:
        for start in range(0, len(payloads), STATEMENT):
            lines = "\n".join(payloads[start : start + STATEMENT])
            copy.write(lines.replace("\\", "\\\\") + "\n")
