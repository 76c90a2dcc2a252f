"""Ending runs at their timeouts, in a thread that does nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

from django_pgbus.tasks.watch import Held, Watch
from django_pgbus.worker.loop import Loop


class Deadlines(Loop):
    """Interrupts the runs of a `Watch`; `stuck` is called once for one that does not stop."""

    part = "deadlines"

    def __init__(self, watch: Watch, stuck: Callable[[Held], None]) -> None:
        super().__init__()
        self._watch = watch
        self._stuck = stuck
        self._told: set[Held] = set()

    def step(self) -> float:
        """Interrupt what is overdue; return the seconds until the next deadline."""
        for held in self._watch.interrupt(time.monotonic()):
            if held not in self._told:
                self._told.add(held)
                self._stuck(held)
        return max(0.05, self._watch.next_deadline() - time.monotonic())
