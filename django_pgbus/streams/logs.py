"""
Logs: the tables in which the entries of streams stand.

A log is `pgbus_stream_<id>`, partitioned by position, with a sequence of its own; the row of the stream tells its id. They
are made together, in one transaction. What the proof of docs/architecture/streams.md needs of a log, `faults` checks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.core.signals import setting_changed
from django.db import connections, transaction
from psycopg import sql

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.exceptions import StreamDoesNotExist
from django_pgbus.postgres import retrying
from django_pgbus.streams import logs_sql, partitions
from django_pgbus.streams.log_statement import log_table
from django_pgbus.streams.partitions import run
from django_pgbus.streams.room import Room

PARTITION_SIZE: Final = 10_000_000  # positions
REMEMBERED: Final = 5.0  # seconds
# Others may write too. A time that Python has no datetime for would stop each group that comes to it.
READABLE: Final = "pgbus_appended_at_is_a_datetime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Where the entries of a stream stand, and what this process knows about the room there."""

    id: int
    name: str
    partition_size: int
    room: Room = field(default_factory=Room, compare=False)


# By alias and name, with the time at which to ask again: the row of a stream can be deleted, and its table stay. The id
# of a log is never given to another one.
_known: dict[tuple[str, str], tuple[Log, float]] = {}


def find(name: str) -> Log:
    """Return the log of a stream, remembered for a while if it is certain to stay; raises StreamDoesNotExist."""
    key = (database(), name)
    log, until = _known.get(key, (None, 0.0))
    if log is not None and time.monotonic() < until:
        return log
    row = logs_sql.FIND.row(name=name)
    if row is None or not row.has_log:
        _known.pop(key, None)
        raise does_not_exist(name)
    if log is None or log.id != row.id:
        log = Log(id=row.id, name=name, partition_size=row.partition_size)
    if row.is_settled:
        _known[key] = (log, time.monotonic() + REMEMBERED)
    return log


def forget(name: str | None = None) -> None:
    """Forget what is remembered of a stream, or of all."""
    if name is None:
        _known.clear()
    else:
        _known.pop((database(), name), None)


def does_not_exist(name: str) -> StreamDoesNotExist:
    """Return the error that says what to do."""
    return StreamDoesNotExist(
        f'There is no stream {name!r} in the database {database()!r}. Write `{_variable(name)} = Stream("{name}")` in a '
        "module `streams.py` or `handlers.py` of an installed app and run migrate, or call its ensure()."
    )


def _variable(name: str) -> str:
    plain = "".join(character if character.isalnum() else "_" for character in name).strip("_").lower()
    return plain if plain.isidentifier() else "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A stream as it is to be made."""

    name: str
    retention: timedelta | None = None
    partition_size: int = PARTITION_SIZE


def ensure(name: str, *, retention: timedelta | None = None, partition_size: int = PARTITION_SIZE) -> bool:
    """
    Make a stream, its log and the first partitions unless they are there, and return whether anything was missing.

    Two that do it at once wait for each other, and one of them returns False. Runs in the caller's transaction, if there
    is one: rolled back, nothing was made. Locks: streams, if the row is there and its log is not.
    """
    found = logs_sql.FIND.row(name=name)
    if found is not None and found.has_log:
        return False

    def transition() -> bool:
        with transaction.atomic(using=database()):
            made = logs_sql.ENTER.row(name=name, retention=retention, partition_size=partition_size)
            if made is None:
                found = logs_sql.FIND.row(name=name)
                if found is None or found.has_log:
                    return False
                logs_sql.HOLD.row(stream=found.id)
                made = logs_sql.FIND.row(name=name)
                if made is None or made.has_log:
                    return False
            _create(made.id, name, made.partition_size)
            return True

    new = retrying(transition)
    if new:
        forget(name)
        signals.stream_created.send_robust(sender=None, stream=name)
    return new


def set_retention(name: str, retention: timedelta | None) -> bool:
    """Set how long the entries of a stream are kept (None: for ever); return whether that is new. Locks: streams."""
    return bool(retrying(lambda: logs_sql.SET_RETENTION.count(name=name, retention=retention)))


def drop(stream: int) -> None:
    """Drop the log of a stream with all its entries; the row of the stream is the caller's."""
    detached = [row.number for row in logs_sql.DETACHED.rows(log=log_table(stream))]
    _drop([log_table(stream), *(partitions.partition(stream, number) for number in detached)])


def drop_left_behind(wanted: Iterable[Wanted] = ()) -> int:
    """
    Drop the tables of logs whose stream is not there any more, and return how many tables.

    One that was never used and is as one of `wanted` is to be becomes its log again: tests flush often, and making tables
    is slow.
    """
    rows = logs_sql.LEFT_BEHIND.rows()
    if not rows:
        return 0
    by_comment = {_comment(stream.name, stream.partition_size): stream for stream in wanted}
    with transaction.atomic(using=database()):
        tables = [row.table_name for row in rows if not _serves_again(row, by_comment.pop(row.comment, None))]
        if tables:
            _drop(tables)
        logs_sql.KEEP_IDS_AHEAD.rows(id=max(row.stream for row in rows))
    forget()
    return len(tables)


def faults(stream: int | None = None) -> dict[str, list[str]]:
    """
    Return what is wrong with the log of a stream, or of all streams: sentences by the stream's name, none of a sound one.

    Each of these lets groups pass an entry, or keeps entries from being appended.
    """
    return {row.name: found for row in logs_sql.FAULTS.rows(stream=stream) if (found := list(_faults(row)))}


def _faults(row: Any) -> Iterable[str]:
    table = log_table(row.id)
    if row.is_missing:
        yield f"The table {table} of the stream {row.name} is missing."
        return
    if row.cache is None:
        yield f"The sequence {table}_position is missing."
    elif row.cache != 1:
        yield f"The sequence {table}_position has CACHE {row.cache}: sessions would keep low positions and use them later."
    if row.increment not in {None, 1}:
        yield f"The sequence {table}_position has INCREMENT {row.increment}: groups count on 1."
    if row.cycle:
        yield f"The sequence {table}_position has CYCLE: it would begin anew."
    for name in row.unwatched:
        yield (
            f"The table {name} lacks the trigger {partitions.TRIGGER} (BEFORE INSERT, FOR EACH STATEMENT, ENABLE ALWAYS): "
            "writers would take positions before their transaction ids."
        )


def _create(stream: int, name: str, size: int) -> None:
    table = log_table(stream)
    # What has this id and no row is of nobody: left behind by `flush`, which starts the ids anew.
    drop(stream)
    comment = sql.SQL("COMMENT ON TABLE {} IS {}").format(sql.Identifier(table), sql.Literal(_comment(name, size)))
    run(
        (
            f"CREATE SEQUENCE {table}_position AS bigint CACHE 1",
            f"""
            CREATE TABLE {table} (
                position bigint NOT NULL DEFAULT nextval('{table}_position'),
                appended_at timestamptz NOT NULL DEFAULT statement_timestamp(),
                payload json NOT NULL,
                PRIMARY KEY (position),
                CONSTRAINT {READABLE} CHECK (
                    isfinite(appended_at)
                    AND appended_at >= '0001-01-02 00:00+00' AND appended_at < '9999-12-31 00:00+00'
                )
            ) PARTITION BY RANGE (position)
            """,
            f"ALTER SEQUENCE {table}_position OWNED BY {table}.position",
            *partitions.watched(table),
            comment.as_string(connections[database()].connection),
        )
    )
    for number in range(partitions.AHEAD + 1):
        partitions.attach(stream, size, number)


def _serves_again(row: Any, wanted: Wanted | None) -> bool:
    """Enter a stream for a log that was left behind, and return whether that could be."""
    if wanted is None or not logs_sql.IS_UNUSED.of(row.stream).row().is_unused:
        return False
    return bool(logs_sql.ENTER_AGAIN.count(id=row.stream, **asdict(wanted)))


def _comment(name: str, size: int) -> str:
    return f"Stream {name}, partitions of {size}"


def _drop(tables: Iterable[str]) -> None:
    """Drop tables of logs, together: the defaults of what is detached depend on the sequence of its log."""
    run([f"DROP TABLE IF EXISTS {', '.join(tables)}"])


def _forget_all(*, setting: str, **kwargs: object) -> None:
    if setting in {"PGBUS", "DATABASE_ROUTERS", "DATABASES"}:
        forget()


setting_changed.connect(_forget_all, dispatch_uid="pgbus.streams")
