"""
Fan-out: a group that routes entries into queues, one message for each.

What is visible is routed at once, also above a hole; only the mark, up to which the log is done with, waits for the
proof. What was routed above the mark is remembered until the mark passes it, so nothing is routed twice. All of it is one
transaction, which holds the cursor.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Final

from django.db import transaction

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.exceptions import ConsumeRefused
from django_pgbus.postgres.arrays import texts
from django_pgbus.postgres.leftovers import guarded
from django_pgbus.queues import wake
from django_pgbus.queues.message import Level
from django_pgbus.streams import exceptions, leases, sql
from django_pgbus.streams.consumers import Consumer, route_queue
from django_pgbus.streams.entry import Entry
from django_pgbus.streams.fence import FENCE, Fence
from django_pgbus.streams.leases import GroupId
from django_pgbus.streams.partitions import is_alone
from django_pgbus.tasks import payload

SEEN: Final = 5000  # entries looked at beyond the mark
AT_ONCE: Final = 1000  # of them that are routed in one transaction


def route(consumer: Consumer, group: GroupId, fence: Fence, low: int, *, system: str) -> tuple[int, bool] | None:
    """
    Route what is visible beyond the mark, and move the mark as far as is settled.

    Returns the mark, and whether there is more to do at once; None if the cursor is paused or of another epoch. Raises
    ConsumeRefused inside a transaction. Locks: stream_cursors, stream_routed.
    """
    if not is_alone():
        raise ConsumeRefused(
            "Entries are routed in a transaction of their own: not inside atomic() or with autocommit off."
        )
    with transaction.atomic(using=database()):
        return route_here(consumer, group, fence, low, system=system)


def route_claimed(consumer: Consumer, group: GroupId, *, worker: uuid.UUID, lease: float) -> bool:
    """
    Route what a group had claimed before it routed: a range that nobody has, what is due on its own; return whether any was.

    Locks: stream_leases (skipping), stream_exceptions (skipping).
    """
    with transaction.atomic(using=database()):
        held = leases.reclaim(group, worker=worker, lease=lease, token=uuid.uuid4())
        if held is not None:
            _send(consumer, held.rows)
            leases.commit(held.token)
        alone = exceptions.claim(group, limit=AT_ONCE, token=uuid.uuid4(), lease=lease)
        _send(consumer, [one.row for one in alone if one.row is not None])
        for one in alone:
            if one.row is not None:
                exceptions.done(one)
            else:
                exceptions.give_up(
                    one, exception="builtins.LookupError", traceback="The log does not have it any more."
                )
    return held is not None or bool(alone)


def route_here(consumer: Consumer, group: GroupId, fence: Fence, low: int, *, system: str) -> tuple[int, bool] | None:
    """Do the same in a transaction of the caller's, who answers for what is settled."""
    # Read by an earlier statement than the one that takes this transaction's id: only so may they be a pair.
    head = fence.head
    cursor = sql.LOCK_TO_ROUTE.of(group.stream).row(group=group.id, fence=FENCE, system=system)
    if cursor is None:
        return None
    mark = cursor.claimed
    upper = group.upper(mark, SEEN)
    (_, _, header, _), *rows = sorted(
        sql.UNROUTED.of(group.stream).tuples(group=group.id, low=mark, upper=upper, limit=SEEN)
    )
    seen, xmin, xid = json.loads(header)
    # Proven by the snapshot that has shown these rows: a peer's proof may be younger than it.
    fence.prove(xmin, (cursor.pending_head, cursor.pending_xid))
    unrouted = [row for row in rows if not row[3]]
    end = upper
    if len(rows) == SEEN:
        end = rows[-1][0]
    if len(unrouted) > AT_ONCE:
        end = unrouted[AT_ONCE][0] - 1
        unrouted = unrouted[:AT_ONCE]
    moved = max(_unbroken(mark, [row[0] for row in rows], end), min(fence.passable, end))
    _send(consumer, [(row[0], row[1], row[2]) for row in unrouted])
    above = [row[0] for row in unrouted if row[0] > moved]
    if above:
        sql.NOTE_ROUTED.count(group=group.id, positions=above)
    is_free = cursor.pending_xid is None or cursor.pending_xid <= xmin
    waits = moved == mark and head > mark
    if moved > mark or (is_free and waits):
        kept = (cursor.pending_head, cursor.pending_xid) if not is_free else (head, xid if waits else None)
        sql.MOVE_MARK.count(
            group=group.id,
            mark=moved,
            settled=fence.settled,
            pending_head=kept[0],
            pending_xid=None if kept[1] is None else str(kept[1]),
        )
    if moved > mark:
        sql.FORGET_ROUTED.count(group=group.id, mark=moved)
    fence.observe(head, xid)
    fence.head = max(fence.head, seen)
    return moved, bool(unrouted) or (moved > mark and fence.head > moved)


def _unbroken(mark: int, positions: Sequence[int], end: int) -> int:
    """Return the last position up to which all are there, counted from the mark."""
    for position in positions:
        if position != mark + 1 or position > end:
            break
        mark = position
    return mark


def _send(consumer: Consumer, rows: Sequence[tuple[int, int, str]]) -> None:
    """Store a message for each entry that is to go into a queue, and wake workers after the commit."""
    with guarded(database()):
        queues = [_queue(consumer, row) for row in rows]
    chosen = [(queue, row) for queue, row in zip(queues, rows, strict=True) if queue is not None]
    if not chosen:
        return
    sent = sql.ROUTE.tuples(
        queues=texts([queue for queue, _ in chosen]),
        payloads=texts([f'{{"position":{row[0]},"at":{row[1]},"payload":{row[2]}}}' for _, row in chosen]),
        task=consumer.path,
        topic=consumer.name,
    )
    wake.after_commit({Level(queue, priority): position for queue, priority, position in sent})


def _queue(consumer: Consumer, row: tuple[int, int, str]) -> str | None:
    """
    Return the queue of an entry, or None.

    Where the function fails nobody knows where the entry belongs: it goes into the queue of the group's name, where it
    will fail, and be seen.
    """
    if isinstance(consumer.route_to, str):
        return consumer.route_to
    assert consumer.route_to is not None
    position, at, text = row
    try:
        queue = consumer.route_to(Entry(consumer.stream, position, payload.decode_value(text), at))
        return None if queue is None else route_queue(queue)
    except BaseException as error:  # It may even exit.
        signals.route_broken.send_robust(sender=None, handler=consumer.path, position=position, exception=error)
        return FALLBACK


FALLBACK: Final = route_queue("unrouted")
