"""
Events: publishing to many handlers, routing among many subscriptions, draining what was published.

    publish_N           events a second to N handlers that match, each with a commit of its own; one statement each
    publish_many        events a second by the five hundred, to one handler
    route_KIND          the same in one transaction, to one of ten thousand subscriptions: of exact topics, of
                        patterns that all begin with a wildcard, that begin alike and end with a wildcard, that do both
    tasks, plain, once  a worker that drains no-op tasks, copies for a plain handler, copies for an idempotent one

What is drained takes turns within each run, each in a database of its own. No worker runs while events are published.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.drains import drain
from tests.benchmarks.figures import median_ratio, rounded
from tests.benchmarks.report import Report
from tests.benchmarks.systems import OURS

JOBS = 20_000
SECONDS = 2.0  # for each way and run
MODULE = "tests.benchmarks.project.publishing"
DRAINED = ("tasks", "plain", "once")


def run(bench: Bench) -> Report:
    jobs, seconds = bench.jobs or JOBS, bench.seconds or SECONDS
    runs: list[dict[str, Any]] = []
    checks = {"lost": 0, "doubled": 0, "more_than_one_statement": 0, "not_completed": 0}
    for number in bench.each_run():
        found: dict[str, Any] = {}
        for action in ("rates", "routing"):
            with bench.server.fresh("pgbus", bench.install_ours) as database:
                database.settle()
                figures = OURS.run(bench.counters, database, action, seconds, module=MODULE)
                checks["lost"] += figures.pop("lost")
                found |= {name: rounded(value, 0) for name, value in figures.items()}
        checks["more_than_one_statement"] += sum(found.pop(f"statements_{n}") != 1 for n in (1, 10, 100))
        for name in sorted(DRAINED, reverse=bool(number % 2)):
            with bench.server.fresh("pgbus", bench.install_ours) as database:
                bench.counters.clear()
                if name == "tasks":
                    OURS.run(bench.counters, database, "send_many", jobs)
                else:
                    OURS.run(bench.counters, database, "fill", jobs, int(name == "once"), module=MODULE)
                database.settle()
                drained = drain(OURS, bench.counters, database, jobs)
                found |= {name: rounded(drained.rate, 0), f"{name}_worker_us": rounded(drained.worker_us, 1)}
                checks["lost"] += max(0, jobs - drained.started)
                checks["doubled"] += max(0, drained.started - jobs)
                if name == "once":
                    completed = "SELECT count(*) FROM pgbus_processed_events WHERE completed_at IS NOT NULL"
                    checks["not_completed"] += jobs - database.value(completed)
        runs.append(found)
    runs = bench.in_calm(runs)
    return Report(
        bench=bench.name,
        settings=bench.settings(jobs=jobs, seconds=seconds, subscriptions=10_000),
        runs=runs,
        ratios={
            "plain_vs_tasks": median_ratio(runs, "plain", "tasks"),
            "once_vs_plain": median_ratio(runs, "once", "plain"),
            "both_ends_vs_exact": median_ratio(runs, "route_both_ends", "route_exact"),
            "shared_prefix_vs_exact": median_ratio(runs, "route_shared_prefix", "route_exact"),
            "leading_wildcard_vs_exact": median_ratio(runs, "route_leading_wildcard", "route_exact"),
            "exact_of_10000_vs_1": median_ratio(runs, "route_exact", "publish_1"),
        },
        checks=checks,
    )
