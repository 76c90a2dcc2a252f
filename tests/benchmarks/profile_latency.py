"""
Where the time between a commit and the start of its job goes, in microseconds (P4, spaced).

    python -m tests.benchmarks.profile_latency [--jobs N] [--json]

One idle worker process; stations in it write down when they are passed (`project/stages.py`, a system call each, so the
whole is some ten microseconds slower than without). The steps of one job are consecutive, their medians need not add up.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final
from unittest import mock

from tests.benchmarks.bench import Bench
from tests.benchmarks.counters import Counters
from tests.benchmarks.server import Server
from tests.benchmarks.systems import OURS, Worker

STEPS: Final = (
    ("commit to returned", "the rest of enqueue(): announcing the level, and NOTIFY with its commit"),
    ("commit to heard", "until the listener has the note: NOTIFY, its commit, the signal to the session, a wake-up"),
    ("heard to woken", "the consumer's thread wakes"),
    ("woken to asked", "notes are read, what is due is moved, buffers are looked at"),
    ("asked to claimed", "the claim: one statement there and back"),
    ("claimed to taken", "held and reported, a thread of the pool wakes"),
    ("taken to started", "prepared: decoded, its result made, Django's signal sent"),
    ("commit to started", "in all"),
)


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--jobs", type=int, default=400)
    made.add_argument("--json", action="store_true", help="end with one line of JSON")
    asked = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgbus-bench-") as folder:
        server = Server.open()
        bench = Bench(
            name="profile",
            server=server,
            counters=Counters(Path(folder) / "run"),
            runs=1,
            jobs=asked.jobs,
            rows=0,
            seconds=None,
            peers=(),
        )
        try:
            found = measure(bench, asked.jobs)
        finally:
            server.close()
    tell(found)
    if asked.json:
        print(json.dumps(found))


def measure(bench: Bench, jobs: int) -> list[dict[str, Any]]:
    """Return median and 99th percentile of each step in microseconds, in the order in which they are taken."""
    counters = bench.counters
    with mock.patch.dict(os.environ, BENCH_STAGES="1"), bench.server.fresh("pgbus", bench.install_ours) as database:
        counters.clear()
        database.settle()
        with Worker(OURS, counters, database):
            time.sleep(3.0)
            OURS.run(counters, database, "latency", 40, 0.02, 0.08)
            time.sleep(2.0)
            for file in (*counters.folder.glob("*.stamps"), *counters.folder.glob("*.stages")):
                file.write_bytes(b"")
            sent = OURS.run(counters, database, "latency", jobs, 0.02, 0.08)["rows"]
            time.sleep(1.0)
        found = steps(counters, sent)
    return [
        {"step": name, "meaning": meaning, "p50": statistics.median(took), "p99": took[len(took) * 99 // 100]}
        for name, meaning in STEPS
        if (took := sorted(found[name]))
    ]


def steps(counters: Counters, sent: list[tuple[int, float, float, float]]) -> dict[str, list[float]]:
    """Return the microseconds that each step took, for each job."""
    passed: dict[str, dict[int, float]] = defaultdict(dict)
    unnamed: dict[str, list[float]] = {"heard": [], "woken": []}
    for file in counters.folder.glob("*.stages"):
        for line in file.read_text().splitlines():
            station, seconds, number = line.split()
            if station in unnamed:
                unnamed[station].append(float(seconds))
            else:
                passed[station].setdefault(int(number), float(seconds))
    starts = {number: found[0] for number, found in counters.stamps().items()}
    found: dict[str, list[float]] = defaultdict(list)
    for times in unnamed.values():
        times.sort()
    for number, _, committed, returned in sent:
        at = {"commit": committed, "returned": returned, "started": starts.get(number)}
        at |= {station: times.get(number) for station, times in passed.items()}
        # Jobs are far apart: the first that was heard after the commit, and woken after that, is this one.
        at["heard"] = _next(unnamed["heard"], committed)
        at["woken"] = _next(unnamed["woken"], at["heard"])
        for name, _ in STEPS:
            before, after = (at.get(station) for station in name.split(" to "))
            if before is not None and after is not None:
                found[name].append((after - before) * 1e6)
    return found


def _next(times: list[float], after: float | None) -> float | None:
    if after is None or (place := bisect.bisect_left(times, after)) == len(times):
        return None
    return times[place]


def tell(found: list[dict[str, Any]]) -> None:
    """Print it for people."""
    print(f"{'us':>10}  {'p99':>8}  step")
    for one in found:
        print(f"{one['p50']:10.0f}  {one['p99']:8.0f}  {one['step']:<20} {one['meaning']}")


if __name__ == "__main__":
    main()
