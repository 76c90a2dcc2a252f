"""What every benchmark gets: the server, the counters, the systems, and what was asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tests.benchmarks import machine
from tests.benchmarks.counters import Counters
from tests.benchmarks.noise import MUCH, Noise
from tests.benchmarks.server import Database, Server
from tests.benchmarks.systems import OURS, System, peer

T = TypeVar("T")
CALM: Final = 8  # seconds without others, one after the other
MOST_TRIES: Final = 4  # runs for each that is wanted


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

    def systems(self) -> list[System]:
        """Return ours and the peers that are here."""
        return [OURS, *(there for name in self.peers if (there := peer(name)))]

    def install(self, system: System, database: Database) -> None:
        """Make the tables of a system and note its version."""
        self.versions[system.name] = str(system.run(self.counters, database, "install"))

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
        }
