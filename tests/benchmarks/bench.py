"""What every benchmark gets: the server, the counters, the systems, and what was asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks import machine
from tests.benchmarks.counters import Counters
from tests.benchmarks.server import Database, Server
from tests.benchmarks.systems import OURS, System, peer


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
    noise: list[float] = field(default_factory=list)  # before each run

    def each_run(self) -> Iterator[int]:
        """Yield the number of each run, and say so."""
        for number in range(self.runs):
            self.noise.append(machine.busy())
            heard = f"load {machine.load()}, processors busy {self.noise[-1]:.0%}"
            print(f"{self.name}: run {number + 1} of {self.runs}, {heard}", file=sys.stderr, flush=True)
            yield number

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
            "busy_before_runs": self.noise,
            "versions": self.versions,
            "postgres": self.server.describe(),
        }
