"""
Ranges: claimed, renewed, claimed again from who fell silent, committed under their token.

A range is (low, high]. Its token is made by who asks for it, so an answer that is lost with the connection is looked up.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from django_pgbus.exceptions import ConsumeRefused
from django_pgbus.streams import sql
from django_pgbus.streams.fence import FENCE, Fence
from django_pgbus.streams.partitions import is_alone

Row = tuple[int, int, str]  # position, microseconds since 1970, payload

TAKEN_APART_AFTER: Final = 3  # claims of one range that were not committed
_position = itemgetter(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupId:
    """Where the numbers of a group stand: ids of its row and of its stream's, and how its log is partitioned."""

    id: int
    stream: int
    partition_size: int

    def upper(self, low: int, limit: int) -> int:
        """Return how far a claim of so many entries looks from `low`: to the end of a partition, and through few of them."""
        return ((low + 1 + 2 * limit) // self.partition_size + 1) * self.partition_size - 1


@dataclass(slots=True, kw_only=True, eq=False)
class Range:
    """A range that this process holds."""

    group: GroupId
    token: uuid.UUID
    lease: int
    low: int
    high: int
    rows: Sequence[Row]
    reclaims: int = 0
    confirmed_at: float = 0.0  # by the monotonic clock, before the last statement that set or renewed it was sent
    lasts: float = float("inf")  # seconds from then
    superseded: bool = False
    in_doubt: bool = False  # a statement that would end it was sent, and its answer has not come

    @property
    def is_lost(self) -> bool:
        """Return whether another may have it: a beat has seen so, or this process was halted for longer than it lasts."""
        return self.superseded or time.monotonic() - self.confirmed_at > self.lasts


@dataclass(slots=True)
class Claim:
    """What one claim came to: `moved` with or without a range; `elsewhere` if the cursor is not where it was expected."""

    range: Range | None = None
    claimed: int | None = None
    freed: bool = False

    @property
    def elsewhere(self) -> bool:
        """Return whether to look anew: another worker has claimed, the group is paused, rewound or of another epoch."""
        return self.claimed is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """
    An entry that is not done with its range; `attempts` 0: it was not tried.

    One that is not tried again brings its `dead` row: it becomes a dead letter at once.
    """

    position: int
    attempts: int
    delay: float
    key: str | None = None
    exception: str = ""
    traceback: str = ""
    dead: Row | None = None


def claim(
    group: GroupId,
    fence: Fence,
    low: int,
    *,
    system: str,
    limit: int,
    worker: uuid.UUID,
    lease: float,
    token: uuid.UUID,
    done: uuid.UUID | None = None,
    is_first: bool = False,
) -> Claim:
    """
    Claim the next entries of a group, and free the range `done`; one statement, in a transaction of its own.

    `low` is where the cursor was last seen. `is_first` says that the caller has just begun the transaction. What the
    statement shows of the log is noted in `fence`. Raises ConsumeRefused inside any other transaction. Locks:
    stream_cursors, stream_leases.
    """
    if not is_first and not is_alone():
        raise ConsumeRefused(
            "A claim is the first statement of its transaction: it cannot be made inside atomic() or with autocommit off."
        )
    head = max(fence.head, low)
    rows = sql.CLAIM.of(group.stream).tuples(
        group=group.id,
        fence=FENCE,
        system=system,
        low=low,
        upper=group.upper(low, limit),
        settled=fence.passable,
        head=head,
        limit=limit,
        token=token,
        done=done,
        worker=worker,
        lease=f"{lease} seconds",
    )
    rows.sort(key=_position)
    (_, _, header), *entries = rows
    before, high, lease_id, freed, seen, xmin, xid = json.loads(header)
    if xid is not None:
        fence.observe(head, xid)
    fence.prove(xmin)
    fence.head = max(fence.head, seen)
    if before is None:
        return Claim(freed=bool(freed))
    held = None
    if lease_id is not None:
        held = Range(group=group, token=token, lease=lease_id, low=before, high=high, rows=entries)
    return Claim(range=held, claimed=high, freed=bool(freed))


def may_pass(group: GroupId, fence: Fence) -> bool:
    """
    Return whether the next claim may pass the holes up to what is settled; not while somebody attaches a partition.

    Asked after the proof, and before the claim is planned.
    """
    proven = fence.settled
    if proven > fence.passable and not sql.IS_REPARTITIONED.of(group.stream).tuples()[0][0]:
        fence.passable = proven
    return fence.passable == proven


def reclaim(group: GroupId, *, worker: uuid.UUID, lease: float, token: uuid.UUID) -> Range | None:
    """Claim the lowest range whose worker has fallen silent, and return it. Locks: stream_leases (skipping)."""
    found = sql.RECLAIM.tuples(group=group.id, worker=worker, lease=f"{lease} seconds", token=token)
    return _read(group, token, found)


def find(group: GroupId, token: uuid.UUID) -> Range | None:
    """Return the range of a claim whose answer was lost, or None if it was not made."""
    return _read(group, token, sql.FIND_LEASE.tuples(token=token))


def is_held(token: uuid.UUID) -> bool:
    """Return whether a range is there under this token."""
    return bool(sql.STILL_HELD.tuples(tokens=[token], ids=[]))


def begin_again(group: GroupId, token: uuid.UUID) -> Range | None:
    """
    Return a range whose end was not answered, counted as claimed again, or None if it has ended.

    Locks: stream_leases (skipping).
    """
    return _read(group, token, sql.BEGIN_AGAIN.tuples(token=token))


def _read(group: GroupId, token: uuid.UUID, found: list[tuple[Any, ...]]) -> Range | None:
    if not found:
        return None
    id, low, high, reclaims = found[0]
    rows = sql.READ_RANGE.of(group.stream).tuples(low=low, high=high, limit=high - low)
    return Range(group=group, token=token, lease=id, low=low, high=high, rows=rows, reclaims=reclaims)


def commit(token: uuid.UUID, failures: Sequence[Failure] = ()) -> bool:
    """
    End a range and enter what failed of it; return False, having written nothing, if the lease was lost.

    Runs in the caller's transaction, if there is one. Locks: stream_leases, stream_keys.
    """
    return bool(sql.COMMIT.tuples(token=token, **_columns(failures)))


def hand_back(token: uuid.UUID, low: int, failures: Sequence[Failure] = ()) -> bool:
    """
    Give back what is above `low` of a range, for anybody to go on with at once; return False if the lease was lost.

    Locks: stream_leases.
    """
    return bool(sql.HAND_BACK.tuples(token=token, low=low, **_columns(failures)))


def take_apart(held: Range, keys: dict[int, str], reason: str) -> int:
    """
    Let each entry of a range be tried alone, and return how many; `keys` are theirs, by position.

    Locks: stream_leases, stream_keys.
    """
    positions = [row[0] for row in held.rows]
    return sql.TAKE_APART.count(
        token=held.token, positions=positions, keys=[keys.get(position) for position in positions], reason=reason
    )


def lapse(worker: uuid.UUID, *, stopped: bool) -> int:
    """
    Let the leases of a worker that is gone end now, and return how many; if it was `stopped`, they count as not claimed.

    Locks: stream_leases (skipping).
    """
    return sql.LAPSE.count(worker=worker, stopped=stopped)


def renew(tokens: Collection[uuid.UUID], exceptions: dict[int, uuid.UUID], lease: float) -> set[uuid.UUID]:
    """
    Renew ranges and entries on their own (ids with their tokens), and return the tokens that are lost.

    Waits for nobody: what is locked is looked at without a lock. Locks: stream_leases, stream_exceptions (skipping).
    """
    wanted = {*tokens, *exceptions.values()}
    if not wanted:
        return set()
    ids, held = list(exceptions), list(exceptions.values())
    if tokens:
        sql.RENEW.count(tokens=list(tokens), lease=f"{lease} seconds")
    if exceptions:
        sql.RENEW_EXCEPTIONS.count(ids=ids, tokens=held, lease=f"{lease} seconds")
    there = {token for (token,) in sql.STILL_HELD.tuples(tokens=list(wanted), ids=ids)}
    return wanted - there


def _columns(failures: Sequence[Failure]) -> dict[str, Any]:
    return {
        "positions": [failure.position for failure in failures],
        "attempts": [failure.attempts for failure in failures],
        "delays": [failure.delay for failure in failures],
        "keys": [failure.key for failure in failures],
        "exceptions": [failure.exception for failure in failures],
        "tracebacks": [failure.traceback for failure in failures],
        "payloads": [failure.dead and failure.dead[2] for failure in failures],
        "appended_at": [failure.dead and failure.dead[1] for failure in failures],
    }
