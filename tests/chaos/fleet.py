"""The workers of the chaos: some reach the server directly, some through the proxy, some have a wrong clock."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos import clocks
from tests.chaos.proxy import Proxy
from tests.processes.harness import RunWorker
from tests.processes.server import Server
from tests.settings import INSTALLED_APPS

LEASE: Final = 5.0
PGBUS: Final = {"VISIBILITY_TIMEOUT": LEASE, "BACKOFF_BASE": 0.2, "BACKOFF_CAP": 3.0, "MAX_ATTEMPTS": 200}
PROCESSES: Final = 2
OPTIONS: Final = (f"--processes={PROCESSES}", "--threads=4", "--grace=2")
APPS: Final = [*INSTALLED_APPS, "tests.processes", "tests.storm.followers"]
SWEEPS: Final = 5  # seconds between two
SKEW: Final = 600  # seconds
PATIENCE: Final = 180.0  # seconds until all work, on a machine that others use


@dataclass(slots=True)
class Member:
    """One worker, and what it is started with."""

    name: str
    proxied: bool = False
    skew: int = 0  # seconds that its clock is ahead
    version: str = "both"  # of the code: `before` does not know a new task, `after` has lost an old one
    runworker: RunWorker | None = None

    @property
    def worker(self) -> RunWorker:
        assert self.runworker is not None
        return self.runworker

    def pids(self) -> list[int]:
        """Return its supervisor and its processes."""
        return [self.worker.pid, *self.worker.children()]


class Fleet:
    """All workers of a run; who is killed or deployed is started again under its name."""

    def __init__(
        self, start: Callable[..., RunWorker], server: Server, folder: Path, settings: dict[str, Any] | None = None
    ) -> None:
        self._start = start
        self._settings = settings or {}
        self._dsn = server.postgres.dsn
        self.proxy = Proxy(f"{self._dsn['host']}/.s.PGSQL.{self._dsn['port']}")
        self.library = clocks.library(folder)
        self.members = [
            Member("direct"),
            Member("proxied", proxied=True),
            Member("skewed", skew=SKEW if self.library else 0),
        ]

    def start(self, member: Member) -> None:
        """Start it anew, as it is meant to be now."""
        there = {"HOST": "127.0.0.1", "PORT": str(self.proxy.port)} if member.proxied else {}
        settings: dict[str, Any] = {
            "INSTALLED_APPS": APPS,
            "NOTES": self._dsn,
            "CHAOS_VERSION": member.version,
        } | self._settings
        member.runworker = self._start(
            *OPTIONS,
            f"--worker-id={member.name}",
            pgbus=PGBUS,
            settings=settings,
            sweep_every=SWEEPS,
            database_more=there,
            environment=clocks.environment(self.library, member.skew),
        )

    def begin(self) -> None:
        """Start all, and wait until they work."""
        for member in self.members:
            self.start(member)
        for member in self.members:
            member.worker.ready(PROCESSES, PATIENCE)

    def children(self) -> list[int]:
        return [pid for member in self.members for pid in member.worker.children()]

    def proxied(self) -> list[int]:
        """Return the processes that depend on the proxy."""
        return [pid for member in self.members if member.proxied for pid in member.pids()]

    def stop(self) -> list[str]:
        """Ask all to end, and return what was wrong with that."""
        for member in self.members:
            member.worker.send(signal.SIGTERM)
        found = []
        for member in self.members:
            try:
                code: object = member.worker.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                code = f"nothing within {PATIENCE:.0f} s"
            if code != 0:
                found.append(f"{member.name} ended with {code}")
        return found

    def close(self) -> None:
        self.proxy.close()
