"""A lane: one group of this process, the ranges it holds, and the thread that handles them, one after the other."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from django.db import connections

from django_pgbus import signals
from django_pgbus.streams import exceptions, handling
from django_pgbus.streams.consumers import Consumer
from django_pgbus.streams.exceptions import Alone
from django_pgbus.streams.fence import Fence
from django_pgbus.streams.handling import Handled
from django_pgbus.streams.leases import GroupId, Range
from django_pgbus.tasks.executor import announce
from django_pgbus.tasks.watch import Watch
from django_pgbus.worker.hygiene import tidy

AHEAD: Final = 1  # ranges claimed while another is handled
LOOK_AGAIN: Final = 0.01  # seconds between looks at keys that a lower range holds


@dataclass(slots=True, eq=False)
class Job:
    """What the thread of a lane is given: a range, with the keys of its entries, or an entry on its own."""

    what: Range | Alone
    keys: dict[int, str | None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Ended:
    """What became of a job."""

    job: Job
    handled: Handled | str | None  # of a range, or of an entry on its own; None: its thread broke, or it was left
    seconds: float


class Lane:
    """What the follower knows of one group, and the thread that runs its handler."""

    def __init__(self, consumer: Consumer, watch: Watch, armed: Callable[[], None], told: Callable[[], None]) -> None:
        self.consumer = consumer
        self.group: GroupId | None = None
        self.fence = Fence()
        self.claimed = 0  # where the cursor was last seen
        self.refused: str | None = None
        self.paused = False
        self.log_faults: list[str] = []
        self.epoch = ""  # the log that the fence knows
        self.failures = 0  # of its statements, in a row
        self.rests_until = 0.0
        self.lapsed = False  # a worker's range is there to be taken over
        self.hungry = True  # a claim may find something
        self.at_hole = False  # the last claim ended at one
        self.hunt_until = 0.0
        self.blocked_since: float | None = None  # there are entries, behind a hole
        self.due_at = 0.0  # when an entry on its own is due, by the monotonic clock
        self.was_alone = False  # what was claimed last were entries on their own
        self.waits_for_keys = False  # what is due waits for another one of its key
        self.asked: uuid.UUID | None = None  # the token of a claim that has not been answered
        self.done: deque[Range] = deque()  # handled, to be freed by the next claim
        self.ended: deque[Ended] = deque()
        self._watch = watch
        self._armed = armed
        self._told = told
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._held: set[Range | Alone] = set()
        self._waiting = 0
        self._busy = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # --- what it holds --------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Return how many ranges to claim now."""
        return max(0, AHEAD + 1 - self._waiting - self._busy)

    @property
    def busy(self) -> bool:
        """Return whether a handler runs, or its outcome waits to be written."""
        return self._busy or bool(self._waiting) or bool(self.ended)

    def held(self) -> list[Range | Alone]:
        """Return what this process holds of the group; from any thread."""
        with self._lock:
            return list(self._held)

    def put(self, job: Job) -> None:
        """Let the thread handle a job."""
        with self._lock:
            self._held.add(job.what)
            self._waiting += 1
        self._jobs.put(job)
        if self._thread is None:
            name = f"pgbus-{self.consumer.name}"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()

    def drop(self, what: Range | Alone) -> None:
        """Forget what is committed, handed back or lost."""
        with self._lock:
            self._held.discard(what)

    def stop(self) -> None:
        """Begin nothing more, and leave what has not begun."""
        self._stopping.set()

    def end(self) -> None:
        """Let the thread end when it has nothing to do."""
        self._jobs.put(None)

    # --- the thread -----------------------------------------------------------------------------------

    def stopping(self) -> bool:
        """Return whether to begin nothing more."""
        return self._stopping.is_set()

    def wait(self) -> bool:
        """Wait a moment; return False if the process stops."""
        return not self._stopping.wait(LOOK_AGAIN)

    @contextlib.contextmanager
    def limited(self, held: Range | Alone, timeout: float | None) -> Iterator[None]:
        """Let the run inside be interrupted: after `timeout` seconds, or when its lease is lost."""
        self._watch.arm(held, timeout)
        if timeout is not None:
            self._armed()
        try:
            yield
        finally:
            self._watch.disarm()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            began = time.monotonic()
            handled: Handled | str | None = None
            try:
                tidy(idle=False)
                handled = self._handle(job)
            except BaseException as error:  # The next range needs this thread.
                announce(f"stream {self.consumer.name}", error)
            self.ended.append(Ended(job, handled, time.monotonic() - began))
            self._busy = False
            self._told()
        self._busy = False
        connections.close_all()

    def _next(self) -> Job | None:
        if self._jobs.empty():
            with contextlib.suppress(Exception):
                tidy(idle=True)
        job = self._jobs.get()
        self._busy = True
        with self._lock:
            self._waiting -= job is not None
        return job

    def _handle(self, job: Job) -> Handled | str | None:
        what = job.what
        if isinstance(what, Range):
            if what.is_lost:
                return Handled(upto=what.low, lost=True)
            if self.stopping():
                return Handled(upto=what.low)
            return handling.handle(self.consumer, what, self, job.keys)
        if self.stopping() and not what.superseded:
            exceptions.hand_back(what)
        elif not what.superseded:
            outcome = handling.handle_alone(self.consumer, what, self)
            self._say(what, outcome)
            return outcome
        return None

    def _say(self, alone: Alone, outcome: str) -> None:
        if outcome == "lost":
            signals.range_lost.send_robust(
                sender=type(self),
                stream=self.consumer.stream,
                group=self.consumer.group,
                low=alone.position - 1,
                high=alone.position,
            )
