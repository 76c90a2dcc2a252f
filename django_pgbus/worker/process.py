"""
A worker process: its loops, from start to end.

It ends when asked, when a burst finds nothing more, when it is to be recycled, or when a run does not stop at its
hard limit. Whatever it holds then is settled, handed back by itself once it has stopped running, or left to the
supervisor, which hands it back after this process is gone.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from itertools import accumulate
from typing import Any, Final

from django_pgbus import signals
from django_pgbus.events import handlers, subscriptions
from django_pgbus.queues.heartbeat import Held
from django_pgbus.queues.message import Delivery
from django_pgbus.streams.consumers import consumers
from django_pgbus.tasks.executor import Executor, Outcome
from django_pgbus.tasks.outcomes import PutOff
from django_pgbus.tasks.watch import Held as Leased
from django_pgbus.tasks.watch import Watch
from django_pgbus.worker.board import Board, places_for
from django_pgbus.worker.capsule import Capsule
from django_pgbus.worker.completer import Completer
from django_pgbus.worker.consumer import Consumer
from django_pgbus.worker.deadlines import Deadlines
from django_pgbus.worker.dispatcher import Dispatcher
from django_pgbus.worker.endings import DONE, HARD_TIMEOUT, HELD_AT_STOP, RECYCLE, SOME_FAILED
from django_pgbus.worker.follower import Follower
from django_pgbus.worker.heart import Heart
from django_pgbus.worker.listener import Listener
from django_pgbus.worker.loop import Loop
from django_pgbus.worker.orphan import watch_supervisor
from django_pgbus.worker.outage import Outage
from django_pgbus.worker.plan import ProcessPlan
from django_pgbus.worker.recycling import reason_to_recycle, resident_memory
from django_pgbus.worker.reporting import Reporter
from django_pgbus.worker.reports import Reports
from django_pgbus.worker.shutdown import Demands, Level, demands

CHECK: Final = 1.0  # seconds between looks at recycling
BURST_CHECK: Final = 0.05
FLUSH: Final = 5.0  # seconds for the last settlements
DRAIN: Final = 2.0  # seconds for the consumer to have noticed; without a database it does not


def main(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID | None, reports: Reports | None, name: str) -> int:
    """Run until told to stop and return the exit code; see `endings.py`."""
    asked = demands()
    if reports is not None:
        asked.install(supervised=True)
    watch_supervisor(lambda: asked.ask(Level.DRAIN))
    handlers.autodiscover()
    return Process(plan, worker, supervisor, reports, name, asked).run()


class Process:
    """The loops of one worker process, and its end."""

    def __init__(
        self,
        plan: ProcessPlan,
        worker: uuid.UUID,
        supervisor: uuid.UUID | None,
        reports: Reports | None,
        name: str,
        asked: Demands,
    ) -> None:
        self._plan = plan
        self._asked = asked
        self._supervised = reports is not None
        self._state = "running"
        self._began = time.monotonic()
        self._spread = random.random()  # noqa: S311
        self._stuck: Leased | None = None
        self._held = Held()
        self._watch = Watch()
        self._reporter = Reporter(reports, self._held)
        self._completer = Completer(self._held, self._reporter, self._after_settlement, plan.beat)
        executor = Executor(worker=str(worker), watch=self._watch, armed=self._armed)
        board = (reports and reports.board) or Board.private([declared.threads for declared in plan.capsules])
        firsts = accumulate((places_for(declared.threads) for declared in plan.capsules), initial=0)
        self._capsules = [
            Capsule(
                declared,
                executor,
                self._report,
                self._reporter.started,
                self._roomier,
                f"{name}-{number}",
                board,
                first,
            )
            for number, (declared, first) in enumerate(zip(plan.capsules, firsts, strict=False))
        ]
        board.open()
        self._consumer = Consumer(
            plan=plan,
            worker=worker,
            held=self._held,
            capsules=self._capsules,
            reporter=self._reporter,
            to_be_stopped=self._stop_run,
            declare=self._declare if plan.declares else lambda: 0,
        )
        self._follower = Follower(
            plan=plan,
            worker=worker,
            consumers=[found for found in consumers.values() if plan.follows(found.name)],
            watch=self._watch,
            armed=self._armed,
            told=self._after_settlement,
            lost=self._armed,
        )
        self._listener = Listener(self._hear, self._catch_up)
        self._deadlines = Deadlines(self._watch, self._run_is_stuck)
        self._heart = Heart(
            plan=plan,
            worker=worker,
            supervisor=supervisor,
            name=name,
            held=self._held,
            status=self._status,
            superseded=self._stop_run,
            discarded=self._stop_run,
            beaten=self._beaten,
            elected=self._elected,
            renew_more=self._follower.renew,
            give_up_more=self._follower.give_up_unconfirmed,
            streams=self._follower.names,
        )
        self._dispatcher = Dispatcher(lambda: self._heart.is_dispatcher and self._heart.alive)
        self._outage = Outage()
        self._threads: dict[Loop, threading.Thread] = {}

    def run(self) -> int:
        """Work, then end; return the exit code."""
        self._say_what_is_followed()
        loops = (
            self._reporter,
            self._heart,
            self._completer,
            self._consumer,
            self._follower,
            self._listener,
            self._dispatcher,
            self._deadlines,
        )
        for loop in loops:
            loop.outage = self._outage
            self._threads[loop] = threading.Thread(target=loop.run, name=f"pgbus-{loop.part}", daemon=True)
            self._threads[loop].start()
        code = self._work()
        return self._end(code)

    def _say_what_is_followed(self) -> None:
        """Announce the groups that are followed, and what was asked for and matches none: else a typo follows nothing."""
        if self._follower.names:
            signals.groups_followed.send_robust(sender=type(self), groups=self._follower.names)
        known = sorted(found.name for found in consumers.values())
        for pattern in self._plan.unmatched(known):
            signals.groups_unknown.send_robust(sender=type(self), pattern=pattern, known=known)

    # --- while it works -------------------------------------------------------------------------------

    def _work(self) -> int:
        """Wait for a reason to end and return the exit code it leads to."""
        while True:
            level = self._asked.wait(BURST_CHECK if self._plan.burst else CHECK)
            if self._stuck is not None:
                return HARD_TIMEOUT
            if level > Level.RUN:
                return DONE
            if self._plan.burst and self._nothing_left():
                return SOME_FAILED if self._completer.failed + self._follower.failed else DONE
            if reason := reason_to_recycle(
                self._plan,
                jobs=self._completer.done,
                memory=resident_memory() if self._plan.max_memory else 0,
                age=time.monotonic() - self._began,
                spread=self._spread,
            ):
                signals.process_recycled.send_robust(sender=type(self), reason=reason)
                return RECYCLE

    def _nothing_left(self) -> bool:
        return self._consumer.idle and self._follower.idle and not self._held and not len(self._completer)

    # --- how it ends ----------------------------------------------------------------------------------

    def _end(self, code: int) -> int:
        self._state = "draining"
        self._consumer.drain()
        self._follower.drain()
        if code == RECYCLE:
            # There is no hurry, and a job that every replacement interrupts would never end.
            while self._busy() and self._asked.level == Level.RUN and self._stuck is None:
                self._asked.wait(0.2)
            code = code if self._stuck is None else HARD_TIMEOUT
        grace_ends = time.monotonic() + (0.0 if code == HARD_TIMEOUT else self._plan.grace)
        drained_by = time.monotonic() + DRAIN
        while time.monotonic() < grace_ends and self._asked.level < Level.NOW:
            # A claim may be under way, whose jobs are not held yet.
            drained = self._consumer.drained and (self._follower.drained or self._follower.busy)
            claiming = not drained and time.monotonic() < drained_by
            if not (self._busy() or claiming):
                break
            self._asked.wait(0.05 if self._busy() else 0.005)
        if self._held and code != HARD_TIMEOUT:
            self._cancel_async()
        self._completer.flush(time.monotonic() + FLUSH)
        if code == HARD_TIMEOUT or (self._busy() and self._supervised):
            self._leave_at_once(code if code == HARD_TIMEOUT else HELD_AT_STOP)
        self._state = "stopping"
        for loop in reversed(self._threads):
            loop.stop()
        for thread in self._threads.values():
            thread.join(FLUSH)
        return code

    def _busy(self) -> bool:
        return bool(self._held) or bool(self._follower.busy)

    def _cancel_async(self) -> None:
        """Cancel and await the coroutines, and hand back what has stopped running without an outcome."""
        for delivery in self._held.all():
            delivery.hand_back = True
        for capsule in self._capsules:
            capsule.coroutines.cancel_all()
        deadline = time.monotonic() + FLUSH
        while any(c.coroutines.pending for c in self._capsules) and time.monotonic() < deadline:
            self._asked.wait(0.02)

    def _leave_at_once(self, code: int) -> None:
        """End without waiting for threads that run jobs; the supervisor hands back what they held."""
        if isinstance(self._stuck, Delivery):
            self._reporter.timed_out(self._stuck)
        self._reporter.leaving(code)
        self._heart.stop()
        self._threads[self._heart].join(1.0)
        if self._supervised:
            os._exit(code)

    # --- what the loops tell each other ---------------------------------------------------------------

    def _hear(self, notes: list[Any]) -> None:
        streams = [note[1] for note in notes if note[0] == "stream"]
        if streams:
            self._follower.hear(streams)
        if len(streams) < len(notes):
            self._consumer.hear([note for note in notes if note[0] != "stream"])

    def _catch_up(self) -> None:
        self._consumer.catch_up()
        self._follower.catch_up()

    def _declare(self) -> int:
        """Write the subscriptions of this code and return how many there are."""
        count = subscriptions.declare_at_start()
        self._reporter.declared()
        return count

    def _report(self, outcome: Outcome) -> None:
        if isinstance(outcome, PutOff):
            self._consumer.due_in(outcome.delay)
        self._completer.put(outcome)

    def _after_settlement(self) -> None:
        if self._plan.burst and not self._held:
            self._consumer.catch_up()  # Its next look tells whether that was all.
        if self._plan.burst or self._state != "running":
            self._asked.poke()

    def _roomier(self) -> None:
        self._consumer.roomier()

    def _elected(self) -> None:
        self._dispatcher.wake()

    def _armed(self) -> None:
        self._deadlines.wake()

    def _stop_run(self, delivery: Delivery) -> None:
        """Stop a run that was superseded or is to be discarded, where that can be done."""
        for capsule in self._capsules:
            capsule.coroutines.cancel(delivery)
        self._deadlines.wake()

    def _run_is_stuck(self, held: Leased) -> None:
        self._stuck = held
        self._asked.poke()

    def _beaten(self, confirmed: bool) -> None:  # noqa: FBT001
        if self._consumer.may_claim != confirmed:
            self._consumer.may_claim = confirmed
            self._consumer.wake()
        self._follower.may_claim = confirmed
        self._reporter.state(
            **self._status(), done=self._completer.done, failed=self._completer.failed, database=confirmed
        )

    def _status(self) -> dict[str, Any]:
        return {
            "running": sum(capsule.running for capsule in self._capsules),
            "superseded": self._completer.superseded,
            "state": self._state,
            "listening": self._listener.hears,
        }
