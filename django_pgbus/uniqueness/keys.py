"""The verbs of the uniqueness keys: thin names over `sql.py`, for the transitions in `tasks/lifecycle.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django_pgbus.postgres import retrying
from django_pgbus.postgres.keys import stored
from django_pgbus.uniqueness import sql


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
    delivery: int | None  # None: kept for the message until it is picked up


def take(wanted: Iterable[Wanted]) -> set[int]:
    """
    Take keys for deliveries about to run and return the messages that have theirs.

    Of several that want one key the one it is kept for gets it, else the first. Locks: uniqueness_keys.
    """
    rows = list(wanted)
    if not rows:
        return set()
    taken = sql.TAKE.tuples(
        keys=[one.key for one in rows],
        names=[one.name for one in rows],
        ids=[one.message for one in rows],
        deliveries=[one.delivery for one in rows],
        queues=[one.queue for one in rows],
    )
    return {id for (id,) in taken}


def hold(key: str, name: str, batch: int) -> bool:
    """Take a key for a batch until it is finished, and return whether it was free. Locks: none."""
    return bool(sql.HOLD.tuples(key=key, name=name, holder=batch))


def reserve(waiters: Iterable[tuple[str, int]]) -> None:
    """
    Keep keys, each for a message that was just let in, until it is picked up: a newcomer in the line is behind it.

    For the time of a lease, and not while its queue is paused. What is taken meanwhile stays taken. Locks: none.
    """
    rows = sorted(waiters)
    if rows:
        sql.RESERVE.count(keys=[key for key, _ in rows], ids=[id for _, id in rows])


def free(ids: Sequence[int], waiting: Sequence[int] = ()) -> list[str]:
    """
    Free every key that these messages hold, since they are settled, and return the keys.

    Those of `waiting` only stopped running: they keep what they hold until they are executed. Locks: uniqueness_keys.
    """
    if not (ids or waiting):
        return []
    return [key for (key,) in sql.FREE.tuples(ids=list(ids), waiting=list(waiting))]


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
