"""
P2, depth: the drain with a million jobs waiting, a million delayed, a million finished, beside an empty database.

The rows are made by SQL once and copied for each run. All four drains are measured alike: the rate of starts up to the
nth, by one worker process, on jobs that were made in the same way.

PgQueuer and Oban, the fastest of the peers that have their jobs in PostgreSQL, do the same with half of their share of the
jobs, on copies of a job of their own (`cloning.py`), in the first three runs; who needs more than 15 s is measured by what
it has started by then. It is their rate beside their own empty database that tells: the rates themselves are those of
`jobs`. Not here: Procrastinate and django-tasks-db, for want of time, refskip, which is no product, and Celery, whose jobs
are in Redis, where a waiting list is popped from its end however long it is.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.bench import SOME, Bench
from tests.benchmarks.books import Books
from tests.benchmarks.cloning import copies
from tests.benchmarks.drains import watch
from tests.benchmarks.figures import median_ratio, rounded
from tests.benchmarks.goals import reached
from tests.benchmarks.project.seeding import ARCHIVED, DELAYED, PENDING, seeds
from tests.benchmarks.report import Report
from tests.benchmarks.systems import OURS, System, Worker

JOBS = 50_000
LONGEST = 15.0  # seconds for the drain of a peer
PEERS = ("pgqueuer", "oban")
STATES = ("pending", "delayed", "archived")


def run(bench: Bench) -> Report:
    jobs = bench.jobs or JOBS
    install = bench.install_ours
    variants = {
        "empty": seeds(install, (PENDING, jobs)),
        "pending": seeds(install, (PENDING, jobs + bench.rows)),
        "delayed": seeds(install, (DELAYED, bench.rows), (PENDING, jobs)),
        "archived": seeds(install, (ARCHIVED, bench.rows), (PENDING, jobs)),
    }
    peers = [system for system in bench.beside() if system.name in PEERS]
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
        for system in peers if bench.early else ():
            with bench.sparing(system):
                found |= of_peer(bench, system, max(100, int(jobs * system.share / 2)))
        runs.append(found)
    runs = bench.in_calm(runs)
    ratios = {f"{state}_vs_empty": median_ratio(runs, state, "empty") for state in STATES}
    beside = {
        f"{system.name}_{state}_vs_empty": median_ratio(runs, f"{system.name}_{state}", f"{system.name}_empty")
        for system in peers
        for state in STATES
    }
    return Report(
        bench=bench.name,
        settings=bench.settings(jobs=jobs, rows=bench.rows, runs_of_peers=min(SOME, bench.runs)),
        runs=runs,
        ratios=ratios | beside,
        goals=reached("depth", **{f"P2__{state}": ratios[f"{state}_vs_empty"] for state in STATES}),
        checks=checks,
    )


def of_peer(bench: Bench, system: System, jobs: int) -> dict[str, Any]:
    """Drain beside rows in each state, and beside none."""
    found: dict[str, Any] = {}
    for state in ("empty", *STATES):
        fill = copies(bench, system, jobs, bench.rows, state)
        with bench.server.fresh(f"{system.name}_{state}", fill) as database:
            database.settle()
            bench.counters.clear()
            with Worker(system, bench.counters, database) as worker:
                timeline = watch(worker, bench.counters, lambda s, count: count >= jobs or s >= LONGEST)
            found[f"{system.name}_{state}"] = rounded(timeline.rate(jobs), 0)
    return found
