"""
P1, drain: no-op sync tasks through the whole product, one worker process, beside the peers.

What is measured: from the first start to the moment when nothing is left unsettled, of a queue that was filled before,
after VACUUM ANALYZE and a checkpoint. The systems take turns within each run, each in a database of its own; the order
rotates. A ratio is the median of the ratios within the runs.

What is fair and what is not: our tasks are sync functions on threads, with hygiene between them, Django's signals, a
result object, a stored result and the job kept in the archive. PgQueuer runs coroutines on uvloop and logs each job in
a table of its own; refskip calls a function and archives. Both get the batch that serves them best (100). Oban and
Procrastinate run coroutines too; django-tasks-db calls sync functions, one after the other. Celery runs sync functions in
a process of its own beside the worker's, keeps its jobs in Redis, which syncs its file once a second, acknowledges a job
before it runs and stores no result. Who needs minutes for as many jobs gets fewer (`share` in `systems.py`). All carry the
same arguments and decode them. The peers run in the Python of their venv: see `versions`.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.drains import drain
from tests.benchmarks.figures import median_ratio, rounded
from tests.benchmarks.goals import reached
from tests.benchmarks.report import Report
from tests.benchmarks.systems import OURS, System

JOBS = 50_000


def run(bench: Bench) -> Report:
    jobs = bench.jobs or JOBS
    systems = bench.systems()
    runs: list[dict[str, Any]] = []
    lost = doubled = 0
    for number in bench.each_run():
        turn = number % len(systems)
        found: dict[str, Any] = {}
        for system in systems[turn:] + systems[:turn]:
            with bench.sparing(system):
                count = max(100, int(jobs * system.share))
                found |= one(bench, system, count)
                lost += max(0, count - found[f"{system.name}_started"])
                doubled += max(0, found[f"{system.name}_started"] - count)
        runs.append(found)
    runs = bench.in_calm(runs)
    ratios = {
        f"vs_{name}": median_ratio(runs, "pgbus", name)
        for name in dict.fromkeys(["pgqueuer", "refskip", *(s.name for s in systems if s is not OURS)])
    }
    return Report(
        bench=bench.name,
        settings=bench.settings(jobs=jobs, threads=10, concurrency={s.name: s.concurrency for s in systems[1:]}),
        runs=runs,
        ratios=ratios,
        goals=reached("jobs", P1=ratios["vs_pgqueuer"], P1__refskip=ratios["vs_refskip"]),
        checks={"lost": lost, "doubled": doubled},
    )


def one(bench: Bench, system: System, jobs: int) -> dict[str, Any]:
    """Fill a fresh store, empty it, and return what that came to."""
    with bench.fresh(system) as store:
        bench.counters.clear()
        filled = system.run(bench.counters, store, "send_many", jobs)
        store.settle()
        drained = drain(system, bench.counters, store, jobs)
    return {
        system.name: rounded(drained.rate, 0),
        f"{system.name}_fill": rounded(jobs / filled, 0),
        f"{system.name}_worker_us": rounded(drained.worker_us, 1),
        f"{system.name}_started": drained.started,
    }
