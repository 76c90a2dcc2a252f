"""Entries on their own: those that failed, and those that wait for one of their key that did."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from django_pgbus import signals
from django_pgbus.streams import sql
from django_pgbus.streams.leases import GroupId, Row


@dataclass(slots=True, kw_only=True, eq=False)
class Alone:
    """One entry that this process tries on its own; `attempts` counts the run that it is claimed for."""

    group: GroupId
    id: int
    token: uuid.UUID
    position: int
    attempts: int
    key: str | None
    row: Row | None  # None: the log does not have it any more
    confirmed_at: float = 0.0
    superseded: bool = False


def claim(group: GroupId, *, limit: int, token: uuid.UUID, lease: float) -> list[Alone]:
    """
    Claim entries that are due, the first of its key only, in the order of their positions.

    None of it counts as an attempt before it begins. Locks: stream_exceptions (skipping).
    """
    found = sql.CLAIM_EXCEPTIONS.tuples(group=group.id, limit=limit, token=token, lease=f"{lease} seconds")
    alone = []
    for id, position, attempts, key in sorted(found, key=lambda row: row[1]):
        rows = sql.READ_EXCEPTION.of(group.stream).tuples(id=id, position=position)
        row = rows[0] if rows and rows[0][2] is not None else None
        alone.append(Alone(group=group, id=id, token=token, position=position, attempts=attempts + 1, key=key, row=row))
    return alone


def begin(alone: Alone) -> bool:
    """
    Count the attempt that begins now; return False if the lease was lost.

    By a statement of its own: a run that ends its process counts, and what else that process had claimed does not.
    Locks: stream_exceptions.
    """
    return bool(sql.EXCEPTION_BEGINS.count(id=alone.id, token=alone.token))


def done(alone: Alone) -> bool:
    """Forget an entry that was handled; return False if its lease was lost. Locks: stream_exceptions."""
    return bool(sql.EXCEPTION_DONE.count(id=alone.id, token=alone.token))


def put_off(alone: Alone, delay: float, *, exception: str, traceback: str) -> bool:
    """Let it be tried again in `delay` seconds; return False if its lease was lost. Locks: stream_exceptions."""
    return bool(
        sql.EXCEPTION_FAILED.count(
            id=alone.id, token=alone.token, delay=delay, exception=exception, traceback=traceback, uncounted=False
        )
    )


def hand_back(alone: Alone) -> bool:
    """Let it be tried by another, as if it had not been claimed. Locks: stream_exceptions."""
    return bool(
        sql.EXCEPTION_FAILED.count(
            id=alone.id, token=alone.token, delay=0.0, exception="", traceback="", uncounted=True
        )
    )


def give_up(alone: Alone, *, exception: str, traceback: str) -> bool:
    """
    Make it a dead letter, which carries a copy of its entry; return False if its lease was lost.

    Locks: stream_exceptions.
    """
    return bool(
        sql.EXCEPTION_DIED.count(
            id=alone.id,
            token=alone.token,
            payload=alone.row and alone.row[2],
            appended_at=alone.row and alone.row[1],
            exception=exception,
            traceback=traceback,
        )
    )


def redrive(ids: Iterable[int], *, by: str = "") -> int:
    """
    Let dead letters be tried again, with all their attempts, and return how many.

    Entries of the same key that came after it have been handled meanwhile. Locks: stream_exceptions (skipping).
    """
    count = len(sql.REDRIVE.tuples(ids=list(ids)))
    if count:
        signals.entries_redriven.send_robust(sender=None, count=count, by=by)
    return count


def discard(ids: Iterable[int], *, by: str = "") -> int:
    """
    Count failed entries as done with, and return how many; one that runs just now is left to its run.

    Locks: stream_exceptions (skipping).
    """
    count = len(sql.DISCARD.tuples(ids=list(ids)))
    if count:
        signals.entries_discarded.send_robust(sender=None, count=count, by=by)
    return count
