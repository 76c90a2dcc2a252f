"""
Whether a delivery of an event runs: the table of claim outcomes (semantics 5.4), as a step of `lifecycle.pick_up`.

| found | do |
|---|---|
| nothing, or a silent claim whose holder is fenced out | claim, run |
| a claim that vanished between insert and read | claim, run |
| live, held by another message | skip: that one does the work |
| live, held by this very message, or by one that is nowhere or to be discarded | wait for its lease: maybe the only copy |
| completed, or known to be | skip |

A suspect waits where it is, in the hands of its worker: among the delayed its mark would be lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from django.db import connections

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.idempotency import claims as verbs
from django_pgbus.idempotency.claims import Claim, Key, completed, key_of
from django_pgbus.queues import sql
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import constraints
from django_pgbus.tasks.outcomes import PickedUp

TRIES: Final = 3  # to claim what vanishes each time
MARGIN: Final = 0.05  # seconds after the end of a lease


def claims(delivery: Delivery) -> bool:
    """Return whether a delivery claims an event."""
    return delivery.event is not None and constraints.readable(delivery.constraints).idempotent


@dataclass(slots=True)
class Decided:
    """What becomes of deliveries that were to claim their events."""

    picked: PickedUp = field(default_factory=PickedUp)
    skipped: list[tuple[Delivery, str, float | None]] = field(default_factory=list)  # reason, age of the claim
    waiting: list[tuple[Delivery, float]] = field(default_factory=list)  # seconds
    taken_over: list[tuple[Delivery, float]] = field(default_factory=list)  # age of the claim

    def announced(self) -> PickedUp:
        """Say what was decided, now that it is committed, and return it."""
        may_be_rolled_back = connections[database()].in_atomic_block  # A test of a project.
        for delivery in (*self.picked.skipped, *self.picked.waiting, *self.picked.lost):
            delivery.ended = True  # A beat that finds it gone has not lost it.
        for delivery, age in self.taken_over:
            signals.claim_taken_over.send_robust(sender=None, delivery=delivery, age=age)
        for delivery, reason, claim_age in self.skipped:
            if reason == "completed" and not may_be_rolled_back:
                completed.add([key_of(delivery)])
            signals.event_skipped.send_robust(sender=None, delivery=delivery, reason=reason, age=claim_age)
        for delivery, delay in self.waiting:
            signals.event_waits.send_robust(sender=None, delivery=delivery, delay=delay)
        return self.picked


def look(deliveries: Sequence[Delivery]) -> dict[Key, Claim]:
    """Return what is known of the claims on their events, without a lock."""
    return verbs.look(key for delivery in deliveries if (key := key_of(delivery)) not in completed)


def decide(deliveries: Sequence[Delivery], leased: Collection[int], known: Mapping[Key, Claim]) -> Decided:
    """
    Claim what can be claimed, settle what is skipped, put off what waits; the messages `leased` are locked.

    Locks: processed_events, and again messages.
    """
    decided = Decided()
    decided.picked.lost += [delivery for delivery in deliveries if delivery.id not in leased]
    left = []
    for delivery in deliveries:
        if delivery.id in leased:
            if key_of(delivery) in completed:
                decided.skipped.append((delivery, "cached", None))
            else:
                left.append(delivery)
    now = {key: claim for key, claim in known.items() if not claim.silent}
    for _ in range(TRIES):
        free = [delivery for delivery in left if _may_be_claimed(delivery, now)]
        taken = verbs.take(free)
        for delivery in left:
            if delivery.id in taken:
                decided.picked.taken.append(delivery)
                if (before := known.get(key_of(delivery))) is not None and before.silent:
                    decided.taken_over.append((delivery, before.age))
        left = [delivery for delivery in left if delivery.id not in taken]
        now = verbs.look(map(key_of, left))
        if all(key_of(delivery) in now for delivery in left):
            break
    for delivery in left:
        _judge(decided, delivery, now.get(key_of(delivery)))
    decided.picked.skipped += [delivery for delivery, *_ in decided.skipped]
    decided.picked.waiting += [delivery for delivery, _ in decided.waiting]
    _store(decided)
    return decided


def _may_be_claimed(delivery: Delivery, now: Mapping[Key, Claim]) -> bool:
    claim = now.get(key_of(delivery))
    return claim is None or (claim.message, claim.delivery) == (delivery.id, delivery.delivery)


def _judge(decided: Decided, delivery: Delivery, claim: Claim | None) -> None:
    if claim is None or claim.silent:  # It has just changed: asked again in a moment.
        decided.picked.contested.append(delivery)
    elif claim.completed:
        decided.skipped.append((delivery, "completed", claim.age))
    elif claim.message != delivery.id and claim.has_message:
        decided.skipped.append((delivery, "owned", claim.age))
    elif delivery.level.suspect:
        decided.picked.contested.append(delivery)
    else:
        decided.waiting.append((delivery, max(0.0, claim.remaining) + MARGIN))


def _store(decided: Decided) -> None:
    skipped = sorted(decided.skipped, key=lambda one: one[0].id)
    if skipped:
        sql.SKIP.tuples(
            ids=[delivery.id for delivery, *_ in skipped],
            deliveries=[delivery.delivery for delivery, *_ in skipped],
            notes=[reason for _, reason, _ in skipped],
        )
        verbs.count_skipped((reason, delivery.task) for delivery, reason, _ in skipped)
    if waiting := sorted(decided.waiting, key=lambda one: one[0].id):
        sql.PUT_OFF.tuples(
            ids=[delivery.id for delivery, _ in waiting],
            deliveries=[delivery.delivery for delivery, _ in waiting],
            delays=[delay for _, delay in waiting],
            reasons=["owned"] * len(waiting),
            errors=[None] * len(waiting),
            ran_for=[0.0] * len(waiting),
            ended_ago=[0.0] * len(waiting),
        )
