"""The verbs of the parked: tasks that wait, whole, for a slot or for a uniqueness key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from django_pgbus.concurrency import sql

BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """
    A delivery to be parked, and what it waits for.

    `due_in` is in seconds, None for one that could run now; `fenced` raises its delivery number; `dropped` says why it
    is settled as discarded instead.
    """

    id: int
    delivery: int
    waits_for: Literal["semaphore", "key"]
    key: str
    semaphore: str | None
    due_in: float | None = None
    fenced: bool = True
    dropped: str = ""


class Gone(NamedTuple):
    """What became of a delivery that was to be parked, and the batch that it belongs to."""

    discarded: bool
    batch: int | None


def park(parks: Iterable[Park]) -> dict[int, Gone]:
    """
    Park deliveries, no attempt counted, and return what became of those still leased, by their ids.

    Locks: messages.
    """
    rows = sorted(parks, key=lambda one: one.id)
    if not rows:
        return {}
    gone = sql.PARK.tuples(
        ids=[one.id for one in rows],
        deliveries=[one.delivery for one in rows],
        waits_for=[one.waits_for for one in rows],
        keys=[one.key for one in rows],
        semaphores=[one.semaphore for one in rows],
        due_in=[one.due_in for one in rows],
        raised=[int(one.fenced) for one in rows],
        dropped=[one.dropped for one in rows],
    )
    return {id: Gone(discarded, batch) for id, discarded, batch in gone}


def make_due(queues: Sequence[str], limit: int = BATCH) -> tuple[set[str], set[str]]:
    """
    Make candidates of parked tasks whose time has come; return the (semaphores, uniqueness keys) they wait for.

    Locks: blocked_executions (skipping).
    """
    if not queues:
        return set(), set()
    rows = sql.MAKE_DUE.tuples(queues=list(queues), limit=limit)
    return {key for waits_for, key in rows if waits_for == "semaphore"}, {k for w, k in rows if w == "key"}


def make_due_now(ids: Sequence[int]) -> tuple[set[int], set[str], set[str]]:
    """
    Make candidates of these parked tasks though their time has not come; return (ids, semaphores, uniqueness keys).

    Locks: blocked_executions.
    """
    rows = sql.MAKE_DUE_NOW.tuples(ids=list(ids)) if ids else []
    return (
        {id for id, _, _ in rows},
        {key for _, waits_for, key in rows if waits_for == "semaphore"},
        {key for _, waits_for, key in rows if waits_for == "key"},
    )


def promote_for_keys(keys: Sequence[str]) -> tuple[list[Any], dict[str, tuple[int, str]], list[tuple[str, int]]]:
    """
    Let the best that waits for each of these uniqueness keys go, and return the rows now in the line.

    One that is limited gets no slot here: it waits for its semaphore from now on, and the caller promotes there; these
    are returned as {key: (id, semaphore)}, and then the (key, id) of those that go. Inside a transaction of the caller.
    Locks: blocked_executions (skipping).
    """
    rows = sql.NEXT_FOR_KEY.rows(keys=sorted(keys))
    limited = {row.key: (row.id, row.semaphore) for row in rows if row.semaphore is not None}
    if limited:
        sql.POINT_TO_SEMAPHORE.count(ids=[id for id, _ in limited.values()])
    goes = [(row.key, row.id) for row in rows if row.semaphore is None]
    free = [id for _, id in goes]
    nothing: list[None] = [None] * len(free)
    moved = sql.PROMOTE.rows(ids=free, ordinals=nothing, durations=nothing, constraints=nothing) if free else []
    return moved, limited, goes


def waited_for_among(keys: Iterable[str]) -> list[str]:
    """Return those of these uniqueness keys that somebody waits for."""
    wanted = sorted(keys)
    return [key for (key,) in sql.HAS_WAITERS.tuples(keys=wanted)] if wanted else []


def of_key(waits_for: str, key: str, up_to: int, limit: int, seen_at: str | None = None) -> list[int]:
    """Return parked tasks of a key, locked, best first, up to an id and a time. Locks: blocked_executions (skipping)."""
    rows = sql.PARKED_OF_KEY.tuples(waits_for=waits_for, key=key, up_to=up_to, seen_at=seen_at, limit=limit)
    return [id for (id,) in rows]


def discard(ids: Sequence[int]) -> dict[int, int | None]:
    """Settle parked tasks as discarded and return {id: batch} of those that were there. Locks: blocked_executions."""
    return dict(sql.DISCARD.tuples(ids=list(ids))) if ids else {}


def waited_for(waits_for: str, after: str, limit: int) -> list[str]:
    """Return the next keys after `after` that parked tasks wait for."""
    return [key for (key,) in sql.WAITED_FOR.tuples(waits_for=waits_for, after=after, limit=limit)]
