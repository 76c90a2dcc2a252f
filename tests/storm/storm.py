"""The storm itself: send, strike, wait until all is settled, read the books."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from django_pgbus import Batch, enqueue_many
from django_pgbus.tasks.compat import TaskResultStatus
from tests.processes.harness import RunWorker, alive, execute, until
from tests.storm import batches, books, tables, tasks
from tests.storm.patience import patiently

PGBUS: Final = {"VISIBILITY_TIMEOUT": 4, "BACKOFF_BASE": 0.2}
OPTIONS: Final = ("--processes=2", "--threads=4", "--grace=2")
KINDS: Final = (tasks.one, tasks.two, tasks.three_alone, tasks.four_alone, tasks.unique)
CHUNK: Final = 200
OPEN: Final = """
    SELECT (SELECT count(*) FROM pgbus_messages) + (SELECT count(*) FROM pgbus_delayed)
         + (SELECT count(*) FROM pgbus_blocked_executions)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is sent, and what happens meanwhile; `restart` is after how many of the kills the server goes down."""

    jobs: int
    limited_keys: int = 50
    unique_keys: int = 500
    seconds: tuple[float, float] = (0.005, 0.05)  # that a run takes
    kill_every: float = 1.0
    kills: int = 60
    restart: int | None = None
    seed: int = 1
    patience: float = 180.0


@dataclass(slots=True, kw_only=True)
class Found:
    """What came of it."""

    sent: int = 0
    dropped: int = 0
    kills: int = 0
    seconds: float = 0.0  # from the first job sent until the last was settled
    after_kills: float = 0.0  # from the last kill
    unsettled: int = 0
    lost: int = 0
    dead: int = 0
    runs: int = 0
    full: int = 0
    held: int = 0  # slots and keys that nobody should hold any more
    over_the_limit: list[str] = field(default_factory=list)
    together: list[str] = field(default_factory=list)
    batches: int = 0
    looks: int = 0  # at all batches, by one snapshot each
    unbalanced: list[str] = field(default_factory=list)  # batches, at one of the looks or in the end


class Storm:
    """Four processes of two workers, and what happens to them."""

    def __init__(self, plan: Plan, start: Callable[..., RunWorker], restart: Callable[[], None] | None = None) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self._start = lambda: start(*OPTIONS, pgbus=PGBUS, sweep_every=5)
        self._restart = restart
        self.ids: set[int] = set()
        self.members: dict[int, int] = {}  # of each batch
        self.found = Found()

    def run(self) -> Found:
        """Let it happen and return what was seen."""
        execute(tables.CREATE)
        try:
            workers = [self._start(), self._start()]
            for worker in workers:
                worker.ready(2)
            began = time.monotonic()
            self.send()
            last_kill = self.strike(workers)
            self.found.unsettled = self.settle(last_kill)
            self.found.seconds = time.monotonic() - began
            self.found.after_kills = time.monotonic() - last_kill
            self.read()
            for worker in workers:
                assert worker.stop() == 0
        finally:
            execute(tables.DROP)
        return self.found

    def send(self) -> None:
        """Enqueue everything, the kinds mixed, in short transactions."""
        made = [self._job(number) for number in range(self.plan.jobs)]
        self.random.shuffle(made)
        for nth, start in enumerate(range(0, len(made), CHUNK)):
            chunk = sorted(made[start : start + CHUNK], key=lambda job: KINDS.index(job[0]))
            before = len(self.ids)
            if nth % 2:
                self._enqueue_chunk(chunk)
            else:
                with Batch(f"chunk {nth}", **batches.CALLBACKS) as batch:
                    self._enqueue_chunk(chunk)
                assert batch.id is not None
                self.members[batch.id] = len(self.ids) - before
        self.found.batches = len(self.members)

    def _enqueue_chunk(self, chunk: list[Any]) -> None:
        for task, jobs in groupby(chunk, key=lambda job: job[0]):
            self._enqueue(task, [(arguments, {}) for _, arguments in jobs])

    def _job(self, number: int) -> tuple[Any, tuple[Any, ...]]:
        task = KINDS[number % len(KINDS)]
        seconds = self.random.uniform(*self.plan.seconds)
        only = f"only-{KINDS.index(task)}-{number // len(KINDS) % max(1, self.plan.unique_keys // 3)}"
        if task is tasks.unique:
            return task, (only, seconds)
        limited = f"limit-{KINDS.index(task)}-{self.random.randrange(self.plan.limited_keys // 4)}"
        return task, (limited, seconds) if task in {tasks.one, tasks.two} else (limited, only, seconds)

    def _enqueue(self, task: Any, rows: list[Any]) -> None:
        results = enqueue_many(task, rows)
        ids = [int(result.id) for result in results if getattr(result, "status", None) is not TaskResultStatus.FAILED]
        before = len(self.ids)
        self.ids |= {id for id in ids if id}
        self.found.sent = len(self.ids)
        self.found.dropped += len(rows) - (len(self.ids) - before)

    def strike(self, workers: list[RunWorker]) -> float:
        """Kill a process every so often until all is settled or there were enough; return when the last was."""
        last = time.monotonic()
        while self.found.kills < self.plan.kills and (self.found.kills < 3 or self._open()):
            time.sleep(max(0.0, last + self.plan.kill_every - time.monotonic()))
            last = time.monotonic()
            if self._restart is not None and self.found.kills == self.plan.restart:
                self._restart()
            self._kill(workers)
        return last

    def _kill(self, workers: list[RunWorker]) -> None:
        """Kill one process; each seventh time a worker with all of its processes, whose leases then have to lapse."""
        self.found.kills += 1
        if self.found.kills % 7 == 0:
            worker = workers.pop(0)
            victims = [worker.pid, *worker.children()]
            workers.append(self._start())
        else:
            children = [pid for worker in workers for pid in worker.children()]
            victims = [self.random.choice(children)] if children else []
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.found.kills % 7 == 0:
            worker.process.wait()
        until(lambda: not any(alive(pid) for pid in victims))
        for pid in victims:
            patiently("INSERT INTO storm_kills (pid) VALUES (%s)", pid)

    def settle(self, since: float) -> int:
        """Wait until nothing is open; return what is, if that takes too long."""
        while (left := self._open()) and time.monotonic() - since < self.plan.patience:
            time.sleep(0.05)
        return left

    def _open(self) -> int:
        self.found.looks += 1
        for id, outstanding, members in patiently(batches.UNBALANCED):
            self.found.unbalanced.append(f"batch {id}: {outstanding} outstanding, {members} are somewhere")
        return int(patiently(OPEN)[0][0])

    def read(self) -> None:
        """Read the books."""
        found, seen = self.found, books.read(execute)
        found.runs = len(seen.runs)
        found.full = seen.full()
        found.over_the_limit, found.together = seen.over_the_limit(), seen.together()
        archived = {id for (id,) in execute("SELECT id FROM pgbus_archive")}
        dead = {id for (id,) in execute("SELECT id FROM pgbus_dead_letters")}
        found.dead = len(dead)
        found.lost = len(self.ids - archived - dead) + len(archived & dead)
        if not found.unsettled:
            found.unbalanced += batches.wrong_at_the_end(execute, self.members)
            ((found.held,),) = execute(
                "SELECT (SELECT count(*) FROM pgbus_semaphore_slots) + (SELECT count(*) FROM pgbus_uniqueness_keys)"
            )


def checks(found: Found) -> dict[str, int]:
    """Return what must be 0."""
    return {
        "over_the_limit": len(found.over_the_limit),
        "together": len(found.together),
        "lost": found.lost,
        "unsettled": found.unsettled,
        "held": found.held,
        "unbalanced": len(found.unbalanced),
    }
