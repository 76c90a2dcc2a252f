"""
P5, enqueue: through the product beside bare inserts into the same table.

One process, one connection, blocks that take turns. The bare insert is one statement through a Django cursor with
arguments encoded beforehand, and returns nothing; many is an unnest of a thousand. Ours validates and encodes the
arguments of every job, returns a `TaskResult` for each, sends Django's signal and wakes workers after the commit; the
wake-ups are part of what is measured. No worker runs.

The peers send through their own calls, one job in one transaction, and by the thousand; the blocks of each follow one
another, each in a fresh database. django-tasks-db and Celery have no call that sends many, so they have no `many`. Celery
writes to Redis, which answers before the job is on a disk. PgQueuer, Oban and Procrastinate wake workers by a trigger or a
NOTIFY of the same transaction, which costs nothing yet with one client (P8 is about many).
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import median_ratio, rounded
from tests.benchmarks.goals import reached
from tests.benchmarks.report import Report
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
        for system in bench.beside():
            with bench.sparing(system), bench.fresh(system) as store:
                store.settle()
                sent = system.run(bench.counters, store, "peer_rates", seconds)
                with store.asking(system.pending) as pending:
                    lost += sent.pop("sent") - pending()
                found |= {f"{system.name}_{way}": value for way, value in sent.items() if value}
        runs.append({name: rounded(value, 0) for name, value in found.items()})
    runs = bench.in_calm(runs)
    ratios = {
        "single_vs_bare": median_ratio(runs, "single", "bare"),
        "many_vs_bare": median_ratio(runs, "many", "bare_many"),
        **{
            f"{way}_vs_{system.name}": median_ratio(runs, way, f"{system.name}_{way}")
            for way in ("single", "many")
            for system in bench.beside()
        },
    }
    return Report(
        bench=bench.name,
        settings=bench.settings(seconds=seconds, rows_per_statement=1000),
        runs=runs,
        ratios=ratios,
        goals=reached("enqueue", P5=ratios["single_vs_bare"], P5__many=ratios["many_vs_bare"]),
        checks={"lost": lost},
    )
