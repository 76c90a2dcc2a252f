"""
P2, depth: the drain with a million jobs waiting, a million delayed, a million finished, beside an empty database.

The rows are made by SQL once and copied for each run. All four drains are measured alike: the rate of starts up to the
nth, by one worker process, on jobs that were made in the same way.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.books import Books
from tests.benchmarks.drains import watch
from tests.benchmarks.figures import median_ratio, rounded
from tests.benchmarks.project.seeding import ARCHIVED, DELAYED, PENDING, seeds
from tests.benchmarks.report import Goal, Report
from tests.benchmarks.systems import OURS, Worker

JOBS = 50_000


def run(bench: Bench) -> Report:
    jobs = bench.jobs or JOBS
    install = bench.install_ours
    variants = {
        "empty": seeds(install, (PENDING, jobs)),
        "pending": seeds(install, (PENDING, jobs + bench.rows)),
        "delayed": seeds(install, (DELAYED, bench.rows), (PENDING, jobs)),
        "archived": seeds(install, (ARCHIVED, bench.rows), (PENDING, jobs)),
    }
    runs: list[dict[str, Any]] = []
    checks = {"lost": 0, "doubled": 0}
    for number in bench.each_run():
        turn = number % len(variants)
        order = [*variants][turn:] + [*variants][:turn]
        found: dict[str, Any] = {}
        for variant in order:
            with bench.server.fresh(f"pgbus_{variant}", variants[variant]) as database:
                database.settle()
                books = Books(database)
                bench.counters.clear()
                with Worker(OURS, bench.counters, database) as worker:
                    timeline = watch(worker, bench.counters, lambda _, count: count >= jobs)
                books.close(bench.counters, checks)
                found[variant] = rounded(timeline.rate(jobs), 0)
        runs.append(found)
    runs = bench.in_calm(runs)
    ratios = {f"{v}_vs_empty": median_ratio(runs, v, "empty") for v in ("pending", "delayed", "archived")}
    return Report(
        bench=bench.name,
        settings=bench.settings(jobs=jobs, rows=bench.rows),
        runs=runs,
        ratios=ratios,
        goals={f"P2.{name.partition('_')[0]}": Goal(ratio, 0.9) for name, ratio in ratios.items()},
        checks=checks,
    )
