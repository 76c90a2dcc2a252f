"""
Batch: draining the members of one batch beside the same jobs without one.

No-op tasks, one worker process, as P1 measures them; both fills are made by the thousand. The two take turns within each
run, each in a database of its own. A batch must not make the workers wait for each other: the goal is 0.8.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.drains import drain
from tests.benchmarks.figures import median_ratio, rounded
from tests.benchmarks.report import Goal, Report
from tests.benchmarks.systems import OURS

JOBS = 50_000
SENT = {"plain": "send_many", "batch": "send_batch"}


def run(bench: Bench) -> Report:
    jobs = bench.jobs or JOBS
    runs: list[dict[str, Any]] = []
    checks = {"lost": 0, "doubled": 0, "unfinished": 0}
    for number in bench.each_run():
        found: dict[str, Any] = {}
        for name in sorted(SENT, reverse=bool(number % 2)):
            with bench.server.fresh(f"pgbus_{name}", bench.install_ours) as database:
                bench.counters.clear()
                filled = OURS.run(bench.counters, database, SENT[name], jobs)
                database.settle()
                drained = drain(OURS, bench.counters, database, jobs)
                found |= {
                    name: rounded(drained.rate, 0),
                    f"{name}_fill": rounded(jobs / filled, 0),
                    f"{name}_worker_us": rounded(drained.worker_us, 1),
                }
                checks["lost"] += max(0, jobs - drained.started)
                checks["doubled"] += max(0, drained.started - jobs)
                if name == "batch":
                    counted = database.value("SELECT sum(succeeded) FROM pgbus_batches WHERE finished_at IS NOT NULL")
                    checks["unfinished"] += counted != jobs
        runs.append(found)
    runs = bench.in_calm(runs)
    ratios = {
        "batch_vs_plain": median_ratio(runs, "batch", "plain"),
        "batch_fill_vs_plain_fill": median_ratio(runs, "batch_fill", "plain_fill"),
    }
    return Report(
        bench=bench.name,
        settings=bench.settings(jobs=jobs),
        runs=runs,
        ratios=ratios,
        goals={"batch": Goal(ratios["batch_vs_plain"], 0.8)},
        checks=checks,
    )
