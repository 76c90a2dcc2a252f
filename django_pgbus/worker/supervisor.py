"""
The parent of the worker processes: starts them, replaces them, stops them, and sets right what they held.

One thread that waits for reports, ends of children and signals, and in between for its next deadline. It touches no
database itself (`repairs.py` does) and so always obeys.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from multiprocessing.connection import wait
from typing import Final

from django_pgbus import signals
from django_pgbus.worker.child import MAIN, Child
from django_pgbus.worker.endings import SOME_FAILED, Ending, ending
from django_pgbus.worker.health import Status
from django_pgbus.worker.loop import backoff
from django_pgbus.worker.plan import ProcessPlan, WorkerPlan
from django_pgbus.worker.repairs import DatabaseRepairs, Repair, Repairer, Repairs
from django_pgbus.worker.shutdown import Demands, Level, demands
from django_pgbus.worker.watchdog import Watchdog

LONGEST_WAIT: Final = 1.0
READ_EVERY: Final = 0.02  # reports are read in batches, however fast the jobs
MARGIN: Final = 5.0  # beyond the grace: for cancelling, handing back and leaving
REPAIR_TIME: Final = 10.0  # at the end, for the database to come back
HASTE: Final = 1.0
REPAIR_FIRST: Final = 5.0  # a replacement waits so long for the repair of its predecessor
FIRST_BACKOFF: Final = 0.25
LONGEST_BACKOFF: Final = 10.0
HEALTHY_AFTER: Final = 10.0  # seconds of life after which an end is no failed start
QUICK: Final = 1.0
BURST_STARTS: Final = 5  # failed starts in a row after which a burst gives up
SUSPENDED: Final = 5.0  # a turn that took longer: this process was stopped, silence proves nothing


class Slot:
    """A place for one process, whoever fills it at the moment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.child: Child | None = None
        self.watchdog: Watchdog | None = None
        self.failures = 0
        self.start_at: float | None = 0.0  # None: not to be filled again
        self.repair: Repair | None = None

    @property
    def due_at(self) -> float | None:
        """Return when it is time for a new process; None where one lives, or none is to come."""
        if self.child is not None or self.start_at is None:
            return None
        if self.repair is None or self.repair.tried:
            return self.start_at
        return max(self.start_at, self.repair.since + REPAIR_FIRST)

    def failed(self, *, anew: bool) -> float:
        """Count an end that was none of ours and return the seconds until the next start."""
        self.failures = 1 if anew else self.failures + 1
        return backoff(self.failures, first=FIRST_BACKOFF, longest=LONGEST_BACKOFF)


class Supervisor:
    """Runs one `runworker`."""

    def __init__(
        self,
        plan: WorkerPlan,
        *,
        wishes: Demands | None = None,
        repairer: Repairer | None = None,
        main: str = MAIN,
    ) -> None:
        """`wishes` are installed by the caller; `main` is the dotted path of what a child runs."""
        self.id = uuid.uuid4()
        self.plan = plan
        self.level = Level.RUN
        self.slots = [Slot(f"{plan.name}:{n}" if plan.processes > 1 else plan.name) for n in range(plan.processes)]
        self._wishes = wishes or demands()
        self._repairs = Repairs(repairer or DatabaseRepairs(), self._wishes.poke)
        self._main = main
        self._turned = float("inf")  # While `runworker` waits for migrations nobody turns, and nothing is wrong.
        self._deadline: float | None = None  # when the next level is demanded
        self._leave_at: float | None = None
        self._some_failed = False
        self._declared = False  # the subscriptions of this code, by one of the processes

    def run(self) -> int:
        """
        Work until asked to stop, or until a burst is done, and return the exit code.

        0 when nothing is left to do; 1 when runs of a burst failed, or held jobs could not be put back.
        """
        self._repairs.start()
        try:
            while not self._over():
                self._turn()
        except BaseException:
            for child in self._living():
                child.ask(Level.DRAIN)
            raise
        finally:
            left = self._repairs.outstanding
            self._repairs.finish(1.0)
        if left:
            signals.repair_failed.send_robust(type(self), worker=self.id, count=left, exception=None)
        return 1 if left or self._some_failed else 0

    def status(self) -> Status:
        """Return how it stands; called by the threads of the health endpoint."""
        return Status.of(self.slots, level=self.level, turned=self._turned, lost=self._repairs.outstanding)

    def _over(self) -> bool:
        if self._living() or (self.level == Level.RUN and any(slot.start_at is not None for slot in self.slots)):
            return False
        if self._repairs.idle:
            return True
        now = time.monotonic()
        self._leave_at = self._leave_at or now + REPAIR_TIME
        # Whoever has signalled three times is not kept waiting for a database.
        return now >= self._leave_at - (REPAIR_TIME - HASTE if self._wishes.level == Level.KILL else 0.0)

    def _turn(self) -> None:
        self._wait()
        now = time.monotonic()
        if now > self._turned + SUSPENDED:
            for child in self._living():
                child.heard = now
        self._turned = now
        if (asked := self._wishes.settle()) > self.level:
            self._demand(asked, now)
        for slot in self.slots:
            if slot.child is not None and (code := slot.child.ended()) is not None:
                self._bury(slot, slot.child, code, now)
        if self._deadline is not None and now >= self._deadline and self._living():
            self._demand(Level(self.level + 1), now)
        for slot in self.slots:
            if self.level == Level.RUN and (due_at := slot.due_at) is not None and now >= due_at:
                self._start(slot, now)
        for slot in self.slots:
            if slot.watchdog is not None:
                slot.watchdog.look(now)

    def _wait(self) -> None:
        """Wait for somebody to speak, and listen."""
        seconds = self._patience(time.monotonic())
        if self._hear(self._ready(seconds, reports=True)):
            # What comes in the next moment is read in one go; ends and signals are not kept waiting.
            self._hear(self._ready(READ_EVERY, reports=False))

    def _hear(self, ready: set[int]) -> bool:
        reported = [child.hear(ready) for child in self._living()]
        return any(reported)

    def _ready(self, seconds: float, *, reports: bool) -> set[int]:
        watched = [fd for child in self._living() for fd in child.watched(reports=reports)]
        return {fd for fd in wait([self._wishes.fileno(), *watched], seconds) if isinstance(fd, int)}

    def _patience(self, now: float) -> float:
        moments = [now + LONGEST_WAIT]
        if self._deadline is not None and self._living():
            moments.append(self._deadline)
        if self.level == Level.RUN:
            moments += [moment for slot in self.slots if (moment := slot.due_at) is not None]
        return max(0.0, min(moments) - now)

    def _living(self) -> list[Child]:
        return [slot.child for slot in self.slots if slot.child is not None]

    def _start(self, slot: Slot, now: float) -> None:
        try:
            child = Child(self._main, self._process_plan(), self.id, slot.name)
        except OSError as error:
            delay = slot.failed(anew=False)
            slot.start_at = now + delay
            signals.process_not_started.send_robust(type(self), name=slot.name, exception=error, restart=delay)
            return
        slot.child, slot.watchdog, slot.repair = child, Watchdog(child, self.plan.process.lease), None
        signals.process_started.send_robust(type(self), name=slot.name, worker=child.id, pid=child.pid)

    def _process_plan(self) -> ProcessPlan:
        """Return what the next process is told."""
        # In a rolling deployment workers of a newer version may have written theirs since: a replacement would undo it.
        self._declared |= any(child.ledger.declared for child in self._living())
        return dataclasses.replace(self.plan.process, declares=False) if self._declared else self.plan.process

    def _demand(self, level: Level, now: float) -> None:
        """Go to `level`, and to the next one if the children are not gone in time."""
        self.level = level
        grace = self.plan.process.grace if level == Level.DRAIN else 0.0
        # Never before a child's own grace has ended and it had the time to leave in order.
        self._deadline = now + grace + MARGIN if level < Level.KILL else None
        signals.stop_demanded.send_robust(type(self), level=level, grace=grace)
        for child in self._living():
            child.ask(level)

    def _bury(self, slot: Slot, child: Child, code: int, now: float) -> None:
        """Set right what an ended child held, and decide about its replacement."""
        child.bury()
        books = child.ledger
        why = ending(
            code,
            asked=child.asked,
            killed=child.killed,
            leaving=books.leaving,
            holds=len(books) > 0,
            timed_out=books.timed_out is not None,
        )
        self._declared |= books.declared
        held = books.held()
        slot.child, slot.watchdog, slot.repair = None, None, None
        # It may have ended between a claim and its report, and nobody reports ranges of streams.
        if held or why not in {Ending.DONE, Ending.RECYCLED}:
            slot.repair = Repair(ending=why, worker=child.id, held=held, timed_out=books.timed_out)
            self._repairs.submit(slot.repair)
        if self.plan.process.burst:
            failed = why in {Ending.DIED, Ending.TIMED_OUT} or code == SOME_FAILED or books.state.get("failed", 0)
            self._some_failed |= bool(failed)
        delay = self._delay(slot, child, why, now)
        slot.start_at = None if delay is None else now + delay
        signals.process_ended.send_robust(
            type(self),
            name=slot.name,
            worker=child.id,
            pid=child.pid,
            code=code,
            ending=str(why),
            held=len(held),
            restart=delay,
        )

    def _delay(self, slot: Slot, child: Child, why: Ending, now: float) -> float | None:
        """Return the seconds until the replacement starts, or None if there is none."""
        burst = self.plan.process.burst
        if self.level > Level.RUN or (burst and why is Ending.DONE):
            return None
        lived = now - child.began
        worked = child.ledger.done > 0 or lived > HEALTHY_AFTER
        if why is not Ending.DIED and (worked or lived > QUICK):
            slot.failures = 0
            return 0.0
        delay = slot.failed(anew=worked)
        return None if burst and slot.failures >= BURST_STARTS else delay
