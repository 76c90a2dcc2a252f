"""Partitions ahead, and retention; each bounded, and correct too when two processes run one at the same time."""

from __future__ import annotations

from typing import Any, Final

from django.db import DatabaseError, transaction

from django_pgbus.conf import database, get_settings
from django_pgbus.postgres import is_conflict, retrying
from django_pgbus.streams import groups, logs_sql, partitions, sql

BATCH: Final = 1000  # entries of one stream


def make_partitions_ahead() -> int:
    """
    Make the partitions that appends will need soon, and return how many; a log that somebody has locked comes next time.

    In transactions of its own, one for each log that needs some. Locks: streams (skipping).
    """
    made = 0
    for log in logs_sql.AHEAD.rows():
        size = log.partition_size
        if not set(log.numbers).issuperset(range((log.head + 1) // size, log.head // size + partitions.AHEAD + 1)):
            try:
                made += partitions.make_ahead(log.id, size)
            except DatabaseError as error:
                if not is_conflict(error):
                    raise
    return made


def roll_forward() -> int:
    """
    Write how far groups are done whose workers have ended before they could, and return how many were further.

    Locks: stream_cursors (skipping).
    """
    return groups.roll_forward()


def purge_dead() -> int:
    """
    Delete failed entries that have been dead letters for DEAD_LETTER_RETENTION, and return how many.

    Locks: stream_exceptions (skipping).
    """
    return sql.PURGE_DEAD.count(age=f"{get_settings().DEAD_LETTER_RETENTION} seconds", limit=BATCH)


def drop_old_partitions() -> int:
    """
    Drop partitions that are past the retention of their stream and handled by all its groups, and return how many.

    In transactions of its own, twenty partitions of a stream at most. The one that holds the head stays. Locks: streams
    (skipping).
    """
    return sum(partitions.drop_before(log.id, log.partition_size, _kept_from(log)) for log in logs_sql.RETAINED.rows())


def trim_tail() -> int:
    """
    Delete the first entries of logs that are too short to drop a partition, if they are past retention; return how many.

    A thousand of a stream at most, in transactions of its own. A log that fills partitions keeps its first entries until the
    whole of the first one is past retention. Locks: streams (skipping), stream_0.
    """
    return sum(_trimmed(log) for log in logs_sql.RETAINED.rows())


def _trimmed(log: Any) -> int:
    there = partitions.attached(log.id)
    low = log.head // log.partition_size * log.partition_size
    high = log.head if log.handled is None else min(log.head, log.handled)
    if not there or there[0].number * log.partition_size < low or high < low:
        return 0

    def transition() -> int:
        with transaction.atomic(using=database()):
            if logs_sql.HOLD_IF_FREE.row(stream=log.id) is None:
                return 0
            return logs_sql.TRIM.of(log.id).count(low=low, high=high, retention=log.retention, limit=BATCH)

    return retrying(transition)


def _kept_from(log: Any) -> int:
    """Return the first position that is to be kept: the first of its partition, or what a group has not done with."""
    size = log.partition_size
    numbers = [found.number for found in partitions.attached(log.id) if not found.is_pending]
    if log.head // size + 1 not in numbers:
        return 0  # Appends may be about to make it: they and a detach that is finished would wait for each other.
    for number in numbers:
        low, upper = number * size, (number + 1) * size
        is_handled = log.handled is None or upper <= log.handled + 1
        if number >= log.head // size or not is_handled or not _is_past(log, low, upper):
            return int(low if log.handled is None else min(low, log.handled + 1))
    return 0


def _is_past(log: Any, low: int, upper: int) -> bool:
    return bool(logs_sql.IS_PAST.of(log.id).row(low=low, upper=upper, retention=log.retention).is_past)
