"""
P10, burst: a hundred thousand jobs come at once to four processes that sleep.

Each job marks its number, so that one that never ran or ran twice is seen. Deadlocks are those that PostgreSQL counted;
how long anybody waited for a lock is read from pg_locks a hundred times a second.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.drains import watch
from tests.benchmarks.figures import medians, rounded
from tests.benchmarks.goals import reached
from tests.benchmarks.report import Report
from tests.benchmarks.server import Database
from tests.benchmarks.systems import OURS, Worker

JOBS = 100_000
PROCESSES = 4
WARM_UP = 4.0
LONGEST_WAIT = """
    SELECT coalesce(max(extract(epoch FROM clock_timestamp() - locks.waitstart)), 0)::float8
    FROM pg_locks AS locks
    JOIN pg_stat_activity AS activity USING (pid)
    WHERE NOT locks.granted AND activity.datname = current_database()
"""
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def run(bench: Bench) -> Report:
    jobs = bench.jobs or JOBS
    runs: list[dict[str, Any]] = []
    for _ in bench.each_run():
        with bench.server.fresh("pgbus", bench.install_ours) as database:
            runs.append(one(bench, database, jobs))
    runs = bench.in_calm(runs)
    worst = {name: max(found[name] for found in runs) for name in ("lost", "doubled", "deadlocks", "longest_wait_s")}
    return Report(
        bench=bench.name,
        settings=bench.settings(jobs=jobs, processes=PROCESSES),
        runs=runs,
        ratios={"waits_vs_looks": rounded(medians(runs).get("waits_vs_looks"), 4)},
        goals=reached("burst", **{f"P10__{name}": value for name, value in worst.items()}),
        checks={name: worst[name] for name in ("lost", "doubled", "deadlocks")},
    )


def one(bench: Bench, database: Database, jobs: int) -> dict[str, Any]:
    """Send the burst to sleeping workers and wait until nothing is left."""
    database.settle()
    bench.counters.clear(numbered=jobs)
    with (
        Worker(OURS, bench.counters, database, "--processes", str(PROCESSES)) as worker,
        LockWaits(database) as waits,
    ):
        time.sleep(WARM_UP)
        began = time.time()
        sending = threading.Thread(target=OURS.run, args=(bench.counters, database, "send_numbered", jobs))
        sending.start()
        watch(worker, bench.counters, lambda _, count: count >= jobs)
        while database.value(OURS.pending):
            worker.check()
            time.sleep(0.02)
        ended = time.time()
        sending.join()
        first = bench.counters.starts().first
    never, again = bench.counters.marks()
    archived = database.value("SELECT count(*) FROM pgbus_archive")
    return {
        "rate": rounded(jobs / (ended - first), 0),
        "seconds_from_call": rounded(ended - began, 2),
        "lost": max(never, jobs - archived),
        "doubled": max(again, archived - jobs),
        "deadlocks": database.value(DEADLOCKS),
        "longest_wait_s": rounded(waits.longest, 3),
        "waits_vs_looks": rounded(waits.seen / max(waits.looks, 1), 4),
    }


class LockWaits:
    """Watches in a thread how long anybody waits for a lock."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.longest = 0.0
        self.looks = 0
        self.seen = 0

    def __enter__(self) -> LockWaits:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with self._database.connect() as connection:
            while not self._over.wait(0.01):
                row = connection.execute(LONGEST_WAIT).fetchone()
                longest = float(row[0]) if row else 0.0
                self.looks += 1
                self.seen += longest > 0
                self.longest = max(self.longest, longest)
