"""
Partitions of a log: made ahead, so that an append finds its own, and dropped whole once retention is past them.

Partition k of a stream holds the positions from k * size up to, but not including, (k + 1) * size. It is made as a table of
its own and attached in one transaction: that waits for nobody who reads or appends, and leaves nothing half made. It is
dropped in two steps, detached first, since dropping it where it is would stop every append; what a crash leaves
between them is found by the next sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import DatabaseError, connections, transaction

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.postgres import retrying
from django_pgbus.postgres.pooler import is_pooled
from django_pgbus.postgres.retrying import sqlstate
from django_pgbus.streams import logs_sql
from django_pgbus.streams.log_statement import log_table

AHEAD: Final = 2  # partitions above the one that holds the head
AT_ONCE: Final = 20  # partitions dropped by one call
PATIENCE: Final = "2s"
# While a detach waits for those who use the log it holds nothing; when it is finished later, it waits for old snapshots and
# holds what an append needs to make a partition.
LITTLE_PATIENCE: Final = "100ms"
# Somebody else has the log locked, is detaching a partition of it, or has just done so.
BUSY: Final = frozenset({"55P03", "55000", "40P01", "42P01"})

TRIGGER: Final = "pgbus_take_transaction_id"  # its function stands in the migration


def partition(stream: int, number: int) -> str:
    """Return the name of a partition."""
    return f"{log_table(stream)}_p{number:d}"


def watched(table: str) -> tuple[str, str]:
    """Return the statements that make every writer take its transaction id before its position; see docs/architecture/."""
    return (
        f"CREATE OR REPLACE TRIGGER {TRIGGER} BEFORE INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {TRIGGER}()",
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {TRIGGER}",
    )


def run(statements: Iterable[str]) -> None:
    """Run statements that define tables, one by one."""
    with connections[database()].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def is_alone() -> bool:
    """Return whether each statement is a transaction of its own on this connection."""
    connection = connections[database()]
    return not connection.in_atomic_block and connection.get_autocommit()


# --- making ---------------------------------------------------------------------------------------------


def make_ahead(stream: int, size: int) -> int:
    """
    Make the partition that holds the head of a log, and the next two; return how many were missing.

    A log that somebody is working on is left to them. Locks: streams (skipping).
    """

    def transition() -> int:
        alone = is_alone()
        with transaction.atomic(using=database()):
            if alone:
                logs_sql.BE_IMPATIENT.rows(patience=PATIENCE)
            return _make(logs_sql.HOLD_IF_FREE.row(stream=stream), size, 0)

    return retrying(transition)


def make_room(stream: int, size: int, entries: int = 1) -> int:
    """
    Make the partitions for so many entries more; return how many were missing.

    In the caller's transaction, if there is one: it holds the row of the stream from then on, and others that find no
    partition either wait until it ends. They would have nowhere to go. Locks: streams.
    """
    there = {found.number for found in attached(stream)}
    if there.issuperset(_wanted(stream, size, entries)):
        return 0

    def transition() -> int:
        with transaction.atomic(using=database()):
            return _make(logs_sql.HOLD.row(stream=stream), size, entries)

    return retrying(transition)


def _wanted(stream: int, size: int, entries: int) -> range:
    """Return the numbers of the partitions for so many entries after the head, and for some more."""
    head = logs_sql.HEAD.of(stream).tuples()[0][0]
    return range((head + 1) // size, (head + entries) // size + AHEAD + 1)


def _make(held: Any, size: int, entries: int) -> int:
    """Make what is missing of a log whose row is held, for so many entries and then some; none if it is not."""
    if held is None:
        return 0
    made = sum([attach(held.id, size, number) for number in _wanted(held.id, size, entries)])
    if made:
        signals.partitions_made.send_robust(sender=None, stream=held.name, count=made)
    return made


def attach(stream: int, size: int, number: int) -> bool:
    """
    Make one partition of a log whose row is held, and return False if it is there.

    A table of that name that was detached is attached again, with what it holds. An empty one is not scanned for
    what does not belong there, so that it needs no constraint to say so.
    """
    name, parent = partition(stream, number), log_table(stream)
    if logs_sql.IS_ATTACHED.row(table=name).is_attached:
        return False
    run(
        (
            f"CREATE TABLE IF NOT EXISTS {name} (LIKE {parent} INCLUDING ALL)",
            *watched(name),
            f"ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES FROM ({number * size:d}) TO ({(number + 1) * size:d})",
        )
    )
    return True


# --- dropping -------------------------------------------------------------------------------------------


def attached(stream: int) -> list[Any]:
    """Return the partitions of a log by number: `is_pending` if one is being detached, `is_settled` once it will stay."""
    return logs_sql.PARTITIONS.rows(log=log_table(stream))


def drop_before(stream: int, size: int, position: int) -> int:
    """
    Drop the partitions all of whose positions are below this one, twenty at most, and return how many.

    In transactions of its own: each is detached without stopping appends, which waits for those who have used the log in
    a transaction that still runs; two seconds, then the next call goes on with it. Inside a caller's transaction it is
    detached at once, which locks the log; so it is through a pooler, in a moment when nobody uses the log. Safe for two at
    once. Locks: streams (skipping).
    """
    below = position // size  # the first that is not wholly below
    try:
        if is_alone() and (found := _few(attached(stream), below)):
            (_detach_in_a_moment if is_pooled(connections[database()]) else _detach_beside_appends)(stream, found)
    except DatabaseError as error:
        if sqlstate(error) not in BUSY:
            raise

    def transition() -> int:
        alone = is_alone()
        with transaction.atomic(using=database()):
            if alone:
                logs_sql.BE_IMPATIENT.rows(patience=PATIENCE)
            held = logs_sql.HOLD_IF_FREE.row(stream=stream)
            if held is None:
                return 0
            if not alone:
                _detach(stream, _few(attached(stream), below))
            numbers = [found.number for found in _few(logs_sql.DETACHED.rows(log=log_table(stream)), below)]
            run(f"DROP TABLE IF EXISTS {partition(stream, number)}" for number in numbers)
            if numbers:
                signals.partitions_dropped.send_robust(sender=None, stream=held.name, count=len(numbers))
            return len(numbers)

    return retrying(transition)


def _detach_beside_appends(stream: int, them: Iterable[Any]) -> None:
    for found in them:
        with _patience(LITTLE_PATIENCE if found.is_pending else PATIENCE):
            _detach(stream, [found], "CONCURRENTLY")


def _detach_in_a_moment(stream: int, them: Iterable[Any]) -> None:
    """Detach where a setting must end with its transaction: while this waits for the log, those who append wait too."""
    with transaction.atomic(using=database()):
        logs_sql.BE_IMPATIENT.rows(patience=LITTLE_PATIENCE)
        if logs_sql.HOLD_IF_FREE.row(stream=stream) is not None:
            _detach(stream, them)


def _detach(stream: int, them: Iterable[Any], how: str = "") -> None:
    """Detach partitions; how is of no account for what somebody has begun to detach."""
    for found in them:
        way = "FINALIZE" if found.is_pending else how
        run([f"ALTER TABLE {log_table(stream)} DETACH PARTITION {partition(stream, found.number)} {way}"])


def _few(found: Iterable[Any], below: int) -> list[Any]:
    return [row for row in found if row.number < below][:AT_ONCE]


@contextmanager
def _patience(patience: str) -> Iterator[None]:
    """Wait for a lock so long at most; for statements that cannot stand in a transaction, which would end the setting."""
    before = logs_sql.SET_PATIENCE.row(patience=patience).patience
    try:
        yield
    finally:
        if connections[database()].is_usable():
            logs_sql.SET_PATIENCE.row(patience=before)
