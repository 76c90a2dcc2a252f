"""
P8, commits: sixteen clients that enqueue, with workers listening, beside the same without any wake-up.

    wake       as it is: after the commit, coalesced
    silent     the same calls, but NOTIFY is never sent
    working    as `wake`, and the workers run the jobs (`working_silent`: they find them by polling)

The clients are processes with a connection each. In the first two the workers listen, hear every notification and serve
another queue: what is compared is the cost of waking alone. Blocks take turns within each run.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import median_ratio, rounded
from tests.benchmarks.goals import reached
from tests.benchmarks.report import Report
from tests.benchmarks.server import Database
from tests.benchmarks.systems import OURS, Worker

CLIENTS = 16
SECONDS = 5.0  # of a block
WORKERS = 2
CLIENT = "tests.benchmarks.project.clients"
ALL = "SELECT (SELECT count(*) FROM pgbus_messages) + (SELECT count(*) FROM pgbus_archive)"


def run(bench: Bench) -> Report:
    seconds = bench.seconds or SECONDS
    runs: list[dict[str, Any]] = []
    lost = 0
    for number in bench.each_run():
        found: dict[str, Any] = {}
        for queues, names in (("elsewhere", ("wake", "silent")), ("*", ("working", "working_silent"))):
            with bench.server.fresh("pgbus", bench.install_ours) as database:
                lost += blocks(bench, database, queues, names if number % 2 else names[::-1], seconds, found)
        runs.append(found)
    runs = bench.in_calm(runs)
    ratios = {
        "wake_vs_silent": median_ratio(runs, "wake", "silent"),
        "working_vs_silent": median_ratio(runs, "working", "working_silent"),
    }
    return Report(
        bench=bench.name,
        settings=bench.settings(clients=CLIENTS, workers=WORKERS, seconds=seconds),
        runs=runs,
        ratios=ratios,
        goals=reached("commits", P8=ratios["wake_vs_silent"]),
        checks={"lost": lost},
    )


def blocks(
    bench: Bench, database: Database, queues: str, names: tuple[str, ...], seconds: float, found: dict[str, Any]
) -> int:
    """Let the clients enqueue in one way, the other, and back; return how many jobs are gone."""
    database.settle()
    bench.counters.clear()
    rates: dict[str, list[float]] = {name: [] for name in names}
    sent = 0
    with Worker(OURS, bench.counters, database, "--queues", queues, "--processes", str(WORKERS)) as worker:
        for name in (*names, *reversed(names)):
            worker.check()
            wake = int(not name.endswith("silent"))
            block = OURS.run(bench.counters, database, "rate", CLIENTS, seconds, wake, module=CLIENT)
            rates[name].append(block["rate"])
            sent += block["sent"]
    found |= {name: rounded(sum(each) / len(each), 0) for name, each in rates.items()}
    return sent - int(database.value(ALL))
