"""The entrance of constrained tasks: the steps of `lifecycle.enter` and of a redrive, for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from django_pgbus.concurrency import slots
from django_pgbus.conf import database
from django_pgbus.postgres.arrays import texts
from django_pgbus.queues import wake
from django_pgbus.queues.message import Level
from django_pgbus.tasks import constraints, sql
from django_pgbus.tasks.outcomes import Enqueued, Entered, HeldElsewhere, LimitReached, NewWork
from django_pgbus.uniqueness import keys

TRIES: Final = 3  # to name a holder that is gone each time


class Entrant:
    """One task at the entrance; one that is redriven brings its id, number, history and time."""

    def __init__(
        self,
        work: NewWork,
        *,
        id: int | None = None,
        delivery: int = 0,
        errors: str | None = None,
        enqueued_at: Any = None,
    ) -> None:
        self.work = work
        self.id = id
        self.delivery = delivery
        self.errors = errors
        self.enqueued_at = enqueued_at
        self.ordinal: int | None = None
        self.outcome: Entered | None = None

    @property
    def decides_at_once(self) -> bool:
        """Return whether it must have its slot now or be refused."""
        limit = self.work.constraints.limit
        return limit is not None and limit.on_conflict != "block"


class Entrance:
    """The steps of `enter`: reserve slots under the semaphores, take keys and store, name the holders of the rest."""

    def __init__(self, entrants: Sequence[Entrant]) -> None:
        self._entrants = entrants
        self.semaphores: set[str] = set()  # to be looked at after the commit

    def decide(self) -> list[Entered]:
        """Return what became of each, in their order."""
        if any(entrant.decides_at_once for entrant in self._entrants):
            with transaction.atomic(using=database()):
                self._until_decided()
                if not any(isinstance(entrant.outcome, Enqueued) for entrant in self._entrants):
                    transaction.set_rollback(True, using=database())  # The locks go with it.
        else:
            self._until_decided()
        return [entrant.outcome for entrant in self._entrants if entrant.outcome is not None]

    def _until_decided(self) -> None:
        vanished: dict[int, int] = {}
        while waiting := [entrant for entrant in self._entrants if entrant.outcome is None]:
            full = set(self._reserve(waiting))
            stored_now = self._store([entrant for entrant in waiting if entrant not in full])
            refused = [entrant for entrant in waiting if entrant not in full and entrant.outcome is None]
            holders = keys.holders([self._unique(entrant).key for entrant in refused]) if refused else {}
            for entrant in refused:
                key = self._unique(entrant)
                tries = vanished[id(entrant)] = vanished.get(id(entrant), 0) + 1
                # Gone between the conflict and this look: it is free now, so it is tried again.
                if key.key in holders or tries == TRIES:
                    entrant.outcome = HeldElsewhere(key=key.name or key.key, holder=holders.get(key.key))
            # A slot that was reserved for one whose key is held goes to the next who found none.
            spared = {self._limit(e).key for e in refused if e.decides_at_once}
            for entrant in full:
                limit = self._limit(entrant)
                if limit.key not in spared or not (stored_now or refused):
                    entrant.outcome = LimitReached(key=limit.name or limit.key, to=limit.to)

    def _reserve(self, waiting: Sequence[Entrant]) -> list[Entrant]:
        """Reserve a slot for each that must have one now; return those for whom there is none."""
        deciding = [entrant for entrant in waiting if entrant.decides_at_once]
        if not deciding:
            return []
        limits = [self._limit(entrant) for entrant in deciding]
        self.semaphores |= {limit.key for limit in limits}  # Whoever held a semaphore looks again.
        ordinals = slots.reserve([limit.key for limit in limits], {limit.key: limit.terms for limit in limits})
        for entrant, ordinal in zip(deciding, ordinals, strict=True):
            entrant.ordinal = ordinal
        return [entrant for entrant in deciding if entrant.ordinal is None]

    def _store(self, entrants: Sequence[Entrant]) -> int:
        if not entrants:
            return 0
        due = entrants[0].work.due
        rows = sql.ENTER.rows(
            ids=[e.id for e in entrants],
            queues=[e.work.queue for e in entrants],
            priorities=[e.work.priority for e in entrants],
            tasks=[e.work.task for e in entrants],
            backends=[e.work.backend for e in entrants],
            payloads=texts([e.work.payload for e in entrants]),
            constraints=texts([e.work.constraints.text() for e in entrants]),
            deliveries=[e.delivery for e in entrants],
            errors=texts([e.errors for e in entrants]),
            enqueued_at=[e.enqueued_at for e in entrants],
            batches=[e.work.batch for e in entrants],
            unique_keys=texts([key.key if (key := e.work.constraints.until_executed) else None for e in entrants]),
            unique_names=texts([key.name if (key := e.work.constraints.until_executed) else "" for e in entrants]),
            semaphores=texts([limit.key if (limit := e.work.constraints.limit) else None for e in entrants]),
            ordinals=[e.ordinal for e in entrants],
            durations=[limit.duration if (limit := e.work.constraints.limit) else None for e in entrants],
            due_at=due if isinstance(due, datetime) else None,
            due_in=due if isinstance(due, timedelta) else None,
        )
        lowest: dict[Level, int] = {}
        soonest: dict[str, float] = {}
        for row in rows:
            entrant = entrants[row.nth - 1]
            entrant.outcome = Enqueued(row.id, row.enqueued_at)
            level = Level(row.queue, row.priority)
            if row.parks and row.due_in is None:
                self.semaphores.add(self._limit(entrant).key)
            elif row.due_in is not None:
                soonest[row.queue] = min(row.due_in, soonest.get(row.queue, row.due_in))
                lowest.setdefault(level, 0)
            else:
                lowest[level] = min(row.position, lowest.get(level) or row.position)
        if lowest:
            wake.after_commit(lowest, soonest)
        return len(rows)

    @staticmethod
    def _unique(entrant: Entrant) -> constraints.BoundKey:
        assert entrant.work.constraints.until_executed is not None
        return entrant.work.constraints.until_executed

    @staticmethod
    def _limit(entrant: Entrant) -> constraints.BoundLimit:
        assert entrant.work.constraints.limit is not None
        return entrant.work.constraints.limit
