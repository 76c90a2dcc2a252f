"""
P5, enqueue: through the product beside bare inserts into the same table.

One process, one connection, blocks that take turns. The bare insert is one statement through a Django cursor with
arguments encoded beforehand, and returns nothing; many is an unnest of a thousand. Ours validates and encodes the
arguments of every job, returns a `TaskResult` for each, sends Django's signal and wakes workers after the commit; the
wake-ups are part of what is measured. No worker runs.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import median_ratio, rounded
from tests.benchmarks.report import Goal, Report
from tests.benchmarks.systems import OURS

SECONDS = 2.0  # for each way and run
PROJECT = "tests.benchmarks.project"


def run(bench: Bench) -> Report:
    seconds = bench.seconds or SECONDS
    runs: list[dict[str, Any]] = []
    lost = 0
    for _ in bench.each_run():
        with bench.server.fresh("pgbus", bench.install_ours) as database:
            database.settle()
            found = OURS.run(bench.counters, database, "rates", seconds, module=f"{PROJECT}.enqueueing")
            lost += found.pop("sent") - database.value("SELECT count(*) FROM pgbus_messages")
            runs.append({name: rounded(value, 0) for name, value in found.items()})
    runs = bench.in_calm(runs)
    ratios = {
        "single_vs_bare": median_ratio(runs, "single", "bare"),
        "many_vs_bare": median_ratio(runs, "many", "bare_many"),
    }
    return Report(
        bench=bench.name,
        settings=bench.settings(seconds=seconds, rows_per_statement=1000),
        runs=runs,
        ratios=ratios,
        goals={"P5": Goal(ratios["single_vs_bare"], 0.85), "P5.many": Goal(ratios["many_vs_bare"], 0.7)},
        checks={"lost": lost},
    )
