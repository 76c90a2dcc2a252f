"""
The systems under test: ours, and the peers that are run beside it in the same run.

`BENCH_PEERS` is a folder of virtual environments, one for each peer (`setup_venvs.sh` makes it). Ours runs in the
interpreter of the benchmark.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.benchmarks import machine
from tests.benchmarks.counters import Counters
from tests.benchmarks.server import Store

ROOT: Final = Path(__file__).parents[2]
STOP: Final = 10.0  # seconds a worker may take to end


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A queue, and how it is run: `pending` asks its store what is not settled, `concurrency` serves it best."""

    name: str
    module: str
    python: str
    pending: str
    concurrency: int = 0
    share: float = 1.0  # of the jobs: who needs minutes for all of them gets fewer
    in_redis: bool = False  # its jobs are not in PostgreSQL
    root: Path = ROOT  # the checkout whose code it runs

    def run(
        self,
        counters: Counters,
        store: Store,
        action: str,
        *numbers: float,
        module: str = "",
        timeout: float = 900,
    ) -> Any:
        """Do something in an interpreter of the system and return what came of it."""
        command = [self.python, "-m", "tests.benchmarks.driver", module or self.module, action, *map(str, numbers)]
        done = subprocess.run(
            command,
            env=self.environment(counters, store),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.root,
        )
        if done.returncode:
            raise RuntimeError(f"{self.name} {action} failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def environment(self, counters: Counters, store: Store) -> dict[str, str]:
        """Return the environment of its processes."""
        return {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "BENCH_DSN": store.url,
            "BENCH_RUN": str(counters.folder),
            "BENCH_CONCURRENCY": str(self.concurrency),
        }


class Worker:
    """A worker of a system, for the length of a block."""

    def __init__(self, system: System, counters: Counters, store: Store, *options: str) -> None:
        self.system = system
        self.log = counters.folder.with_name(f"{system.name}.log")
        self._command = [system.python, "-m", "tests.benchmarks.driver", system.module, "work", *options]
        self._environment = system.environment(counters, store)

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self.system.root,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        """Return the process that was started; others may descend from it."""
        return self._process.pid

    def check(self) -> None:
        """Raise if it has ended, with what it said."""
        if self._process.poll() is not None:
            raise self.failed(f"ended with {self._process.returncode}")

    def failed(self, what: str) -> RuntimeError:
        """Return an error that says what happened, and what the worker has to say."""
        said = self.log.read_text(errors="replace")[-3000:]
        return RuntimeError(f"The worker of {self.system.name} {what}. It said:\n{said}")

    def __exit__(self, *exc_info: object) -> None:
        relatives = {pid: machine.born(pid) for pid in machine.family(self.pid)}
        self._process.terminate()
        deadline = time.monotonic() + STOP
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid, birth in relatives.items():
            # What does not end in order is ended; a number that was given to another process meanwhile is not ours.
            if birth is not None and machine.born(pid) == birth:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()


OURS: Final = System(
    name="pgbus",
    module="tests.benchmarks.project.driver",
    python=sys.executable,
    pending="SELECT count(*) FROM pgbus_messages",
)


@dataclass(frozen=True, slots=True)
class Peer:
    """How a peer is run: the fields of `System` that are its own."""

    pending: str
    concurrency: int
    share: float = 1.0
    in_redis: bool = False
    venv: str = ""  # where it is not the peer's name


PEERS: Final = {
    "refskip": Peer("SELECT count(*) FROM line", 100, venv="sql"),
    "pgqueuer": Peer("SELECT count(*) FROM pgqueuer WHERE status IN ('queued', 'picked')", 100),
    "chancy": Peer("SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')", 1000, 0.25),
    "oban": Peer(
        "SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'executing', 'scheduled', 'retryable')", 500, 0.2
    ),
    "procrastinate": Peer("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')", 50, 0.05),
    "djtasksdb": Peer(
        "SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING', 'NEW')", 1, 0.03
    ),
    "celery": Peer("LLEN celery; HLEN unacked", 1, 0.1, in_redis=True),
}
ALIASES: Final = {"django-tasks-db": "djtasksdb"}
YARDSTICK: Final = "refskip"


def names(asked: str) -> tuple[str, ...]:
    """Return the peers of a list with commas, the yardstick among them; raises for one that is not known."""
    wanted = [ALIASES.get(name, name) for name in asked.split(",") if name]
    if unknown := set(wanted) - PEERS.keys():
        raise SystemExit(f"No such peer: {', '.join(sorted(unknown))}. Known are {', '.join((*PEERS, *ALIASES))}.")
    return tuple(dict.fromkeys([*wanted, YARDSTICK]))


def peer(name: str) -> System | None:
    """Return a peer, or None where it has no virtual environment here, or no Redis."""
    how = PEERS[name]
    folder = os.environ.get("BENCH_PEERS")
    python = Path(folder or "") / (how.venv or name) / "bin" / "python"
    if not folder or not python.exists() or (how.in_redis and shutil.which("redis-server") is None):
        return None
    return System(
        name=name,
        module=f"tests.benchmarks.peers.{name}",
        python=str(python.absolute()),
        pending=how.pending,
        concurrency=how.concurrency,
        share=how.share,
        in_redis=how.in_redis,
    )
