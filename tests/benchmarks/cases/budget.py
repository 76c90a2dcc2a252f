"""
Budget: where the microseconds of a job go, in a drain and between its commit and its start.

What `profile_drain.py` and `profile_latency.py` tell, once each. Processor time of the worker process and of its sessions
in PostgreSQL is read from /proc; the worker's share is divided by what py-spy sees, which slows the worker down: the shares
are right, the rate is not, and belongs beside no other. The steps of the latency are told by stations that write to a file
each, some ten microseconds a job; medians of steps need not add up to the median of the whole.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks import profile_drain, profile_latency
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import rounded
from tests.benchmarks.report import Report

JOBS = 100_000
SAMPLES = 400


def run(bench: Bench) -> Report:
    jobs = bench.jobs or JOBS
    samples = min(jobs, SAMPLES)
    runs: list[dict[str, Any]] = []
    for number in bench.each_run():
        drained = profile_drain.measure(bench, jobs, bench.counters.folder.with_name(f"stacks-{number}"))
        steps = profile_latency.measure(bench, samples)
        runs.append(
            {
                "drain_us": rounded(drained["us"], 1),
                "worker_us": rounded(drained["processor"]["worker"], 1),
                "postgres_us": rounded(sum(drained["processor"].values()) - drained["processor"]["worker"], 1),
                **{f"{step['step'].replace(' ', '_')}_us": rounded(step["p50"], 0) for step in steps},
                "drain": drained,
                "latency": steps,
            }
        )
    return Report(bench=bench.name, settings=bench.settings(jobs=jobs, samples=samples), runs=bench.in_calm(runs))
