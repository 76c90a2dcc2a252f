"""
Storm: 5,000 jobs over 50 limited keys (1 to 4 at once) and 500 uniqueness keys, four processes, kill -9 each second.

Each seventh kill takes a whole worker with its supervisor, whose leases then have to lapse (they are 4 s long); after the
fifth PostgreSQL is restarted without a checkpoint. What is counted is seen from outside: see `tests/storm/books.py`. The
server is one of this benchmark's own; what it uses counts among `others_used` here.

    over_the_limit   moments at which more runs of a key were fenced in than allowed
    together         moments at which two runs, or two jobs, had one uniqueness key
    lost, unsettled  jobs that are nowhere, or had not ended three minutes after the last kill
    held             slots and keys that were still held when everything had ended
    unbalanced       batches whose members were not those that they counted, at one of the looks between the kills;
                     or that did not end, or not call back exactly once
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from tests.benchmarks import machine
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import rounded
from tests.benchmarks.report import Goal, Report
from tests.benchmarks.systems import OURS

JOBS = 5_000
KILLS = 60
RESTART = 5
MODULE = "tests.benchmarks.project.storming"


def run(bench: Bench) -> Report:
    jobs, kills = bench.jobs or JOBS, int(bench.seconds or KILLS)
    runs: list[dict[str, Any]] = []
    checks: Counter[str] = Counter()
    loads = []
    for number in bench.each_run():
        loads.append(machine.load())
        database = bench.server.database("postgres")
        found = OURS.run(bench.counters, database, "storm", jobs, kills, RESTART, number + 1, module=MODULE)
        checks.update(found.pop("checks"))
        for sentence in found.pop("said"):
            print(sentence, file=sys.stderr)
        runs.append({name: rounded(value, 1) for name, value in found.items() if not isinstance(value, list)})
    return Report(
        bench=bench.name,
        settings=bench.settings(jobs=jobs, kills=kills, loads=loads),
        runs=runs,
        goals={"storm.limits_hold": Goal(checks["over_the_limit"] + checks["together"], 0, at_most=True)},
        checks=dict(checks)
        | {name: checks[name] for name in ("over_the_limit", "together", "lost", "unsettled", "held", "unbalanced")},
    )
