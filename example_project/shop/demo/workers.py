"""The `runworker` processes of the demonstration: started, killed on purpose, kept going, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from django_pgbus.conf import EVERYTHING
from django_pgbus.models import Worker
from shop.streams import TOTALS, ledger

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
STOP_WITHIN = 45  # seconds; more than `SHUTDOWN_GRACE`
CRASHES = 5


class WorkersError(Exception):
    """The workers do not run; the message is the end of their log."""


class Workers:
    """`count` supervisors, each with a process that works; what they say goes into a file each below `logs`."""

    def __init__(self, count: int, *, logs: Path, environment: dict[str, str]) -> None:
        self.count = count
        self.logs = logs
        self.environment = {**os.environ, **environment}
        self.killed = 0
        self._crashes = 0
        self._asked_for: set[int] = set()
        self._supervisors: dict[int, subprocess.Popen[bytes]] = {}
        self._options: dict[int, tuple[str, ...]] = {}

    def __enter__(self) -> Workers:
        self.logs.mkdir(parents=True, exist_ok=True)
        for _ in range(self.count):
            self.begin("--queues", EVERYTHING, "--streams", f"{ledger.name}/{TOTALS}")
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def begin(self, *options: str) -> None:
        """Start one more, with these options of `runworker`."""
        number = len(self._supervisors) + 1
        self._log(number).unlink(missing_ok=True)
        self._options[number] = options
        self._start(number)

    def kill_one(self) -> str | None:
        """Kill -9 the process that has worked longest; return what was killed, or None if none works yet."""
        pid = next(self._working(), None)
        if pid is None:
            return None
        self._asked_for.add(pid)
        os.kill(pid, KILL)
        self.killed += 1
        return f"kill -9 {pid} (a worker process; kill number {self.killed})"

    def keep_going(self) -> list[str]:
        """Start again what has ended, and say so. Raises WorkersError when they end by themselves again and again."""
        said = []
        for number, process in list(self._supervisors.items()):
            if process.poll() is None:
                continue
            if process.pid not in self._asked_for:
                self._crashes += 1
            if self._crashes > CRASHES:
                raise WorkersError(f"runworker ends with {process.returncode}; {self._tail(number)}")
            self._start(number)
            said.append(f"runworker {number} ended with {process.returncode} and was started again")
        return said

    def stop(self) -> list[int]:
        """Ask all to finish what they run; return their exit codes."""
        for process in self._supervisors.values():
            if process.poll() is None:
                process.terminate()
        return [self._end(process) for process in self._supervisors.values()]

    def _start(self, number: int) -> None:
        with self._log(number).open("ab") as log:
            self._supervisors[number] = subprocess.Popen(
                [
                    *(sys.executable, str(MANAGE), "runworker"),
                    *("--worker-id", f"shop-{number}", *self._options[number]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is for us: we tell the workers
            )

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _working(self) -> Iterator[int]:
        ours = {process.pid for process in self._supervisors.values()}
        known = Worker.objects.exclude(pid__in=self._asked_for).order_by("started_at").values_list("pid", flat=True)
        return (pid for pid in known if pid in ours or parent_of(pid) in ours)

    def _log(self, number: int) -> Path:
        return self.logs / f"worker-{number}.log"

    def _tail(self, number: int) -> str:
        return f"{self._log(number)} ends:\n" + self._log(number).read_text(errors="replace")[-2000:]


def parent_of(pid: int) -> int | None:
    """Return the process that started `pid`, or None if there is no such process."""
    if Path("/proc/self/stat").exists():
        try:
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
    found = subprocess.run(  # macOS and the BSDs
        ["ps", "-o", "ppid=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return int(found) if found else None
