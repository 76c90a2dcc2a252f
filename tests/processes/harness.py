"""
A real `manage.py runworker`: started, asked, killed, and looked at from outside.

Nothing here proves anything by sleeping: `until` looks again and again, and fails after a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from django.db import connection

from tests.processes import tasks

ROOT = Path(__file__).resolve().parents[2]
MANAGE = Path(__file__).with_name("manage.py")
PATIENCE = 40.0  # seconds until a test that hangs fails; never a proof
JOBS = "the jobs of a worker"  # the name of their sessions; the worker's own are called `pgbus ...`
SESSIONS = f"""
    FROM pg_stat_activity
    WHERE datname = current_database()
      AND (application_name = '{JOBS}' OR application_name LIKE 'pgbus%%')
      AND (%s::text IS NULL OR application_name LIKE %s::text)
"""

T = TypeVar("T")


def until(true: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Return what it returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (result := true()):
        assert time.monotonic() < deadline, "It did not happen."
        time.sleep(0.02)
    return result


def execute(text: str, *params: Any) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(text, params or None)
        return cursor.fetchall() if cursor.description else []


def value(text: str, *params: Any) -> Any:
    """Return the one value a statement gives."""
    ((found,),) = execute(text, *params)
    return found


def prepare_runs() -> None:
    """Have an empty table for what jobs write down."""
    execute(tasks.CREATE)
    execute("TRUNCATE process_test_runs")


def runs(name: str, event: str | None = None) -> int:
    """Return how often a job of this name wrote this event down."""
    if event is None:
        return int(value("SELECT count(*) FROM process_test_runs WHERE name = %s", name))
    return int(value("SELECT count(*) FROM process_test_runs WHERE name = %s AND event = %s", name, event))


def when(name: str, event: str, which: str = "min") -> float:
    """Return the time of the first (or `max`: the last) such row, in seconds of the database's clock."""
    assert which in {"min", "max"}
    return float(
        value(
            f"SELECT extract(epoch FROM {which}(at)) FROM process_test_runs WHERE name = %s AND event = %s", name, event
        )
    )


def database_time() -> float:
    return float(value("SELECT extract(epoch FROM clock_timestamp())"))


def row(id: Any) -> dict[str, Any]:
    """Return a message that stands in the line, leased or not."""
    names = "delivery, attempts, suspect, started, leased_until, errors::text, extract(epoch FROM ready_at)::float8"
    ((*values,),) = execute(f"SELECT {names} FROM pgbus_messages WHERE id = %s", int(id))
    return dict(
        zip(["delivery", "attempts", "suspect", "started", "leased_until", "errors", "ready_at"], values, strict=True)
    )


def archived(id: Any) -> dict[str, Any]:
    """Return a job that succeeded."""
    ((*values,),) = execute("SELECT delivery, attempts, result::text FROM pgbus_archive WHERE id = %s", int(id))
    return dict(zip(["delivery", "attempts", "result"], values, strict=True))


def dead(id: Any) -> dict[str, Any]:
    """Return a dead letter; its errors as objects."""
    ((attempts, reason, errors),) = execute(
        "SELECT attempts, reason, errors::text FROM pgbus_dead_letters WHERE id = %s", int(id)
    )
    return {"attempts": attempts, "reason": reason, "errors": json.loads(errors or "[]")}


def is_archived(id: Any) -> bool:
    return bool(execute("SELECT 1 FROM pgbus_archive WHERE id = %s", int(id)))


def is_dead(id: Any) -> bool:
    return bool(execute("SELECT 1 FROM pgbus_dead_letters WHERE id = %s", int(id)))


def finished(job: Any) -> Any:
    """Wait until a job has succeeded, and return it."""
    until(lambda: is_archived(job.id))
    return job


def count(table: str) -> int:
    return int(value(f"SELECT count(*) FROM {table}"))


def job_sessions() -> int:
    """Return how many connections the jobs of all workers have."""
    return sessions(JOBS)


def sessions(like: str | None = None) -> int:
    """Return how many connections the workers have: those with a name like this, or all."""
    return int(value(f"SELECT count(*) {SESSIONS}", like, like))


def terminate(like: str | None = None) -> int:
    """End the sessions of workers whose name is like this, or all, and return how many there were."""
    return len(execute(f"SELECT pg_terminate_backend(pid) {SESSIONS}", like, like))


# --- processes ----------------------------------------------------------------------------------------


def _stat(pid: int) -> tuple[str, int] | None:
    """Return state and parent of a process, or None if it is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[1])
    return None


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not collected does not."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def _is_spawned(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def memory(pid: int) -> int:
    """Return the resident memory of a process in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"{pid} has no memory")


class RunWorker:
    """One `manage.py runworker` and its processes."""

    def __init__(
        self,
        folder: Path,
        database: dict[str, Any],
        *arguments: str,
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        **said: Any,
    ) -> None:
        self.log_file = folder / f"worker-{time.monotonic_ns()}.log"
        self._known: set[int] = set()
        said = {"database": database, "pgbus": {}, **said}
        variables = {name: text for name, text in os.environ.items() if name != "DATABASE_URL"}
        variables |= {
            "DJANGO_SETTINGS_MODULE": "tests.processes.settings",
            "PGBUS_TEST_WORKER": json.dumps(said),
            "PGBUS_EMBEDDED": "0",  # the server is up; one that is stopped must stay so
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        with self.log_file.open("w") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, str(MANAGE), "runworker", *arguments],
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def children(self) -> list[int]:
        """Return the worker processes that live, oldest first."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                pid = int(entry.name)
                stat = _stat(pid)
                if stat and stat[1] == self.pid and stat[0] not in "ZX" and _is_spawned(pid):
                    found.append(pid)
        self._known |= set(found)
        return sorted(found)

    def ready(self, processes: int = 1, seconds: float = PATIENCE) -> list[int]:
        """Wait until so many processes have said that they work, and return their ids."""

        def working() -> list[int]:
            assert self.process.poll() is None, f"It ended with {self.process.returncode}."
            children = self.children()
            there = {pid for (pid,) in execute("SELECT pid FROM pgbus_workers")}
            return children if len(children) == processes and there >= set(children) else []

        return until(working, seconds)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Return its exit code once it has ended."""
        return self.process.wait(seconds)

    def stop(self, seconds: float = PATIENCE) -> int:
        """Ask it to end and return its exit code."""
        self.send(signal.SIGTERM)
        return self.wait(seconds)

    def until_logged(self, text: str, seconds: float = PATIENCE) -> None:
        until(lambda: text in self.log, seconds)

    def end(self) -> None:
        """Leave nothing running."""
        with contextlib.suppress(OSError):
            self.children()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        for pid in self._known:
            if alive(pid) and _is_spawned(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) and _is_spawned(pid) for pid in self._known))


def described(settings: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of DATABASES that another process can be given, with `more`, whose OPTIONS are added."""
    kept = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "CONN_MAX_AGE", "CONN_HEALTH_CHECKS")
    options = {**settings["OPTIONS"], "application_name": JOBS, **more.get("OPTIONS", {})}
    if more.get("CONN_MAX_AGE", 0) != 0:  # Django refuses both together
        options.pop("pool", None)
    return {**{name: settings[name] for name in kept if name in settings}, **more, "OPTIONS": options}


@contextlib.contextmanager
def started(folder: Path, settings: dict[str, Any], *, tell: bool = True) -> Iterator[Callable[..., RunWorker]]:
    """Yield what starts workers; all of them end with the block, and with `tell` their logs are shown if the test failed."""
    workers: list[RunWorker] = []

    def start(*arguments: str, database_more: dict[str, Any] | None = None, **said: Any) -> RunWorker:
        worker = RunWorker(folder, described(settings, database_more or {}), *arguments, **said)
        workers.append(worker)
        return worker

    try:
        yield start
    finally:
        for worker in workers:
            worker.end()
            if tell:
                print(f"--- {worker.log_file.name}\n{worker.log[-8000:]}")
