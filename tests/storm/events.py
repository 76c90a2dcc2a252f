"""
A storm over events: each is published for four handlers, some of them twice, while the workers are killed with -9.

In the end the transactional handlers have had their effect once for each publication, the idempotent ones once for each
event; and whatever began anew did so because the process of the run before was killed. `run_events.py` runs it by hand.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from django.db import transaction

from django_pgbus import publish_many
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import handlers
from tests.processes.harness import RunWorker, alive, execute, until, value
from tests.storm import event_handlers
from tests.storm.event_books import IDEMPOTENT, PATHS, noted, repeats, wrong

PGBUS: Final = {"VISIBILITY_TIMEOUT": 6, "BACKOFF_BASE": 0.2}
OPTIONS: Final = ("--processes=2", "--threads=4", "--grace=2")
CHUNK: Final = 100
AGAIN: Final = 10  # each so manyth is published once more
WHOLE: Final = 7  # each so manyth kill takes a worker with all of its processes
OPEN: Final = "SELECT (SELECT count(*) FROM pgbus_messages) + (SELECT count(*) FROM pgbus_delayed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is published, and how often somebody is killed."""

    events: int
    seconds: tuple[float, float] = (0.0, 0.004)  # that a run takes
    kill_every: float = 1.0
    least_kills: int = 3
    most_kills: int = 1000
    restart: int | None = None  # after so many kills the server goes down, and is there again
    seed: int = 1
    patience: float = 120.0


@dataclass(slots=True, kw_only=True)
class Found:
    """What came of it."""

    events: int = 0
    messages: int = 0
    kills: int = 0
    whole_workers: int = 0
    restarts: int = 0
    seconds: float = 0.0
    runs: int = 0  # that were noted: those of two of the handlers
    repeated: dict[str, int] = field(default_factory=dict)  # by handler
    cut_short: int = 0  # runs without an end
    with_an_end: int = 0  # runs that were repeated though they had one: killed before they were settled
    taken_over: int = 0  # messages of idempotent handlers that needed more than one delivery
    skipped: dict[str, int] = field(default_factory=dict)  # by reason
    unsettled: int = 0
    dead: int = 0
    wrong: list[str] = field(default_factory=list)  # handlers and events that were not done as often as they should
    unexplained: list[str] = field(
        default_factory=list
    )  # runs that began beside another, or after one that had its end


class Storm:
    """Two workers of two processes, and what happens to them."""

    def __init__(self, plan: Plan, start: Callable[..., RunWorker], restart: Callable[[], None] | None = None) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self._start = lambda: start(*OPTIONS, pgbus=PGBUS, sweep_every=5)
        self._restart = restart
        self.published: Counter[uuid.UUID] = Counter()
        self.found = Found(events=plan.events)

    def run(self) -> Found:
        """Let it happen and return what was seen."""
        execute(event_handlers.CREATE)
        try:
            subscriptions.declare(handlers[path] for path in PATHS.values())
            workers = [self._start(), self._start()]
            for worker in workers:
                worker.ready(2)
            began = time.monotonic()
            self.publish()
            self.strike(workers)
            self.settle()
            self.found.seconds = time.monotonic() - began
            self.read()
            for worker in workers:
                worker.ready(2)  # One may just have been started.
                assert worker.stop() == 0
        finally:
            execute(event_handlers.DROP)
            execute("DELETE FROM pgbus_subscriptions WHERE handler = ANY (%s)", list(PATHS.values()))
        return self.found

    def publish(self) -> None:
        """Publish everything in short transactions; some events are published again later, under their id."""
        ids = [uuid.UUID(int=self.random.getrandbits(128), version=4) for _ in range(self.plan.events)]
        publications = [*ids, *ids[::AGAIN]]
        for start in range(0, len(publications), CHUNK):
            chunk = publications[start : start + CHUNK]
            with transaction.atomic():
                bodies = [
                    {"seconds": self.random.uniform(*self.plan.seconds), "publication": start + nth}
                    for nth, _ in enumerate(chunk)
                ]
                copies = publish_many([(event_handlers.TOPIC, body) for body in bodies], event_ids=chunk)
            assert copies == [len(PATHS)] * len(chunk)
            self.found.messages += sum(copies)
            self.published.update(chunk)

    def strike(self, workers: list[RunWorker]) -> None:
        """Kill a process each second, of one worker after the other, until nothing is open."""
        last = time.monotonic()
        while self.found.kills < self.plan.least_kills or (self.found.kills < self.plan.most_kills and value(OPEN)):
            time.sleep(max(0.0, last + self.plan.kill_every - time.monotonic()))
            last = time.monotonic()
            if self._restart is not None and self.found.kills == self.plan.restart and not self.found.restarts:
                self._restart_server(workers)
            self._kill(workers)

    def _restart_server(self, workers: list[RunWorker]) -> None:
        """It explains what the kill of all processes would: each lost its connections, and perhaps a reply."""
        assert self._restart is not None
        after = value("SELECT clock_timestamp()")
        running = [pid for worker in workers for pid in worker.children()]
        self._restart()
        self.found.restarts += 1
        for pid in running:
            execute("INSERT INTO event_storm_kills VALUES (%s, %s, clock_timestamp())", pid, after)

    def _kill(self, workers: list[RunWorker]) -> None:
        whole = self.found.kills % WHOLE == WHOLE - 1
        worker = workers.pop(0)
        children = worker.children()
        victims = [worker.pid, *children] if whole else self.random.sample(children, min(1, len(children)))
        if not victims:  # They are being started.
            workers.append(worker)
            return
        after = value("SELECT clock_timestamp()")
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if whole:
            worker.process.wait()
        until(lambda: not any(alive(pid) for pid in victims))
        for pid in victims:
            execute("INSERT INTO event_storm_kills VALUES (%s, %s, clock_timestamp())", pid, after)
        self.found.kills += 1
        self.found.whole_workers += whole
        workers.append(self._start() if whole else worker)

    def settle(self) -> None:
        """Wait until nothing is open."""
        end = time.monotonic() + self.plan.patience
        while (left := int(value(OPEN))) and time.monotonic() < end:
            time.sleep(0.05)
        self.found.unsettled = left

    def read(self) -> None:
        """Read the books."""
        found = self.found
        runs = noted()
        kills = execute("SELECT pid, after, before FROM event_storm_kills")
        found.runs, found.cut_short = len(runs), sum(run.ended is None for run in runs)
        found.dead = int(value("SELECT count(*) FROM pgbus_dead_letters"))
        found.repeated, found.with_an_end, found.unexplained = repeats(runs, kills)
        found.taken_over = int(
            value(
                "SELECT count(*) FROM pgbus_archive WHERE outcome = 'succeeded' AND delivery > 1 AND task = ANY (%s)",
                [PATHS[name] for name in IDEMPOTENT],
            )
        )
        found.skipped = dict(
            execute("SELECT reason, sum(amount)::int FROM pgbus_event_counts WHERE status = 'skipped' GROUP BY reason")
        )
        found.wrong = wrong(self.published)


def checks(found: Found) -> dict[str, int]:
    """Return what must be 0."""
    return {
        "wrong": len(found.wrong),
        "unexplained": len(found.unexplained),
        "unsettled": found.unsettled,
        "dead": found.dead,
    }
