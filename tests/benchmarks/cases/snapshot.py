"""
P3, snapshot: the drain while a transaction of somebody else's keeps a snapshot open for the whole run.

    free       nobody holds one
    held       a report or pg_dump: repeatable read, has written nothing
    written    a transaction left idle that has also written, and so holds a transaction id

The line was filled before. Dead rows cannot be removed while the snapshot is held, so what matters is whether the rate
falls from window to window; the last whole window is compared with the first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.books import Books
from tests.benchmarks.drains import watch
from tests.benchmarks.figures import median_ratio, medians, rounded
from tests.benchmarks.project.seeding import PENDING, seeds
from tests.benchmarks.report import Goal, Report
from tests.benchmarks.server import Database
from tests.benchmarks.systems import OURS, Worker

SECONDS = 24.0
WINDOWS = 6
VARIANTS = ("free", "held", "written")


def run(bench: Bench) -> Report:
    seconds = bench.seconds or SECONDS
    runs: list[dict[str, Any]] = []
    checks = {"lost": 0, "doubled": 0}
    for number in bench.each_run():
        turn = number % len(VARIANTS)
        found: dict[str, Any] = {}
        for variant in VARIANTS[turn:] + VARIANTS[:turn]:
            with bench.server.fresh("pgbus_line", seeds(bench.install_ours, (PENDING, bench.rows))) as database:
                found |= one(bench, database, variant, seconds, checks)
        runs.append(found)
    runs = bench.in_calm(runs)
    middle = medians(runs)
    ratios = {
        "held_vs_free": median_ratio(runs, "held", "free"),
        "written_vs_free": median_ratio(runs, "written", "free"),
        **{f"{v}_last_vs_first": rounded(middle.get(f"{v}_last_vs_first"), 3) for v in VARIANTS},
    }
    return Report(
        bench=bench.name,
        settings=bench.settings(seconds=seconds, windows=WINDOWS, rows=bench.rows),
        runs=runs,
        ratios=ratios,
        goals={"P3": Goal(ratios["held_vs_free"], 0.8), "P3.flat": Goal(ratios["held_last_vs_first"], 0.8)},
        checks=checks,
    )


def one(bench: Bench, database: Database, variant: str, seconds: float, checks: dict[str, int]) -> dict[str, Any]:
    """Drain for a while, beside a snapshot or without."""
    database.settle()
    books = Books(database)
    bench.counters.clear()
    with snapshot(database, variant), Worker(OURS, bench.counters, database) as worker:
        timeline = watch(worker, bench.counters, lambda s, count: s >= seconds or count >= bench.rows)
    books.close(bench.counters, checks)
    windows = [rounded(rate, 0) for rate in timeline.windows(seconds / WINDOWS)]
    return {
        variant: rounded(timeline.rate(timeline.count), 0),
        f"{variant}_windows": windows,
        f"{variant}_last_vs_first": rounded(windows[-1] / windows[0], 3) if windows and windows[0] else None,
    }


@contextlib.contextmanager
def snapshot(database: Database, variant: str) -> Iterator[None]:
    """Hold a snapshot for the length of a block, if the variant says so."""
    with database.connect() as connection:
        if variant != "free":
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT count(*) FROM pgbus_queue_states")
        if variant == "written":
            connection.execute("SELECT pg_current_xact_id()")
        yield
