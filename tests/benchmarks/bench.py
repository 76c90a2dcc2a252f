"""What every benchmark gets: the server, the counters, the systems, and what was asked for."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import psycopg

from tests.benchmarks import machine
from tests.benchmarks.counters import Counters
from tests.benchmarks.noise import MUCH, Noise
from tests.benchmarks.redis import Redis
from tests.benchmarks.server import Database, Server, Store
from tests.benchmarks.systems import OURS, System, peer

T = TypeVar("T")
CALM: Final = 8  # seconds without others, one after the other
MOST_TRIES: Final = 4  # runs for each that is wanted
SOME: Final = 3  # runs of what takes long and is no goal: peers at depth, parts of the streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One call of `run.py`."""

    name: str
    server: Server
    counters: Counters
    runs: int
    jobs: int | None
    rows: int
    seconds: float | None
    peers: tuple[str, ...]
    versions: dict[str, str] = field(default_factory=dict)
    redis: Redis = field(default_factory=Redis)
    failed: dict[str, str] = field(default_factory=dict)  # peers that could not be measured, and why
    calm: float = 0.0  # minutes to wait for it, before each run
    noise: list[float] = field(default_factory=list)  # of each run: the share of the processors that others used

    def each_run(self) -> Iterator[int]:
        """Yield the number of each run; where calm was asked for, more until there are as many in calm."""
        for number in range(self.runs * (MOST_TRIES if self.calm else 1)):
            if self.calm and sum(noise <= MUCH for noise in self.noise) >= self.runs:
                return
            self._wait_for_calm()
            print(f"{self.name}: run {number + 1} of {self.runs}", file=sys.stderr, end="", flush=True)
            with Noise(self.server.process) as noise:
                yield number
            self.noise.append(noise.share)
            print(f", others used {noise.share:.1%} of the processors", file=sys.stderr, flush=True)

    def in_calm(self, runs: list[T]) -> list[T]:
        """Return the runs that count: where calm was asked for, those that had it, or all if none had."""
        if not self.calm:
            return runs
        return [run for run, noise in zip(runs, self.noise, strict=True) if noise <= MUCH] or runs

    def _wait_for_calm(self) -> None:
        deadline = time.monotonic() + self.calm * 60
        while time.monotonic() < deadline and any(machine.busy() > MUCH for _ in range(CALM)):
            time.sleep(1.0)

    @property
    def counted(self) -> int:
        """Return how many runs before this one count."""
        return sum(noise <= MUCH for noise in self.noise) if self.calm else len(self.noise)

    @property
    def early(self) -> bool:
        """Return whether this is one of the first runs, for what needs no more of them."""
        return self.counted < SOME

    def systems(self) -> list[System]:
        """Return ours and the peers that are here."""
        return [OURS, *self.beside()]

    def beside(self) -> list[System]:
        """Return the peers that are here."""
        return [found for name in self.peers if (found := peer(name))]

    @contextlib.contextmanager
    def fresh(self, system: System) -> Iterator[Store]:
        """Make an empty store for a system, with its tables, for the length of a block."""
        if system.in_redis:
            with self.redis.fresh() as keys:
                self.install(system, keys)
                yield keys
        else:
            with self.server.fresh(system.name, partial(self.install, system)) as database:
                yield database

    @contextlib.contextmanager
    def sparing(self, system: System) -> Iterator[None]:
        """Let a peer fail without the others: what it was to tell is missing then, and why is told."""
        try:
            yield
        except (RuntimeError, subprocess.TimeoutExpired, psycopg.Error) as error:
            if system is OURS:
                raise
            self.failed[system.name] = str(error)[:2000]
            print(f"\n{system.name} failed: {error}", file=sys.stderr, flush=True)

    def install(self, system: System, store: Store) -> None:
        """Make the tables of a system and note its version."""
        self.versions[system.name] = str(system.run(self.counters, store, "install"))

    def install_ours(self, database: Database) -> None:
        """Make our tables."""
        self.install(OURS, database)

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return what a reader must know to judge the figures; asked for at the end."""
        return {
            **more,
            "runs": self.runs,
            **machine.describe(),
            "others_used": self.noise,
            "versions": self.versions,
            "postgres": self.server.describe(),
            **self.redis.describe(),
            **({"failed": self.failed} if self.failed else {}),
        }
