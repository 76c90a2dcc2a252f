"""
What the supervisor does in the database for a child that has ended, in a thread of its own.

The supervisor itself must go on reading its other children and obeying signals while a database that is away lets
a connection hang. A repair that fails is kept and tried again; each names (id, delivery), so one that comes late, or
twice, changes nothing.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgbus import signals
from django_pgbus.conf import get_settings
from django_pgbus.postgres import is_conflict, is_connection_loss
from django_pgbus.postgres.own_connection import close, own_connection
from django_pgbus.queues import queue
from django_pgbus.streams import leases
from django_pgbus.tasks import lifecycle, outcomes, sweeps
from django_pgbus.worker import sql
from django_pgbus.worker.counting import count_at_once
from django_pgbus.worker.endings import Ending
from django_pgbus.worker.ledger import Holding, TimedOut
from django_pgbus.worker.loop import Loop, backoff

TRIES: Final = 5  # of a repair that fails although the database is there
LONGEST_BACKOFF: Final = 2.0


class Repairer(Protocol):
    """What can be done for the jobs of a child that has ended; `DatabaseRepairs` does it."""

    def reap(self, held: Sequence[Holding]) -> None:
        """Release what a dead process held: started jobs keep their attempt, all are suspects."""

    def hand_back(self, held: Sequence[Holding]) -> None:
        """Put jobs back into the line, no attempt counted."""

    def fail_timed_out(self, held: Holding, timed_out: TimedOut, worker: uuid.UUID) -> None:
        """Settle the job whose hard timeout ended the process."""

    def hand_back_unreported(self, worker: uuid.UUID) -> None:
        """Put back what the process had claimed in its last moment, and told nobody of: nothing of it has run."""

    def release_ranges(self, worker: uuid.UUID, *, stopped: bool) -> None:
        """Let others go on with the ranges of streams that the process held."""

    def look_in_its_place(self, worker: uuid.UUID) -> None:
        """Let in who waits for what the process freed before it could look again."""

    def rest(self) -> None:
        """Give up the connection until there is more to do."""


@dataclass(slots=True, kw_only=True, eq=False)
class Repair:
    """The jobs one child held when it ended."""

    ending: Ending
    worker: uuid.UUID
    held: list[Holding]
    timed_out: TimedOut | None = None
    since: float = field(default_factory=time.monotonic)
    tries: int = 0
    tried: bool = False  # the first try is over, whatever came of it: the child may be replaced

    def make(self, repairer: Repairer) -> None:
        """Do it, step by step; what is done is not done again by the next try."""
        if self.ending is Ending.DIED:
            if self.held:
                repairer.reap(self.held)
        else:
            if self.timed_out is not None:
                for held in [held for held in self.held if held.id == self.timed_out.id]:
                    repairer.fail_timed_out(held, self.timed_out, self.worker)
                    self.held.remove(held)
            if self.held:
                repairer.hand_back(self.held)
        repairer.hand_back_unreported(self.worker)
        repairer.release_ranges(self.worker, stopped=self.ending is not Ending.DIED)
        repairer.look_in_its_place(self.worker)


class Repairs(Loop):
    """Makes repairs in the order they came, for as long as it takes."""

    part: ClassVar[str] = "supervisor"

    def __init__(self, repairer: Repairer, told: Callable[[], None]) -> None:
        """`told` is called whenever a try has been made."""
        super().__init__()
        self._repairer = repairer
        self._told = told
        self._waiting: deque[Repair] = deque()
        self._thread = threading.Thread(target=self.run, name="pgbus-repairs", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, repair: Repair) -> None:
        """Make `repair` as soon as possible."""
        self._waiting.append(repair)
        self.wake()

    @property
    def outstanding(self) -> int:
        """Return how many jobs wait for their repair."""
        return sum(len(repair.held) for repair in list(self._waiting))

    @property
    def idle(self) -> bool:
        """Return whether all repairs are made."""
        return not self._waiting

    def step(self) -> float:
        """Make what waits; return the longest wait, since `submit` wakes."""
        while self._waiting and not self.stopping:
            repair = self._waiting[0]
            repair.tries += 1
            try:
                repair.make(self._repairer)
            except Exception as error:
                repair.tried = True
                if repair.tries < TRIES or is_connection_loss(error) or is_conflict(error):
                    raise
                # Nothing is lost: the leases lapse, and any worker releases what then is still held.
                signals.repair_failed.send_robust(
                    type(self), worker=repair.worker, count=len(repair.held), exception=error
                )
            repair.tried = True
            self._waiting.popleft()
            self._told()
        self._repairer.rest()
        return 3600.0

    def on_error(self, error: BaseException) -> float:
        """Return the wait before the next try; whoever waits for the first one is told."""
        super().on_error(error)
        self._repairer.rest()
        self._told()
        return backoff(self._failures, first=0.2, longest=LONGEST_BACKOFF)

    def finish(self, seconds: float) -> None:
        """Stop, and wait at most `seconds` for a step in progress."""
        self.stop()
        self._thread.join(seconds)


class DatabaseRepairs:
    """Repairs by `tasks/lifecycle.py`, on a connection that is open only while there is something to do."""

    def __init__(self) -> None:
        self._connection: BaseDatabaseWrapper | None = None

    def reap(self, held: Sequence[Holding]) -> None:
        """Release what a dead process held."""
        self._connect()
        lifecycle.reap(
            [
                outcomes.HeldMessage(
                    id=job.id,
                    delivery=job.delivery,
                    started=job.started,
                    suspect=job.suspect,
                    running=job.running,
                )
                for job in held
            ]
        )

    def hand_back(self, held: Sequence[Holding]) -> None:
        """Put jobs back into the line."""
        self._connect()
        lifecycle.hand_back([(job.id, job.delivery) for job in held])

    def fail_timed_out(self, held: Holding, timed_out: TimedOut, worker: uuid.UUID) -> None:
        """Settle the job whose hard timeout ended the process."""
        self._connect()
        settled = lifecycle.fail_timed_out(
            held.id,
            held.delivery,
            max_attempts=timed_out.max_attempts or get_settings().MAX_ATTEMPTS,
            ran_for=timed_out.ran_for,
            worker=str(worker),
        )
        if settled is not None:
            count_at_once(settled)

    def hand_back_unreported(self, worker: uuid.UUID) -> None:
        """Put back what the process had claimed and told nobody of."""
        self._connect()
        lifecycle.hand_back(queue.held_by(worker))

    def release_ranges(self, worker: uuid.UUID, *, stopped: bool) -> None:
        """Let others go on with the ranges of streams that the process held."""
        self._connect()
        leases.lapse(worker, stopped=stopped)

    def look_in_its_place(self, worker: uuid.UUID) -> None:
        """
        Let in who waits for what the process freed before it could look again, and end its term as the dispatcher.

        Where processes die faster than a dispatcher is elected, nobody else would.
        """
        self._connect()
        sql.RESIGN.count(worker=worker)
        sql.LEAVE.count(worker=worker)  # What it held is in the line again: nobody has to wait for its silence.
        sweeps.GoOn().sweep()

    def rest(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            close(self._connection)

    def _connect(self) -> None:
        # One of its own: never from a pool, and an attempt to connect ends after seconds.
        if self._connection is None:
            self._connection = own_connection("supervisor")
