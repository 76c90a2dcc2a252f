"""Watching a worker empty a queue."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.benchmarks import machine
from tests.benchmarks.counters import Counters
from tests.benchmarks.server import Store
from tests.benchmarks.systems import System, Worker

LOOK: Final = 0.01  # seconds between two looks at the counters
PATIENCE: Final = float(os.environ.get("BENCH_PATIENCE", "20"))  # seconds without a start, then something is wrong


@dataclass(frozen=True, slots=True)
class Timeline:
    """How many jobs had started at which moment, from the first start on."""

    began: float
    points: list[tuple[float, int]]

    @property
    def count(self) -> int:
        """Return how many started in all."""
        return self.points[-1][1]

    def rate(self, jobs: int) -> float:
        """Return jobs a second up to the moment when so many had started."""
        moment, count = next(((m, c) for m, c in self.points if c >= jobs), self.points[-1])
        return count / max(moment - self.began, 1e-6)

    def windows(self, seconds: float) -> list[float]:
        """Return jobs a second in each whole window."""
        rates = []
        edge, before = self.began + seconds, (self.began, 0)
        for point in self.points:
            if point[0] >= edge:
                rates.append((point[1] - before[1]) / (point[0] - before[0]))
                before, edge = point, edge + seconds
        return rates


def watch(worker: Worker, counters: Counters, over: Callable[[float, int], bool]) -> Timeline:
    """Follow the starts until `over` (seconds since the first, how many); raises if they cease."""
    waited = time.monotonic()
    while not (starts := counters.starts()).count:
        _go_on(worker, waited, 0)
        time.sleep(LOOK)
    points: list[tuple[float, int]] = []
    began, last, waited = starts.first, -1, time.monotonic()
    while True:
        now, count = time.time(), counters.starts().count
        points.append((now, count))
        if over(now - began, count):
            return Timeline(began, points)
        if count != last:
            last, waited = count, time.monotonic()
        _go_on(worker, waited, count)
        time.sleep(LOOK)


def _go_on(worker: Worker, waited: float, count: int) -> None:
    worker.check()
    if time.monotonic() - waited > PATIENCE:
        raise worker.failed(f"has started nothing for {PATIENCE:g} s, after {count} jobs")


@dataclass(frozen=True, slots=True)
class Drained:
    """A queue emptied: jobs a second until the last was settled, and what it cost."""

    rate: float
    started: int
    worker_us: float  # processor time of the worker for one job, in microseconds


def drain(system: System, counters: Counters, store: Store, jobs: int, *options: str) -> Drained:
    """Start a worker on a full queue and measure from the first start until everything is settled."""
    with Worker(system, counters, store, *options) as worker, store.asking(system.pending) as pending:
        watch(worker, counters, lambda _, count: count > 0)
        before = machine.processor_seconds(worker.pid)  # what the start of an interpreter costs is no job's
        watch(worker, counters, lambda _, count: count >= jobs)
        waited = time.monotonic()
        while pending():
            _go_on(worker, waited, jobs)
            time.sleep(0.005)
        ended = time.time()
        spent = machine.processor_seconds(worker.pid) - before
        starts = counters.starts()
    return Drained(jobs / (ended - starts.first), starts.count, spent / jobs * 1e6)
