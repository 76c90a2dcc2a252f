"""
An hour of a steady mix of jobs, and whether anything grows.

    python tests/chaos/run.py soak [--hours 1 | --minutes N] [--rate 300] [--seed 1] [--out FOLDER] [--json] [--record]
    python tests/chaos/run.py soak --again FOLDER/soak.json.gz --record

A PostgreSQL of its own, durable and otherwise as it comes; two `runworker` of two processes; a process that sends at a
steady rate, each action at its own instant. Every ten seconds everything is measured that could grow. FOLDER gets the
samples and the plots; --record writes them into the documentation. The exit code is 1 if a job was lost or ran without a
cause, or a series grows.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import psycopg  # noqa: E402

from django_pgbus.embedded import EmbeddedPostgres  # noqa: E402
from tests.benchmarks import machine  # noqa: E402
from tests.chaos import soak_processes  # noqa: E402
from tests.chaos.soak_books import Books  # noqa: E402
from tests.chaos.soak_report import Report, read, shape  # noqa: E402
from tests.chaos.soak_samples import TOP, Observer  # noqa: E402
from tests.chaos.soak_workload import RECORD, SHARE_OF_STREAM, Sent  # noqa: E402
from tests.chaos.soaked.tables import CREATE, PARTS  # noqa: E402

# Durable, with statements counted; all else is PostgreSQL's default.
POSTGRES: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_preload_libraries": "pg_stat_statements",
}
TOLD: Final = (
    *("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size"),
    *("checkpoint_timeout", "autovacuum", "autovacuum_naptime", "autovacuum_vacuum_scale_factor"),
)
EVERY: Final = 10.0  # seconds between two samples
WORKERS: Final = 2
PROCESSES: Final = 2
LATE: Final = 30.0  # seconds after its minute in which whoever ran in it has written it down
PATIENCE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, and the times that follow from its length."""

    seconds: float
    rate: float
    seed: int

    @property
    def retention(self) -> float:
        """Return how long what is finished is kept: a twelfth of the run, so that the steady state is most of it."""
        return min(300.0, max(5.0, self.seconds / 12))

    @property
    def longest_delay(self) -> float:
        """Return the longest delay of a delayed job."""
        return min(120.0, max(3.0, self.seconds / 6))

    @property
    def partition(self) -> int:
        """Return how many entries a partition of the stream holds: a fifth of what its retention keeps."""
        return max(100, round(self.rate * SHARE_OF_STREAM * self.retention / 5))


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float)
    length.add_argument("--minutes", type=float)
    parser.add_argument("--rate", type=float, default=300.0, help="jobs a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder of samples and plots; ./soak-DATE if left out")
    parser.add_argument("--json", action="store_true", help="print the verdicts as one JSON document")
    parser.add_argument("--no-plots", dest="plots", action="store_false", help="leave the drawing out")
    parser.add_argument("--again", type=Path, metavar="FILE", help="judge and draw an earlier run, its soak.json.gz")
    parser.add_argument("--record", action="store_true", help="write the run into docs/operations/soak")
    options = parser.parse_args(arguments)
    seconds = options.minutes * 60 if options.minutes else (options.hours or 1.0) * 3600
    out = options.out or Path(time.strftime("soak-%Y-%m-%d-%H%M"))
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started is ended, too
    if options.again:
        report = Report(read(options.again))
    else:
        with running(Plan(seconds, options.rate, options.seed), out) as soak:
            soak.run()
        report = Report(soak.found)
        report.write(out)
    if options.plots and importlib.util.find_spec("matplotlib"):
        report.draw(out, ("svg", "png"))
    if options.record:
        report.record()
    print(json.dumps(report.summary()) if options.json else report.text())
    return 0 if report.is_good else 1


@contextlib.contextmanager
def running(plan: Plan, out: Path) -> Iterator[Soak]:
    """Have the server, and leave nothing running and no files."""
    place = Path(os.environ.get("BENCH_FOLDER", tempfile.gettempdir())) / f"pgbus-soak-{secrets.token_hex(4)}"
    postgres = EmbeddedPostgres(place, keep=False)
    postgres.start(**POSTGRES)
    folder = Path(tempfile.mkdtemp(prefix="pgbus-soak-"))
    soak = Soak(plan, postgres, folder, out)
    try:
        yield soak
    finally:
        soak.end()
        postgres.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


class Soak:
    """One run: its processes, its samples, its books."""

    def __init__(self, plan: Plan, postgres: EmbeddedPostgres, folder: Path, out: Path) -> None:
        self.plan, self.postgres, self.out = plan, postgres, out
        self.books = Books()
        self.found: dict[str, Any] = {"samples": []}
        self._sent = folder / "sent"
        self._sent.touch()  # who sends may take its time to start
        self._read = 0
        self._started: list[subprocess.Popen[bytes]] = []
        self._supervisors: list[subprocess.Popen[bytes]] = []
        self._taken = 0  # the last minute whose runs are in the books

    # --- the run ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start everything, sample until it is over, and close the books."""
        self._prepare()
        self._supervisors = [self._start_worker(number) for number in range(WORKERS)]
        self._wait_for_workers()
        began = time.time()
        self._began, self._taken, self._shaped = began, int(began // 60) - 1, began
        producers = self._start(
            "producers",
            "-m",
            "tests.chaos.soak_producers",
            self._sent,
            self.plan.rate,
            self.plan.seconds,
            self.plan.seed,
        )
        self._producers = producers
        number = 1
        while producers.poll() is None:
            time.sleep(max(0.0, began + number * EVERY - time.time()))
            self._sample()
            self._save()
            number += 1
        self._settle()
        self._close_books(producers.returncode)

    def _prepare(self) -> None:
        subprocess.run(
            [sys.executable, "-m", "django", "migrate", "-v", "0"], env=self._environment("migrate"), check=True
        )
        with psycopg.connect(self.postgres.url(), autocommit=True) as session:
            session.execute(CREATE)
        self.observer = Observer(self.postgres.url())
        row = self.observer.value("SELECT pg_backend_pid()")
        self._server = machine.parent_of(row)
        self.found |= {
            "plan": {
                "hours": self.plan.seconds / 3600,
                "rate": self.plan.rate,
                "seed": self.plan.seed,
                "retention": self.plan.retention,
                "longest_delay": self.plan.longest_delay,
                "partition": self.plan.partition,
                "workers": WORKERS,
                "processes": PROCESSES,
            },
            "machine": machine.describe(),
            "postgres": self.observer.settings([*TOLD]),
            "began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        }

    def _environment(self, role: str) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if name != "DATABASE_URL"}
        return kept | {
            "DJANGO_SETTINGS_MODULE": "tests.chaos.soaked.settings",
            "PYTHONPATH": str(ROOT),
            "SOAK_DSN": self.postgres.url(),
            "SOAK_RETENTION": str(self.plan.retention),
            "SOAK_PARTITION": str(self.plan.partition),
            "SOAK_LONGEST_DELAY": str(self.plan.longest_delay),
            "SOAK_ROLE": role,
        }

    def _start(self, role: str, *arguments: Any) -> subprocess.Popen[bytes]:
        with (self.out / f"{role.replace(' ', '-')}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                env=self._environment(role),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        return self._start(f"worker {number + 1}", "-m", "django", "runworker", "--processes", PROCESSES, "-v", "1")

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.observer.value("SELECT count(*) FROM pgbus_workers") < WORKERS * PROCESSES:
            if time.monotonic() > deadline or any(one.poll() is not None for one in self._supervisors):
                raise SystemExit(f"The workers did not start; see {self.out}.")
            time.sleep(0.1)
        self._children = [soak_processes.children(one.pid) for one in self._supervisors]

    # --- samples ----------------------------------------------------------------------------------------

    def _sample(self) -> None:
        now = time.time()
        self._enter()
        processes = {name: found for name, pid in self._processes() if (found := soak_processes.look(pid)) is not None}
        self.found["samples"].append(
            {
                "at": now - self._began,
                "processes": processes,
                "server": soak_processes.look_at_server(self._server),
                "machine": soak_processes.used(),
                "sent": self.books.jobs,
                "ran": sum(self.books.runs.values()),
                **self.observer.look(),
            }
        )

    def _processes(self) -> Iterator[tuple[str, int]]:
        for number, supervisor in enumerate(self._supervisors, 1):
            yield f"supervisor {number}", supervisor.pid
            for nth, pid in enumerate(self._children[number - 1], 1):
                yield f"worker {number}.{nth}", pid
        yield "producers", self._producers.pid
        yield "observer", os.getpid()

    def _enter(self) -> None:
        """Enter what was sent since the last time, then what ran in minutes that are over."""
        with self._sent.open("rb") as file:
            file.seek(self._read)
            raw = file.read()
        raw = raw[: len(raw) // RECORD.size * RECORD.size]
        self._read += len(raw)
        self.books.enter(Sent.unpacked(raw))
        while time.time() > (self._taken + 2) * 60 + LATE:
            self._take(self._taken + 1)

    def _take(self, minute: int) -> None:
        self.books.settle(self.observer.take(minute % PARTS))
        self._taken = minute
        self._shape_waits((minute + 1) * 60.0)

    def _shape_waits(self, until: float) -> None:
        """Make what was waited up to a moment a row for each interval."""
        waits = self.found.setdefault("waits", {})
        while self._shaped + EVERY <= until:
            self._shaped += EVERY
            for name, seconds in self.books.waits_until(self._shaped).items():
                if seconds:
                    waits.setdefault(name, []).append([self._shaped - self._began, *shape(seconds)])

    def _save(self) -> None:
        """Leave what was seen so far, for whoever cannot wait."""
        partial = self.out / "partial.json"
        partial.with_suffix(".new").write_text(json.dumps(self.found))
        partial.with_suffix(".new").rename(partial)

    # --- the end ----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait until everything has run, and nothing is left."""
        deadline = time.monotonic() + self.plan.longest_delay + PATIENCE
        while True:
            self._enter()
            for part in range(PARTS):
                self.books.settle(self.observer.take(part))
            self.found["left"] = self.observer.left()
            if not (self.books.left or any(self.found["left"].values())) or time.monotonic() > deadline:
                break
            time.sleep(1.0)
        self._shape_waits(time.time() + EVERY)

    def _close_books(self, code: int) -> None:
        for supervisor in self._supervisors:
            supervisor.send_signal(signal.SIGTERM)
        codes = [supervisor.wait(PATIENCE) for supervisor in self._supervisors]
        books, tuples = self.books, self.observer.look()["tuples"]
        self.found |= {
            "exit_codes": {"producers": code, "workers": codes},
            "books": {
                "sent": dict(books.sent),
                "jobs": books.jobs,
                "refused": dict(books.refused),
                "undone": books.undone,
                "runs": dict(books.runs),
                "lost": dict(books.lost()),
                "doubled": len(books.unexpected),
                "doubled_first": books.unexpected[:20],
                "broken": books.broken,
            },
            "counted": self.observer.counted(),
            "statements": self.observer.rows(TOP),
            "archived": tuples["pgbus_archive"]["inserted"],
            "dead_letters": tuples["pgbus_dead_letters"]["inserted"],
            "deadlocks": self.observer.look()["whole"]["deadlocks"],
        }

    def end(self) -> None:
        """End what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if hasattr(self, "observer"):
            self.observer.close()


if __name__ == "__main__":
    raise SystemExit(main())
