"""Delayed, retrying and snoozed messages: apart from the line, moved into it when due (semantics 2.7)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django_pgbus.queues import queue as line
from django_pgbus.queues import sql, wake
from django_pgbus.queues.message import Level

BATCH: Final = 1000


def send(
    queue: str,
    priority: int,
    task: str,
    backend: str,
    payloads: Sequence[str],
    due: datetime | timedelta,
    batch: int | None = None,
) -> list[tuple[int, datetime]]:
    """
    Put messages among the delayed, or into the line if they are due, and return (id, enqueued_at) of each.

    Workers are woken after the commit. Locks: none.
    """
    rows = line.send_later(queue, priority, task, backend, payloads, due, batch)
    positions = [row.position for row in rows if row.position is not None]
    soonest = min(row.due_in for row in rows)
    wake.after_commit(
        {Level(queue, priority): min(positions, default=0)},
        None if positions else {queue: soonest},
    )
    return [(row.id, row.enqueued_at) for row in rows]


def move_due(queues: Sequence[str], limit: int = BATCH) -> list[tuple[str, int, bool, int]]:
    """
    Move due messages of these queues into the line and return (queue, priority, suspect, position) of each.

    They get fresh positions, so neither they nor fresh messages starve. Locks: delayed (skipping).
    """
    if not queues:
        return []
    moved = sql.MOVE_DUE.tuples(queues=list(queues), limit=limit)
    return [(queue, priority, False, position) for queue, priority, position in moved]
