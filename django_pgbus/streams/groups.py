"""Groups: declared, paused, rewound, rolled forward, repaired."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.exceptions import StreamDoesNotExist
from django_pgbus.postgres import retrying
from django_pgbus.streams import logs, logs_sql, partitions, sql
from django_pgbus.streams.consumers import Consumer, Start, consumers
from django_pgbus.streams.fence import FENCE
from django_pgbus.streams.leases import GroupId
from django_pgbus.streams.log_statement import log_table
from django_pgbus.streams.stream import ensure

MOST: Final = 1000


def declare(declared: Iterable[Consumer]) -> int:
    """
    Write the groups of these consumers, with a cursor for each that is new, and return how many groups there are.

    Their streams are made if need be. Locks: stream_groups.
    """
    count = 0
    for consumer in sorted(declared, key=lambda consumer: (consumer.stream, consumer.group)):
        ensure(consumer.stream)
        retrying(lambda consumer=consumer: _declare(consumer))  # type: ignore[misc]
        count += 1
    return count


def _declare(consumer: Consumer) -> None:
    with transaction.atomic(using=database()):
        log = logs.find(consumer.stream)
        stream = log.id
        group, is_new = sql.DECLARE_GROUP.tuples(
            stream=stream,
            name=consumer.group,
            handler=consumer.path,
            keyed=consumer.key is not None,
            routes=consumer.route_to is not None,
        )[0]
        if is_new:
            start = _start(stream, log.partition_size, consumer.start)
            sql.ADD_CURSOR.count(group=group, stream=stream, start=start, fence=FENCE)
            signals.group_created.send_robust(sender=None, stream=consumer.stream, group=consumer.group, position=start)


def _start(stream: int, size: int, start: Start) -> int:
    """
    Return the position after which a new group begins.

    Never the one before the first entry that is visible: what is missing before that may still appear.
    """
    match start:
        case "beginning":
            return _beginning(stream, size)
        case "end":
            return int(logs_sql.HEAD.of(stream).tuples()[0][0])
        case datetime():
            ((before,),) = sql.LAST_BEFORE.of(stream).tuples(since=start)
            return _beginning(stream, size) if before is None else int(before)
        case int():
            return min(start - 1, int(logs_sql.HEAD.of(stream).tuples()[0][0]))
    raise AssertionError("unreachable")


def _beginning(stream: int, size: int) -> int:
    """Return the position before the first that the log has room for."""
    numbers = [found.number for found in partitions.attached(stream)]
    return max(0, min(numbers, default=0) * size - 1)


def stored(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], GroupId]:
    """Return where the numbers of these (stream, group) pairs stand; those that are not stored are left out."""
    rows = sql.GROUPS.rows(streams=[stream for stream, _ in pairs], names=[name for _, name in pairs])
    return {
        (row.stream, row.name): GroupId(id=row.id, stream=row.stream_id, partition_size=row.partition_size)
        for row in rows
    }


def find(stream: str, group: str) -> GroupId:
    """Return where the numbers of a group stand, or raise StreamDoesNotExist."""
    found = stored([(stream, group)])
    if not found:
        known = ", ".join(sorted(consumer.name for consumer in consumers.values() if consumer.stream == stream))
        raise StreamDoesNotExist(
            f"The stream {stream!r} has no group {group!r}. A worker declares it when it starts."
            + (f" This code has: {known}." if known else "")
        )
    return found[stream, group]


def probe(groups: Sequence[int], system: str) -> list[Any]:
    """Return how these groups stand; reads only."""
    return sql.PROBE.rows(groups=list(groups), system=system)


def why_refused(name: str, row: Any) -> str | None:
    """Return why the group STREAM/GROUP of a row of `probe` is not to be worked on, as a sentence; None if it is."""
    repair = (
        f"Stop its workers, and run `manage.py pgbus_doctor --repair-cursor {name}`: it adopts the log as it is, and never "
        "moves the cursor."
    )
    if row.fence != FENCE:
        return f"its cursor was left by another version of the fence ({row.fence}, not {FENCE}). {repair}"
    if not row.same_epoch:
        return (
            "its cursor belongs to another log: the stream was restored into this cluster, or its positions were begun "
            f"anew (TRUNCATE RESTART IDENTITY, ALTER SEQUENCE). {repair}"
        )
    if not row.may_look:  # To such a role the sequence seems never to have been used.
        return (
            "this role of the database may not read the sequence of its log: GRANT USAGE, SELECT ON SEQUENCE "
            f"{log_table(row.stream_id)}_position."
        )
    if row.head < row.claimed:
        return (
            f"it has claimed up to {row.claimed:,}, and the log has handed out {row.head:,} positions only. Rewind it to "
            f"{row.head:,} or less."
        )
    return None


def pause(stream: str, group: str, *, by: str = "") -> bool:
    """
    Let a group claim nothing more, and return whether it did before; raises StreamDoesNotExist.

    Locks: stream_groups.
    """
    return _set_paused(stream, group, paused=True, by=by)


def resume(stream: str, group: str, *, by: str = "") -> bool:
    """Let a group claim again, and return whether it was paused; raises StreamDoesNotExist. Locks: stream_groups."""
    return _set_paused(stream, group, paused=False, by=by)


def _set_paused(stream: str, group: str, *, paused: bool, by: str) -> bool:
    changed = bool(sql.SET_PAUSED.count(stream=stream, name=group, paused=paused))
    if changed:
        signals.group_paused.send_robust(sender=None, stream=stream, group=group, paused=paused, by=by)
    else:
        find(stream, group)  # it was so already, or there is no such group
    return changed


def rewind(stream: str, group: str, position: int, *, by: str = "") -> int:
    """
    Let a group handle again what comes after `position`, and return how many positions that are; 0 changes nothing.

    Ranges after `position` that are being handled lose their leases, so they cannot be committed; failed entries there
    are forgotten, since they come again. What is not done at or below goes on. What was done is not undone. Raises
    ValueError for a position beyond what was claimed. Locks: stream_cursors, stream_leases, stream_keys,
    stream_exceptions, stream_routed.
    """
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise ValueError(f"position is a whole number from 0, not {position!r}.")
    found = find(stream, group)

    def transition() -> int:
        with transaction.atomic(using=database()):
            ((claimed, _, _),) = sql.LOCK_CURSOR.tuples(group=found.id)
            if position > claimed:
                raise ValueError(
                    f"The group {group!r} of {stream!r} has claimed up to {claimed:,}: it is rewound to that or less, not "
                    f"to {position:,}."
                )
            if position == claimed:
                return 0
            sql.DROP_LEASES.count(group=found.id, position=position)
            sql.DROP_KEYS.count(group=found.id)
            sql.DROP_EXCEPTIONS.count(group=found.id, position=position)
            sql.DROP_ROUTED.count(group=found.id, position=position)
            sql.REWIND.count(group=found.id, position=position)
            return int(claimed - position)

    positions = retrying(transition)
    if positions:
        signals.group_rewound.send_robust(
            sender=None, stream=stream, group=group, position=position, positions=positions, by=by
        )
    return positions


def roll_forward(groups: Iterable[int] | None = None) -> int:
    """
    Raise `committed` of these groups (None: of all) to the last position that is done with; return how many rose.

    Computed in one statement, written by another. Locks: stream_cursors (skipping).
    """
    rows = sql.COMPUTE_COMMITTED.rows(groups=None if groups is None else list(groups), limit=MOST)
    if not rows:
        return 0
    return sql.RAISE_COMMITTED.count(
        groups=[row.group_id for row in rows],
        rewinds=[row.rewinds for row in rows],
        committed=[row.may_be for row in rows],
    )


def repair(stream: str, group: str) -> tuple[int, int]:
    """
    Let a cursor adopt the log as it is now, and return (claimed, committed), which stay as they are.

    For a group that refuses to work, after its consumers were stopped; one that does not is left alone. Raises
    StreamDoesNotExist. Locks: stream_cursors.
    """
    found = find(stream, group)
    rows = probe([found.id], str(sql.SESSION.row().system))
    if rows and why_refused(f"{stream}/{group}", rows[0]) is None:
        return int(rows[0].claimed), int(rows[0].committed)
    ((claimed, committed),) = sql.REPAIR.tuples(group=found.id, fence=FENCE)
    signals.cursor_repaired.send_robust(sender=None, stream=stream, group=group, claimed=claimed, committed=committed)
    return claimed, committed


def new_token() -> uuid.UUID:
    """Return the token of a claim."""
    return uuid.uuid4()
