"""
How much of the machine others use while a benchmark runs: what makes its figures worth nothing.

A thread adds up, twice a second, the processor time of every process that descends neither from this one nor from the
PostgreSQL that is measured. Linux only; what lives for less than half a second is missed.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final, Self

from tests.benchmarks import machine

LOOK: Final = 0.5  # seconds
KERNEL: Final = 2  # the parent of the kernel's own threads
MUCH: Final = 0.04  # of all processors


class Noise:
    """The share of all processors that others used during a block."""

    def __init__(self, *roots: int) -> None:
        """`roots`: processes that are part of what is measured, and with them their descendants; this one is."""
        self._roots = (os.getpid(), *roots)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._used = 0.0
        self._began = self._ended = 0.0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()
        self._ended = time.monotonic()

    @property
    def share(self) -> float:
        """Return it, from 0 to 1."""
        return round(self._used / max(self._ended - self._began, 1e-6) / (os.cpu_count() or 1), 3)

    def _watch(self) -> None:
        before = machine.spent_by_all()
        over = False
        while not over:
            over = self._over.wait(LOOK)
            now = machine.spent_by_all()
            ours = machine.descendants({pid: process.parent for pid, process in now.items()}, self._roots) | {KERNEL}
            for pid, process in now.items():
                if pid not in ours and process.parent != KERNEL:
                    known = before.get(pid)
                    # One that was not there began since: all of its time is new.
                    self._used += process.seconds - (known.seconds if known and known.born == process.born else 0.0)
            before = now
