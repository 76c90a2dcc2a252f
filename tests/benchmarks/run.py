"""
Run a benchmark and print what it found.

    python tests/benchmarks/run.py BENCH [--json [FILE]] [--html FILE] [--runs 5] [--peers NAMES]
    python tests/benchmarks/run.py all --json record.json --html report.html [--only NAMES | --resume]

BENCH is jobs, enqueue, latency, depth, snapshot, idle, commits, burst, hotkey, streams, batch, events, storm, budget, or
all of them.

A small table for people; with `--json` one JSON object as the last line, or the record of all of them in a file, which is
written after each, and added to with `--only`, `--resume` or a single BENCH. README.md says how to read it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.pop(0)  # this folder, whose names are common words
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import estimate, machine, systems
from tests.benchmarks.bench import Bench
from tests.benchmarks.counters import Counters
from tests.benchmarks.record import Record
from tests.benchmarks.redis import Redis
from tests.benchmarks.report import Report
from tests.benchmarks.server import Server

BENCHES: Final = tuple(estimate.TAKES)
BUSY: Final = 1.0


def main(arguments: list[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    peers = systems.names(asked.peers)
    place = Path(asked.json) if asked.json not in (None, "-") else None
    whole = asked.bench == "all"
    chosen = chosen_of(asked.only) if whole else (asked.bench,)
    record = Record.read(place) if place and (asked.only or asked.resume or not whole) else Record()
    if asked.resume:
        chosen = tuple(name for name in chosen if name not in record.parts or name in record.failed)
    here = [name for name in peers if systems.peer(name)]
    if missing := [name for name in peers if name not in here]:
        print(f"Not beside us, for want of a venv in BENCH_PEERS or of Redis: {', '.join(missing)}.", file=sys.stderr)
    if (load := machine.load()) >= BUSY:
        print(f"The load is {load} before anything has begun: do not quote these figures.", file=sys.stderr)
    if whole:
        print(estimate.told(chosen, asked.runs, len(here)), file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and databases do not stay behind
    failed = False
    with tempfile.TemporaryDirectory(prefix="pgbus-bench-", dir=os.environ.get("BENCH_FOLDER")) as folder:
        environment = machine.environment(Path(folder))
        server, redis = Server.open(), Redis()
        try:
            for name in chosen:
                bench = Bench(
                    name=name,
                    server=server,
                    redis=redis,
                    counters=Counters(Path(folder) / "run"),
                    runs=estimate.runs_of(name, asked.runs) if whole else asked.runs,
                    jobs=asked.jobs,
                    rows=asked.rows,
                    seconds=asked.seconds,
                    peers=peers,
                    calm=asked.calm,
                )
                began = time.monotonic()
                try:
                    report: Report = importlib.import_module(f"tests.benchmarks.cases.{name}").run(bench)
                except Exception as error:
                    if not whole:
                        raise
                    record.fail(name, error)
                    failed = True
                    print(f"\n{name} failed: {error}\n", file=sys.stderr, flush=True)
                else:
                    print(report.as_table(), end="\n\n", flush=True)
                    record.add(report.as_dict(), time.monotonic() - began, environment)
                if place:
                    record.write(place)
                if asked.html:
                    write_page(record, Path(asked.html))
        finally:
            server.close()
            redis.close()
    if asked.json == "-":
        print(json.dumps(record.as_dict()) if whole else report.as_json())
    for fault in record.faults:
        print(f"Fault: {fault}", file=sys.stderr)
    return int(failed or any(fault for fault in record.faults))


def chosen_of(only: str | None) -> tuple[str, ...]:
    """Return which benchmarks are asked for, in their order; raises for one that is not known."""
    wanted = [name for name in (only or "").split(",") if name] or BENCHES
    if unknown := set(wanted) - {*BENCHES}:
        raise SystemExit(f"No such benchmark: {', '.join(sorted(unknown))}. Known are {', '.join(BENCHES)}.")
    return tuple(name for name in BENCHES if name in wanted)


def write_page(record: Record, place: Path) -> None:
    """Write the report; what is measured already is worth more than its page."""
    from tests.benchmarks.page import html

    try:
        html.write(record, place)
    except Exception as error:
        print(f"{place} is not written: {error}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("bench", choices=(*BENCHES, "all"))
    made.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="end with one line of JSON, or write a record"
    )
    made.add_argument("--html", metavar="FILE", help="write a report with plots, after each benchmark")
    made.add_argument("--only", metavar="NAMES", help="of all, only these; what the record has of others stays")
    made.add_argument("--resume", action="store_true", help="of all, only what the record does not have")
    made.add_argument("--runs", type=int, default=5, help="runs, of which the medians are told")
    made.add_argument("--jobs", type=int, help="jobs of a run (latency: samples)")
    made.add_argument("--rows", type=int, default=1_000_000, help="rows that are there already (depth, snapshot)")
    made.add_argument("--seconds", type=float, help="length of a run or block, where there is one")
    made.add_argument(
        "--calm",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="wait so long before each run until nobody else works, and count only the runs during which nobody did",
    )
    known = ", ".join((*systems.PEERS, *systems.ALIASES))
    made.add_argument("--peers", default="pgqueuer", help=f"beside us and {systems.YARDSTICK}: {known}")
    return made


if __name__ == "__main__":
    sys.exit(main())
