"""The chaos itself: work comes, faults happen, all settles, and the books are read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from django.db import connection, transaction

from tests.chaos import events, records, tables
from tests.chaos.causes import Causes
from tests.chaos.checks import check
from tests.chaos.faults import Faults
from tests.chaos.fleet import LEASE, PROCESSES, Fleet
from tests.chaos.producers import KINDS, Producer
from tests.chaos.samples import Sampler
from tests.chaos.streams import Streams
from tests.processes.harness import RunWorker, execute
from tests.processes.server import Server
from tests.storm.patience import patiently
from tests.storm.sending import Sender

OPEN: Final = """
    SELECT (SELECT count(*) FROM pgbus_messages) + (SELECT count(*) FROM pgbus_delayed)
         + (SELECT count(*) FROM pgbus_blocked_executions)
"""
BACKLOG: Final = 600  # jobs: producers slow down
WHOLE_DECK_FROM: Final = 300.0  # seconds: a run so long goes on until each fault has happened
POISON_EVERY: Final = 20.0  # seconds
STREAM_PRODUCERS: Final = 2
LONGEST: Final = 600.0
QUIET: Final = 4.0  # seconds without work before sessions are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long it lasts, what is sent, and what happens."""

    seconds: float
    seed: int = 1
    kinds: tuple[str, ...] = tuple(KINDS)
    faults: tuple[str, ...] | None = None  # all
    every: float = 2.5  # seconds between two faults
    producers: int = 4
    pace: float = 0.08  # seconds that a producer waits between two transactions
    patience: float = 60.0  # seconds in which nothing moves, though something is open
    totals_take: float = 0.0  # seconds of a transaction of the transactional group, besides what it does
    longest: float = LONGEST  # seconds until all is settled after the last fault


@dataclass(slots=True, kw_only=True)
class Found:
    """What came of it."""

    settings: dict[str, Any]
    faults: dict[str, int] = field(default_factory=dict)
    workload: dict[str, dict[str, int]] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)  # by check
    seconds: float = 0.0

    @property
    def checks(self) -> dict[str, int]:
        return {name: len(lines) for name, lines in self.wrong.items()}

    @property
    def red(self) -> list[str]:
        return [name for name, lines in self.wrong.items() if lines]


class Chaos:
    """One run."""

    def __init__(self, plan: Plan, start: Callable[..., RunWorker], server: Server, folder: Path) -> None:
        self.plan = plan
        self.server = server
        self.fleet = Fleet(start, server, folder, {"TOTALS_TAKE": plan.totals_take})
        self.faults = Faults(self.fleet, server, plan.seed, plan.faults)
        self.found = Found(settings={**asdict(plan), "lease": LEASE})
        self.starved: list[float] = []
        self._pace = plan.pace

    def run(self) -> Found:
        """Let it happen and return what was seen."""
        began = time.monotonic()
        execute(tables.CREATE)
        events.declare()
        wanted = STREAM_PRODUCERS if "streams" in self.plan.kinds else 0
        self.streams = Streams(self.server, self.plan.seed, wanted, lambda: self._pace)
        sampler = Sampler(self.server.postgres.dsn, self.fleet.children, self.starved.append)
        producers = self._producers()
        everybody = [*producers, *self.streams.producers]
        try:
            self.fleet.begin()
            sampler.start()
            time.sleep(1.0)
            for producer in everybody:
                producer.start()
            self.storm(producers)
            _end(everybody)
            self.streams.end_prepared()
            self.faults.calm()
            unsettled = self.settle()
            time.sleep(QUIET)
            sampler.stopping.set()
            sampler.join(10)
            self.read(producers, sampler, unsettled)
            self.found.wrong["workers"] = self.faults.wrong + self.fleet.stop()
        finally:
            _end(everybody)
            sampler.stopping.set()
            self.fleet.close()
        self.found.seconds = time.monotonic() - began
        return self.found

    def _producers(self) -> list[Producer]:
        plan = self.plan
        return [
            Producer(number, plan.seed, self.server.settings, lambda: self._pace, plan.kinds)
            for number in range(1, plan.producers + 1)
        ]

    def storm(self, producers: list[Producer]) -> None:
        """Let faults happen until the time is over, and in a long run until each has."""
        start = time.monotonic()
        end, strike, poison, look = start + self.plan.seconds, start + self.plan.every, start + 5.0, start
        while (moment := time.monotonic()) < end or (
            self.plan.seconds >= WHOLE_DECK_FROM and not self.faults.decks and self.faults.names
        ):
            self.faults.end()
            if moment >= strike:
                self.faults.strike()
                strike = time.monotonic() + self.faults.random.uniform(0.5, 1.5) * self.plan.every
            if moment >= poison and "poison" in self.plan.kinds:
                self._poison(producers[0])
                poison = moment + POISON_EVERY
            if moment >= look:
                self._note_starvation()
                self.faults.revive()
                self._pace = self.plan.pace * (10 if self._open() > BACKLOG else 1)
                look = moment + 1.0
            time.sleep(0.05)
        self._note_starvation()

    def _poison(self, producer: Producer) -> None:
        try:
            producer.send_poison()
        except Exception:  # the server is down: the next one will do
            connection.close()

    def _note_starvation(self) -> None:
        """A machine that gave nobody a processor explains lapsed leases as a stopped worker does."""
        while self.starved:
            late = self.starved.pop()
            self.faults.happened["starved"] += 1
            patiently(
                "INSERT INTO chaos_faults (name, pids, after, before, detail)"
                " VALUES ('starved', %s, clock_timestamp() - %s * interval '1 s', clock_timestamp(), %s)",
                self.fleet.children(),
                late + 2.0,
                f"{late:.1f} s",
            )

    def _open(self) -> int:
        return int(patiently(OPEN)[0][0]) + self.streams.open()

    def settle(self) -> int:
        """Wait until nothing is open; return what is, if nothing moves for too long or it takes too long altogether."""
        start = moved = time.monotonic()
        seen = None
        while left := self._open():
            if seen != (now := (left, patiently(tables.LAST_MOVE))):
                seen, moved = now, time.monotonic()
            if time.monotonic() > min(moved + self.plan.patience, start + self.plan.longest):
                break
            self.faults.revive()
            time.sleep(0.1)
        return left

    def read(self, producers: Iterable[Producer], sampler: Sampler, unsettled: int) -> None:
        """Read the books and check them."""
        execute(tables.INDEXES)
        with transaction.atomic():  # one snapshot: workers may be at it still
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._check(producers, sampler)
        found = self.found
        found.seen = {
            "unsettled": unsettled,
            "workers started again": self.faults.revived,
            "lost connections of producers": sum(producer.lost_connections for producer in producers),
            "kinds tried": dict(sum((producer.tried for producer in producers), Counter())),
            "looks": sampler.samples.looks,
            "most sessions": max((sum(one.values()) for one in sampler.samples.sessions), default=0),
            "sessions in the end": dict(sampler.samples.sessions[-1]) if sampler.samples.sessions else {},
            "most locks waited for": max(sampler.samples.waited, default=0),
            "largest tables": dict(sorted(sampler.samples.sizes.items(), key=lambda one: -one[1])[:5]),
            "connections through the proxy": self.fleet.proxy.passed,
            **found.seen,
        }

    def _check(self, producers: Iterable[Producer], sampler: Sampler) -> None:
        found = self.found
        found.faults = dict(self.faults.happened)
        books = records.read(execute, undone={id for producer in producers for id in producer.undone})
        causes = Causes(books.faults, books.runs)
        found.wrong = check(books, sampler.samples, processes=len(self.fleet.members) * PROCESSES) | events.check(
            causes
        )
        found.wrong |= self.streams.check(causes, self.faults.happened["restart"])
        found.workload = books.workload() | {"events": events.workload(), "streams": self.streams.workload()}
        found.wrong["producers"] = [
            f"{producer.name}: {producer.failed!r}" for producer in producers if producer.failed is not None
        ]
        found.seen = books.seen()


def _end(producers: Iterable[Sender]) -> None:
    for producer in producers:
        producer.stopping.set()
    for producer in producers:
        if producer.is_alive():
            producer.join(30)
