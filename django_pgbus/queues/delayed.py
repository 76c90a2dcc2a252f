"""Delayed, retrying and snoozed messages: apart from the line, moved into it when due (semantics 2.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django_pgbus.queues import sql

BATCH: Final = 1000


def move_due(queues: Sequence[str], limit: int = BATCH) -> list[tuple[str, int, bool, int]]:
    """
    Move due messages of these queues into the line and return (queue, priority, suspect, position) of each.

    They get fresh positions, so neither they nor fresh messages starve. Locks: delayed (skipping).
    """
    if not queues:
        return []
    moved = sql.MOVE_DUE.tuples(queues=list(queues), limit=limit)
    return [(queue, priority, False, position) for queue, priority, position in moved]
