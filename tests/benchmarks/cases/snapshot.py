"""
P3, snapshot: the drain while a transaction of somebody else's keeps a snapshot open for the whole run.

    free       nobody holds one
    held       a report or pg_dump: repeatable read, has written nothing
    written    a transaction left idle that has also written, and so holds a transaction id

The line was filled before. Dead rows cannot be removed while the snapshot is held, so what matters is whether the rate
falls from window to window; the last whole window is compared with the first.

PgQueuer, Oban and Procrastinate do the same on copies of a job of their own (`cloning.py`), in the first three runs, without
the third variant, and a third as long where nobody holds a snapshot. Who settles more rows in a window leaves more dead ones
behind: that a slow queue stays flat for 24 s says little about an hour. Not here: django-tasks-db, which settles too few in
that time, refskip, which is no product, and Celery, since Redis has no snapshots. The third variant is measured in the first
three runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.benchmarks.bench import SOME, Bench
from tests.benchmarks.books import Books
from tests.benchmarks.cloning import COPIES, copies
from tests.benchmarks.drains import Timeline, watch
from tests.benchmarks.figures import median_ratio, medians, rounded
from tests.benchmarks.goals import reached
from tests.benchmarks.project.seeding import PENDING, seeds
from tests.benchmarks.report import Report
from tests.benchmarks.server import Database
from tests.benchmarks.systems import OURS, System, Worker

SECONDS = 24.0
WINDOWS = 6
MOST = 0.4  # of the rows, for a peer: more than it drains meanwhile
VARIANTS = ("free", "held", "written")


def run(bench: Bench) -> Report:
    seconds = bench.seconds or SECONDS
    peers = [system for system in bench.beside() if system.name in COPIES]
    runs: list[dict[str, Any]] = []
    checks = {"lost": 0, "doubled": 0}
    for number in bench.each_run():
        turn = number % len(VARIANTS)
        found: dict[str, Any] = {}
        for variant in VARIANTS[turn:] + VARIANTS[:turn]:
            if variant == "written" and not bench.early:
                continue
            with bench.server.fresh("pgbus_line", seeds(bench.install_ours, (PENDING, bench.rows))) as database:
                found |= one(bench, database, variant, seconds, checks)
        for system in peers if bench.early else ():
            with bench.sparing(system):
                found |= of_peer(bench, system, seconds)
        runs.append(found)
    runs = bench.in_calm(runs)
    middle = medians(runs)
    ratios = {
        "held_vs_free": median_ratio(runs, "held", "free"),
        "written_vs_free": median_ratio(runs, "written", "free"),
        **{f"{v}_last_vs_first": rounded(middle.get(f"{v}_last_vs_first"), 3) for v in VARIANTS},
        **{
            f"{system.name}_held_vs_free": median_ratio(runs, f"{system.name}_held", f"{system.name}_free")
            for system in peers
        },
    }
    return Report(
        bench=bench.name,
        settings=bench.settings(seconds=seconds, windows=WINDOWS, rows=bench.rows, runs_of_peers=min(SOME, bench.runs)),
        runs=runs,
        ratios=ratios,
        goals=reached("snapshot", P3=ratios["held_vs_free"], P3__flat=ratios["held_last_vs_first"]),
        checks=checks,
    )


def one(bench: Bench, database: Database, variant: str, seconds: float, checks: dict[str, int]) -> dict[str, Any]:
    """Drain for a while, beside a snapshot or without."""
    database.settle()
    books = Books(database)
    bench.counters.clear()
    with snapshot(database, variant), Worker(OURS, bench.counters, database) as worker:
        timeline = watch(worker, bench.counters, partial(_over, seconds, bench.rows))
    books.close(bench.counters, checks)
    return figures(variant, timeline, seconds)


def of_peer(bench: Bench, system: System, seconds: float) -> dict[str, Any]:
    """Drain for a while without a snapshot, then beside one."""
    found: dict[str, Any] = {}
    rows = max(100, int(bench.rows * min(system.share, MOST)))
    for variant, length in (("free", seconds / 3), ("held", seconds)):
        with bench.server.fresh(f"{system.name}_line", copies(bench, system, rows)) as database:
            database.settle()
            bench.counters.clear()
            over = partial(_over, length, rows)
            with snapshot(database, variant), Worker(system, bench.counters, database) as worker:
                timeline = watch(worker, bench.counters, over)
            found |= figures(f"{system.name}_{variant}", timeline, seconds)
    return found


def _over(longest: float, most: int, seconds: float, count: int) -> bool:
    return seconds >= longest or count >= most


def figures(name: str, timeline: Timeline, seconds: float) -> dict[str, Any]:
    """Return the rate over all of it, and window by window."""
    windows = [rounded(rate, 0) for rate in timeline.windows(seconds / WINDOWS)]
    return {
        name: rounded(timeline.rate(timeline.count), 0),
        f"{name}_windows": windows,
        f"{name}_last_vs_first": rounded(windows[-1] / windows[0], 3) if windows and windows[0] else None,
    }


@contextlib.contextmanager
def snapshot(database: Database, variant: str) -> Iterator[None]:
    """Hold a snapshot for the length of a block, if the variant says so."""
    with database.connect() as connection:
        if variant != "free":
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT count(*) FROM pg_class")
        if variant == "written":
            connection.execute("SELECT pg_current_xact_id()")
        yield
