"""A capsule at work: its pools, and how much it should hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks.executor import Executor, Outcome, Run
from django_pgbus.tasks.runnable import known
from django_pgbus.worker import plan
from django_pgbus.worker.board import BUFFER_LIMIT, COROUTINES_PER_THREAD, Board, coroutine_places
from django_pgbus.worker.pools.coroutines import CoroutinePool
from django_pgbus.worker.pools.threads import ThreadPool

BUFFER_SECONDS: Final = 0.1  # of work that may wait here, claimed and not started
BUFFER_STALE: Final = 0.25  # seconds without a start after which the buffer is handed back
SHORT: Final = 0.0005  # seconds: a run that costs less than to wake a thread for it
WEIGHT: Final = 0.05  # of one run in the average


class Capsule:
    """Threads and coroutines for some queues; what they are given, they have room for."""

    def __init__(
        self,
        declared: plan.Capsule,
        executor: Executor,
        report: Callable[[Outcome], None],
        started: Callable[[Delivery], None],
        roomier: Callable[[], None],
        name: str,
        board: Board | None = None,
        first: int = 0,
    ) -> None:
        """`first` is the first place of this capsule on the board."""
        board = board or Board.private([declared.threads])
        self.declared = declared
        self._ranks: list[list[Level]] = []
        self._turn = 0
        self.suspects: list[Level] = []
        self._executor = executor
        self._report = report
        self._started = started
        self._roomier = roomier
        self._average = 0.0  # seconds of a run; nothing is buffered before the first has ended
        self._measured = False
        self.threads = ThreadPool(
            declared.threads, self._run, name, board.places(first, declared.threads), self._rested
        )
        self.coroutines = CoroutinePool(
            self._arun,
            name,
            coroutine_places(declared.threads),
            board.places(first + declared.threads, coroutine_places(declared.threads)),
            board.give_up,
        )
        self._taken_at = (0, time.monotonic())
        self._filled_at = time.monotonic()  # when the buffer was last empty and something was put there
        self._wants_more = False

    def look_at(self, levels: dict[Level, bool]) -> None:
        """Take note of which levels there are (and whether their queue is paused): mine, best first."""
        places = {q: p for q in {level.queue for level in levels} if (p := self.declared.place(q)) is not None}
        mine = sorted(
            (level for level, paused in levels.items() if not paused and level.queue in places),
            key=lambda level: (places[level.queue], -level.priority, level.queue),
        )
        self.suspects = [level for level in mine if level.suspect]
        self._ranks = [
            list(equals)
            for _, equals in groupby(
                (level for level in mine if not level.suspect), lambda level: (places[level.queue], level.priority)
            )
        ]

    def levels(self) -> list[Level]:
        """Return where to claim, best first; queues of one pattern and one priority take turns at being first."""
        self._turn += 1
        return [level for rank in self._ranks for level in _rotated(rank, self._turn)]

    def room(self) -> int:
        """Return how many deliveries to claim now."""
        room = self._room_now()
        if room <= 0 and not self._wants_more:
            self._wants_more = True
            room = self._room_now()  # Whoever ended before that was said has told nobody.
        if room > 0:
            self._wants_more = False
        return max(0, room)

    def _room_now(self) -> int:
        room = self.declared.threads - self.threads.busy + self._buffer_size() - self.threads.buffered
        if pending := self.coroutines.pending:
            room = min(room, self._most_coroutines - pending)
        return room

    @property
    def _most_coroutines(self) -> int:
        return self.declared.threads * COROUTINES_PER_THREAD

    def _is_roomier(self) -> bool:
        """Return whether so much has been done that a claim is worth its while again."""
        return self.threads.buffered * 2 <= self._buffer_size() and self.coroutines.pending * 2 <= self._most_coroutines

    def _buffer_size(self) -> int:
        if not self._measured:
            return 0
        work = self.declared.threads * BUFFER_SECONDS
        return min(BUFFER_LIMIT, int(work / max(self._average, 1e-6)))

    def put(self, deliveries: list[Delivery]) -> None:
        """Give deliveries to the pools; a task not known yet is loaded by a thread, whatever its kind."""
        to_threads = []
        for delivery in deliveries:
            runnable = known(delivery)
            if runnable is not None and runnable.is_async:
                self._prepare(delivery)
            else:
                to_threads.append(delivery)
        if to_threads:
            if not self.threads.buffered:
                self._filled_at = time.monotonic()
            self.threads.put(to_threads, one_is_enough=self._measured and self._average < SHORT)

    def nudge(self) -> bool:
        """Wake one more thread if the buffer does not move; return whether to ask again soon."""
        return self.threads.nudge() or bool(self.threads.buffered)

    def stale(self) -> list[Delivery]:
        """Take back a buffer from which nothing has started for a while: slow jobs are in front of it."""
        now = time.monotonic()
        taken, since = self._taken_at
        if self.threads.taken != taken or not self.threads.buffered:
            self._taken_at = (self.threads.taken, now)
            return []
        # What was put there since has its time too: else it would go back at once, and be claimed again at once.
        if now - max(since, self._filled_at) < BUFFER_STALE:
            return []
        self._average = max(self._average, now - since)
        return self.threads.take_back()

    @property
    def running(self) -> int:
        """Return how many jobs run."""
        return self.threads.busy + self.coroutines.pending

    @property
    def empty(self) -> bool:
        """Return whether nothing runs and nothing waits here."""
        return not self.threads.buffered and not self.running

    # --- in the threads of the pools ------------------------------------------------------------------

    def _run(self, delivery: Delivery) -> None:
        run = self._prepare(delivery)
        if run is not None:
            self._ended(run.sync())

    async def _arun(self, run: Run) -> None:
        try:
            outcome = await self._executor.arun(run)
        except BaseException as error:  # A message without an outcome would be held, and beaten for, for ever.
            outcome = self._executor.without_outcome(run, error)
        self._ended(outcome)

    def _prepare(self, delivery: Delivery) -> Run | None:
        """Return a sync run, having sent an async one to the loop and reported one that cannot be."""
        prepared: Any = self._executor.prepare(delivery)
        if not isinstance(prepared, Run):
            self._ended(prepared)
            return None
        self._started(delivery)
        if prepared.runnable.is_async:
            self.coroutines.put(delivery, prepared)
            return None
        return prepared

    def _ended(self, outcome: Outcome) -> None:
        ran_for = outcome.ran_for
        self._average += ((ran_for - self._average) * WEIGHT) if self._measured else ran_for
        self._measured = True
        outcome.delivery.ended = True
        self._report(outcome)
        if outcome.delivery.level.suspect:
            self._roomier()  # The next suspect may start.
        self._rested()

    def _rested(self) -> None:
        """Say that there is room where there was none; a thread counts as busy until it is idle."""
        if self._wants_more and self._is_roomier():
            self._wants_more = False
            self._roomier()


def _rotated(levels: list[Level], turn: int) -> list[Level]:
    first = turn % len(levels)
    return levels[first:] + levels[:first] if first else levels
