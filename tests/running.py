"""Running a worker inside the test's process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from django_pgbus.worker.plan import ProcessPlan, parse_queues
from django_pgbus.worker.process import Process
from django_pgbus.worker.shutdown import Demands, Level


def a_plan(queues: str = "*", threads: int = 4, **options: Any) -> ProcessPlan:
    """Return a plan for one process."""
    defaults: dict[str, Any] = {"database": "default", "lease": 30.0, "beat": 10.0, "poll": 0.2, "grace": 5.0}
    return ProcessPlan(capsules=parse_queues(queues, threads=threads), **{**defaults, **options})


class InThread:
    """A worker process that is a thread of this one."""

    def __init__(self, plan: ProcessPlan) -> None:
        self.asked = Demands()
        self.id = uuid.uuid4()
        self.process = Process(plan, self.id, None, None, "test", self.asked)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.code = self.process.run()
        finally:
            connections.close_all()

    def stop(self, level: Level = Level.DRAIN, timeout: float = 30) -> int | None:
        """Ask it to end and return its exit code."""
        self.asked.ask(level)
        return self.join(timeout)

    def join(self, timeout: float = 30) -> int | None:
        """Return its exit code once it has ended."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the worker does not end"
        self.asked.close()
        return self.code


@contextmanager
def a_worker(queues: str = "*", **options: Any) -> Iterator[InThread]:
    """Run a worker for the length of a block."""
    worker = InThread(a_plan(queues, **options))
    try:
        yield worker
    finally:
        worker.stop()


def run_burst(queues: str = "*", **options: Any) -> int | None:
    """Run a worker until the queues are empty."""
    return InThread(a_plan(queues, burst=True, **options)).join()
