"""
P7, hotkey: eight connections that enqueue limited tasks of one key inside 20 ms transactions, beside unlimited ones.

    plain, hot         commits a second of the eight, without a limit and for one key (4 at once); no worker runs
    plain_working ...  the same while two processes run the jobs
    other_...          a ninth client with a limited key of its own, in autocommit, five milliseconds between calls

Then a hundred thousand tasks are parked behind one key, beside a hundred behind another: how long an enqueue, a promotion
and `discard_parked` take. The rest of the parked rows is a copy of one, made by SQL.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import median_ratio, rounded
from tests.benchmarks.goals import reached
from tests.benchmarks.report import Report
from tests.benchmarks.server import Database
from tests.benchmarks.systems import OURS, Worker

CLIENTS = 8
SECONDS = 4.0  # of a block
WORKERS = 2
PARKED = 100_000
MODULE = "tests.benchmarks.project.hotkey"
ALL = """
    SELECT (SELECT count(*) FROM pgbus_messages) + (SELECT count(*) FROM pgbus_archive)
         + (SELECT count(*) FROM pgbus_blocked_executions)
"""


def run(bench: Bench) -> Report:
    seconds, rows = bench.seconds or SECONDS, bench.jobs or PARKED
    runs: list[dict[str, Any]] = []
    lost = wrong = 0
    for number in bench.each_run():
        found: dict[str, Any] = {}
        names = ("plain", "hot") if number % 2 else ("hot", "plain")
        for queues, suffix in ((None, ""), ("*", "_working")):
            with bench.server.fresh("pgbus", bench.install_ours) as database:
                lost += blocks(bench, database, queues, names, suffix, seconds, found)
        with bench.server.fresh("pgbus", bench.install_ours) as database:
            deep = OURS.run(bench.counters, database, "parked", rows, module=MODULE)
        wrong += deep.pop("wrong")
        runs.append(found | {name: rounded(value, 2) for name, value in deep.items()})
    runs = bench.in_calm(runs)
    ratios = {
        "hot_vs_plain": median_ratio(runs, "hot", "plain"),
        "hot_vs_plain_working": median_ratio(runs, "hot_working", "plain_working"),
        "other_vs_plain": median_ratio(runs, "other_hot", "other_plain"),
        "other_vs_plain_working": median_ratio(runs, "other_hot_working", "other_plain_working"),
        "enqueue_deep_vs_shallow": median_ratio(runs, "enqueue_deep_ms", "enqueue_shallow_ms"),
        "promotion_deep_vs_shallow": median_ratio(runs, "promotion_deep_ms", "promotion_shallow_ms"),
    }
    return Report(
        bench=bench.name,
        settings=bench.settings(clients=CLIENTS, workers=WORKERS, seconds=seconds, parked=rows),
        runs=runs,
        ratios=ratios,
        goals=reached("hotkey", P7=ratios["hot_vs_plain"], P7__other=ratios["other_vs_plain"]),
        checks={"lost": lost, "wrong": wrong},
    )


def blocks(
    bench: Bench,
    database: Database,
    queues: str | None,
    names: tuple[str, ...],
    suffix: str,
    seconds: float,
    found: dict[str, Any],
) -> int:
    """Let the clients enqueue in one way, the other, and back; return how many jobs are gone."""
    database.settle()
    bench.counters.clear()
    blocks: dict[str, list[dict[str, float]]] = {name: [] for name in names}

    def each(worker: Worker | None) -> None:
        for name in (*names, *reversed(names)):
            if worker:
                worker.check()
            hot = int(name == "hot")
            blocks[name].append(OURS.run(bench.counters, database, "rates", CLIENTS, seconds, hot, module=MODULE))

    if queues is None:
        each(None)
    else:
        with Worker(OURS, bench.counters, database, "--queues", queues, "--processes", str(WORKERS)) as worker:
            each(worker)
    for name, made in blocks.items():
        for figure, prefix in (
            ("rate", ""),
            ("p99_ms", "p99_ms_"),
            ("other_rate", "other_"),
            ("other_p99_ms", "other_p99_ms_"),
        ):
            found[f"{prefix}{name}{suffix}"] = rounded(sum(one[figure] for one in made) / len(made), 1)
    return int(sum(one["sent"] for made in blocks.values() for one in made)) - int(database.value(ALL))
