"""
A storm over a stream: eight producers whose transactions end in every way and order, while the workers are killed with -9.

In the end each entry that was committed has been handled by each group, none that was rolled back, none again after it was
done with; the totals are exact, and entries of a key were handled in their order. `run_streams.py` runs it by hand.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django_pgbus import Stream
from django_pgbus.streams import appending
from django_pgbus.streams.log_statement import log_table
from tests.processes.harness import RunWorker, alive, execute, until
from tests.processes.server import Server
from tests.settings import INSTALLED_APPS
from tests.storm.patience import patiently
from tests.storm.producers import Producer, model_of
from tests.storm.stream_books import OPEN, Books, Found
from tests.storm.stream_tables import CREATE, GROUPS, PARTITION, STREAM

SERVER: Final = {"max_prepared_transactions": "32", "max_connections": "120"}
PGBUS: Final = {"VISIBILITY_TIMEOUT": 6, "POLL_INTERVAL": 0.5}
SETTINGS: Final = {"INSTALLED_APPS": [*INSTALLED_APPS, "tests.processes", "tests.storm.followers"]}
OPTIONS: Final = ("--processes=1", "--threads=2", "--streams=storm", "--queues=@storm_a,@storm_b", "--grace=2")
WHOLE: Final = 7  # each so manyth kill takes a worker with its supervisor
BACKLOG: Final = 1500  # entries: producers slow down
COPY_ABOVE: Final = 40  # entries, so that COPY is not rare


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long it lasts, and how often somebody is killed."""

    seconds: float
    producers: int = 8
    consumers: int = 3
    kill_every: float = 1.0
    restart: int | None = None  # after so many kills the server goes down, and is there again
    pace: float = 0.04  # seconds that a producer waits between transactions
    seed: int = 1
    patience: float = 120.0


class Storm:
    """The producers, the workers, and what happens to them."""

    def __init__(
        self,
        plan: Plan,
        start: Callable[..., RunWorker],
        server: Server,
        restart: Callable[[], None] | None = None,
    ) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self._start = lambda: start(*OPTIONS, pgbus=PGBUS, settings=SETTINGS, sweep_every=5)
        self._server = server
        self._restart = restart
        self._pace = plan.pace
        self.found = Found()

    def run(self) -> Found:
        """Let it happen and return what was seen."""
        execute(CREATE)
        Stream(STREAM, partition_size=PARTITION).ensure()
        self.log = log_table(Stream(STREAM).id())
        model = model_of(self.log)
        workers = [self._start() for _ in range(self.plan.consumers)]
        for worker in workers:
            worker.ready()
        before, appending.STATEMENT = appending.STATEMENT, COPY_ABOVE  # type: ignore[misc]
        producers = [
            Producer(number, self.plan.seed, self._server, self.log, model, lambda: self._pace)
            for number in range(1, self.plan.producers + 1)
        ]
        try:
            began = time.monotonic()
            for producer in producers:
                producer.start()
            self.strike(workers, began + self.plan.seconds)
            for producer in producers:
                producer.stopping.set()
            for producer in producers:
                producer.join(60)
            self.end_prepared()
            self.found.seconds = time.monotonic() - began
            self.settle()
        finally:
            appending.STATEMENT = before  # type: ignore[misc]
            for producer in producers:
                producer.stopping.set()
        for worker in workers:
            worker.ready()
            assert worker.stop() == 0
        Books(self.log, self.found).read(producers)
        return self.found

    # --- what happens -----------------------------------------------------------------------------------

    def strike(self, workers: list[RunWorker], end: float) -> None:
        """Kill a process each second, of one worker after the other."""
        last = time.monotonic()
        while time.monotonic() < end:
            time.sleep(max(0.0, last + self.plan.kill_every - time.monotonic()))
            last = time.monotonic()
            if self._restart is not None and self.found.kills == self.plan.restart and not self.found.restarts:
                self._restart_server(workers)
            self._kill(workers)
            self._pace = self.plan.pace * (20 if self._open() > BACKLOG * len(GROUPS) else 1)

    def _restart_server(self, workers: list[RunWorker]) -> None:
        """It explains what the kill of all processes would: each lost its connections, and perhaps a reply."""
        assert self._restart is not None
        ((after,),) = patiently("SELECT clock_timestamp()")
        running = [pid for worker in workers for pid in worker.children()]
        self._restart()
        self.found.restarts += 1
        self._enter_kill(running, after)

    def _kill(self, workers: list[RunWorker]) -> None:
        whole = self.found.kills % WHOLE == WHOLE - 1
        worker = workers.pop(0)
        victims = [worker.pid, *worker.children()] if whole else worker.children()
        if not victims:  # It is being started.
            workers.append(worker)
            return
        ((after,),) = patiently("SELECT clock_timestamp()")
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if whole:
            worker.process.wait()
        until(lambda: not any(alive(pid) for pid in victims))
        self._enter_kill(victims, after)
        self.found.kills += 1
        self.found.whole_workers += whole
        workers.append(self._start() if whole else worker)

    @staticmethod
    def _enter_kill(victims: Iterable[int], after: datetime) -> None:
        for pid in victims:
            patiently("INSERT INTO stream_storm_kills VALUES (%s, %s, clock_timestamp())", pid, after)

    def end_prepared(self) -> None:
        """End what a producer could not, because the server went down."""
        for (name,) in execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            execute(f"{self.random.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{name}'")

    def _open(self) -> int:
        return int(patiently(OPEN.format(log=self.log))[0][0])

    def settle(self) -> None:
        """Wait until all groups have done with everything."""
        began = time.monotonic()
        while (left := self._open()) and time.monotonic() - began < self.plan.patience:
            time.sleep(0.1)
        self.found.unsettled = left
        self.found.settled_in = time.monotonic() - began
