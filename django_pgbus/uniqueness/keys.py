"""The verbs of the uniqueness keys: thin names over `sql.py`, for the transitions in `tasks/lifecycle.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from django.db import OperationalError, connections, transaction

from django_pgbus.conf import database
from django_pgbus.postgres import retrying
from django_pgbus.postgres.keys import stored
from django_pgbus.postgres.retrying import sqlstate
from django_pgbus.uniqueness import sql

PATIENCE: Final = "100ms"  # of a worker, with a transaction that has taken or frees a key that it needs
NO_PATIENCE: Final = "1ms"  # once one of them was found: with each of the rest
LOCK_NOT_AVAILABLE: Final = "55P03"


class Wanted(NamedTuple):
    """A key that a delivery needs to run."""

    key: str
    name: str
    message: int
    delivery: int
    queue: str


class Holder(NamedTuple):
    """Which delivery of which message holds a key."""

    key: str
    message: int
    delivery: int


def take(wanted: Iterable[Wanted]) -> tuple[set[int], set[str]]:
    """
    Take keys for deliveries about to run; return the messages that have theirs, and the keys nobody can tell about.

    Of several that want one key the first gets it. A worker waits for no caller: a key that another transaction has
    taken or frees and that does not end is contested, and nobody has it. Inside a transaction. Locks: uniqueness_keys.
    """
    first: dict[str, Wanted] = {}
    for one in wanted:
        first.setdefault(one.key, one)
    rows = sorted(first.values())
    taken = _take_all(rows, PATIENCE) if rows else set()
    if taken is not None:
        return taken, set()
    each = {one.key: _take_all([one], NO_PATIENCE) for one in rows}
    return {id for ids in each.values() if ids for id in ids}, {key for key, ids in each.items() if ids is None}


def _take_all(rows: Sequence[Wanted], patience: str) -> set[int] | None:
    """Return the messages that have their keys; None, and nobody has one, if another transaction is in the way."""
    # In the transaction of somebody else (a project's test) its settings stay as they are.
    inside = bool(connections[database()].savepoint_ids)
    try:
        with transaction.atomic(using=database()):
            taken = sql.TAKE.tuples(
                keys=[one.key for one in rows],
                names=[one.name for one in rows],
                ids=[one.message for one in rows],
                deliveries=[one.delivery for one in rows],
                queues=[one.queue for one in rows],
                patience=None if inside else patience,
            )
    except OperationalError as error:
        if sqlstate(error) == LOCK_NOT_AVAILABLE:
            return None
        raise
    return {id for (id,) in taken}


def free(ids: Sequence[int]) -> list[str]:
    """Free every key that these messages hold, since they are settled, and return them. Locks: uniqueness_keys."""
    return [key for (key,) in sql.FREE.tuples(ids=list(ids), running=False)] if ids else []


def stop_executing(ids: Sequence[int]) -> list[str]:
    """Free the keys held while these messages ran, which they no longer do. Locks: uniqueness_keys."""
    return [key for (key,) in sql.FREE.tuples(ids=list(ids), running=True)] if ids else []


def holders(keys: Sequence[str]) -> dict[str, int]:
    """Return {key: message} of keys that are held."""
    return dict(sql.HOLDERS.tuples(keys=list(keys)))


def silent(keys: Sequence[str], lease: float) -> list[Holder]:
    """Return the holders of these keys that are under no lease: these keys may be taken over."""
    return [Holder(*row) for row in sql.SILENT.tuples(keys=list(keys), lease=f"{lease} seconds")] if keys else []


def take_away(silent: Sequence[Holder]) -> list[str]:
    """Free keys whose holders have been fenced out, and return them. Locks: uniqueness_keys."""
    if not silent:
        return []
    return [
        key
        for (key,) in sql.TAKE_AWAY.tuples(
            keys=[holder.key for holder in silent],
            ids=[holder.message for holder in silent],
            deliveries=[holder.delivery for holder in silent],
        )
    ]


def discard_lock(key: str, message_id: int) -> bool:
    """
    Free a key that this very message holds, though the message is still there: it may then exist twice.

    Returns whether it held it. Locks: uniqueness_keys.
    """
    return bool(retrying(lambda: sql.DISCARD_LOCK.tuples(key=stored(key), id=message_id)))
