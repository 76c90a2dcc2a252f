"""The verbs of the claims: thin names over `sql.py`, for the transitions in `tasks/`."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django_pgbus.conf import get_settings
from django_pgbus.idempotency import sql
from django_pgbus.queues import heartbeat
from django_pgbus.queues.message import Delivery

Key = tuple[UUID, str]  # event, handler

REMEMBERED: Final = 10_000  # completed claims
REMEMBERED_FOR: Final = 300.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    What is known of a claim: its holder, its age and how much longer it is live for certain (seconds).

    `silent`: nobody works under it. `has_message`: the message of its holder is there, and so runs or will run; not one that
    is to be discarded, which may never be done.
    """

    event: UUID
    handler: str
    message: int
    delivery: int
    completed: bool
    age: float
    remaining: float
    silent: bool
    has_message: bool

    @property
    def key(self) -> Key:
        """Return what it is a claim on."""
        return self.event, self.handler


class Completed:
    """
    Claims that are known to be completed, for a while: a saving, never a promise.

    What is pending is never remembered: it may be released or taken over at any moment.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: OrderedDict[Key, float] = OrderedDict()

    def add(self, keys: Iterable[Key]) -> None:
        """Remember claims that are completed and committed."""
        until = time.monotonic() + REMEMBERED_FOR
        with self._lock:
            for key in keys:
                self._until[key] = until
                self._until.move_to_end(key)
            while len(self._until) > REMEMBERED:
                self._until.popitem(last=False)

    def __contains__(self, key: Key) -> bool:
        return self._until.get(key, 0.0) > time.monotonic()

    def __len__(self) -> int:
        return len(self._until)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._until.clear()


completed: Final = Completed()


def key_of(delivery: Delivery) -> Key:
    """Return what the delivery of an event has to claim."""
    assert delivery.event is not None
    return delivery.event, delivery.task


def look(keys: Iterable[Key]) -> dict[Key, Claim]:
    """Return the claims that are there among these, without a lock."""
    if not (wanted := sorted(set(keys))):
        return {}
    rows = sql.LOOK.tuples(
        events=[event for event, _ in wanted], handlers=[handler for _, handler in wanted], lease=_lease()
    )
    names = Claim.__slots__
    found = [Claim(**dict(zip(names, row, strict=True))) for row in rows]
    return {claim.key: claim for claim in found}


def wait_at_most(patience: str | None) -> None:
    """Let this transaction wait no longer for whoever holds a claim; None leaves it as it is. Locks: none."""
    sql.WAIT_AT_MOST.tuples(patience=patience)


def take(deliveries: Sequence[Delivery]) -> set[int]:
    """
    Claim for deliveries about to run and return the messages that have theirs; one silent claim is taken over once.

    Of several that want the same the first gets it. Locks: processed_events.
    """
    if not deliveries:
        return set()
    return {id for (id,) in sql.TAKE.tuples(**_named(deliveries), lease=_lease())}


def complete(deliveries: Sequence[Delivery]) -> set[int]:
    """
    Stamp the claims of these deliveries as completed, and return the messages whose claim was theirs.

    Locks: processed_events.
    """
    return {id for (id,) in sql.COMPLETE.tuples(**_named(deliveries))} if deliveries else set()


def release(pairs: Sequence[tuple[int, int]]) -> set[int]:
    """
    Give the pending claims of these (message, delivery) back, and return the messages that had one.

    Never another delivery's, and never what is completed. Locks: processed_events.
    """
    return {id for (id,) in sql.RELEASE.tuples(**_pairs(pairs))} if pairs else set()


def stamp(deliveries: Sequence[Delivery]) -> None:
    """
    Renew the claims of deliveries whose message was just renewed, while they run. Locks: processed_events (skipping).

    What has ended is left alone: a beat never arms again what is about to be settled.
    """
    if running := [(d.id, d.delivery) for d in deliveries if d.event is not None and not d.ended]:
        sql.STAMP.count(**_pairs(running), lease=_lease())


heartbeat.on_renewed.append(stamp)


def count_skipped(skipped: Iterable[tuple[str, str]]) -> None:
    """Count (reason, handler) of deliveries that were skipped. Locks: none."""
    if rows := list(skipped):
        sql.COUNT_SKIPPED.count(reasons=[reason for reason, _ in rows], handlers=[handler for _, handler in rows])


def _pairs(pairs: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    return {"ids": [id for id, _ in pairs], "deliveries": [delivery for _, delivery in pairs]}


def _named(deliveries: Sequence[Delivery]) -> dict[str, list[Any]]:
    return {
        "events": [delivery.event for delivery in deliveries],
        "handlers": [delivery.task for delivery in deliveries],
        "ids": [delivery.id for delivery in deliveries],
        "deliveries": [delivery.delivery for delivery in deliveries],
    }


def _lease() -> str:
    return f"{get_settings().VISIBILITY_TIMEOUT} seconds"
