"""What this process holds, and renewing it: one statement for all of it, which waits for nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from django_pgbus.queues import sql
from django_pgbus.queues.message import Delivery

# What else must be renewed for deliveries that are constrained, each called with those just renewed.
on_renewed: list[Callable[[Sequence[Delivery]], None]] = []


class Held:
    """The deliveries of this process, from claim to settlement; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[int, Delivery] = {}

    def add(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """
        Remember deliveries just claimed, and return those whose place they take.

        Claimed anew here, a message has superseded its older delivery: no beat will find that out any more.
        """
        replaced = []
        with self._lock:
            for delivery in deliveries:
                older = self._by_id.get(delivery.id)
                if older is not None and older is not delivery and not older.ended:
                    older.superseded = True
                    replaced.append(older)
                self._by_id[delivery.id] = delivery
        return replaced

    def drop(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Forget deliveries that are settled or handed back; return those whose message is not held anew meanwhile."""
        gone = []
        with self._lock:
            for delivery in deliveries:
                if self._by_id.get(delivery.id) is delivery:
                    del self._by_id[delivery.id]
                if delivery.id not in self._by_id:
                    gone.append(delivery)
        return gone

    def all(self) -> list[Delivery]:
        """Return what is held, by ascending id."""
        with self._lock:
            return [self._by_id[id] for id in sorted(self._by_id)]

    def has(self, delivery: Delivery) -> bool:
        """Return whether this very delivery is still held."""
        return self._by_id.get(delivery.id) is delivery

    def __len__(self) -> int:
        return len(self._by_id)


@dataclass(slots=True)
class Beat:
    """What a renewal found."""

    superseded: list[Delivery] = field(default_factory=list)
    discarded: list[Delivery] = field(default_factory=list)


def renew(held: Held, lease: float) -> Beat:
    """
    Renew all leases of this process and return which deliveries lost theirs or are to be discarded.

    A row that was locked is read again without a lock: it is superseded only if it is gone, under another
    delivery, or not leased. What constrains those just renewed is renewed after them. Locks: messages.
    """
    beat = Beat()
    deliveries = held.all()
    if not deliveries:
        return beat
    sent = time.monotonic()
    renewed = dict(
        sql.RENEW.tuples(
            ids=[d.id for d in deliveries],
            deliveries=[d.delivery for d in deliveries],
            started=[d.started for d in deliveries],
            lease=f"{lease} seconds",
        )
    )
    for delivery in deliveries:
        if delivery.id in renewed:
            delivery.confirmed_at = sent  # Whatever comes next: the lease of its message is what fences it.
    constrained = [d for d in deliveries if d.constraints is not None and d.id in renewed]
    if constrained:  # Before anything is concluded: what fails here is begun anew with the next beat.
        for renew_more in on_renewed:
            renew_more(constrained)
    missing = []
    for delivery in deliveries:
        if delivery.id in renewed:
            if renewed[delivery.id] and not delivery.discard:
                delivery.discard = True
                beat.discarded.append(delivery)
        else:
            missing.append(delivery)
    if missing:
        now = {id: (number, leased) for id, number, leased in sql.LEASES.tuples(ids=[d.id for d in missing])}
        for delivery in missing:
            # Settled here meanwhile: its end is known, and nobody superseded it.
            if (
                now.get(delivery.id) != (delivery.delivery, True)
                and held.has(delivery)
                and not (delivery.superseded or delivery.ended)
            ):
                delivery.superseded = True
                beat.superseded.append(delivery)
    return beat
