"""
Run a benchmark and print what it found.

    python tests/benchmarks/run.py BENCH [--json] [--runs 5]

BENCH is jobs, enqueue, latency, depth, snapshot, idle, commits, burst, hotkey, batch, events, streams, storm, or all of
them.

A small table for people; with `--json` one JSON object as the last line. README.md says how to read it.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
from pathlib import Path

sys.path.pop(0)  # this folder, whose names are common words
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import machine
from tests.benchmarks.bench import Bench
from tests.benchmarks.counters import Counters
from tests.benchmarks.report import Report, together
from tests.benchmarks.server import Server
from tests.benchmarks.systems import PEERS, peer

BENCHES = (
    "jobs",
    "enqueue",
    "latency",
    "depth",
    "snapshot",
    "idle",
    "commits",
    "burst",
    "hotkey",
    "batch",
    "events",
    "streams",
    "storm",
)
BUSY = 1.0


def main(arguments: list[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    peers = tuple(asked.peers.split(",")) if asked.peers else ()
    if unknown := set(peers) - PEERS.keys():
        raise SystemExit(f"No such peer: {', '.join(sorted(unknown))}. Known are {', '.join(PEERS)}.")
    if missing := [name for name in peers if peer(name) is None]:
        print(f"Not beside us, for want of a venv in BENCH_PEERS: {', '.join(missing)}.", file=sys.stderr)
    if (load := machine.load()) >= BUSY:
        print(f"The load is {load} before anything has begun: do not quote these figures.", file=sys.stderr)
    reports = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and databases do not stay behind
    with tempfile.TemporaryDirectory(prefix="pgbus-bench-") as folder:
        server = Server.open()
        try:
            for name in BENCHES if asked.bench == "all" else (asked.bench,):
                bench = Bench(
                    name=name,
                    server=server,
                    counters=Counters(Path(folder) / "run"),
                    runs=asked.runs,
                    jobs=asked.jobs,
                    rows=asked.rows,
                    seconds=asked.seconds,
                    peers=peers,
                    calm=asked.calm,
                )
                report: Report = importlib.import_module(f"tests.benchmarks.cases.{name}").run(bench)
                print(report.as_table(), end="\n\n", flush=True)
                reports.append(report)
        finally:
            server.close()
    if asked.json:
        print(reports[0].as_json() if asked.bench != "all" else together(reports))
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("bench", choices=(*BENCHES, "all"))
    made.add_argument("--json", action="store_true", help="end with one line of JSON")
    made.add_argument("--runs", type=int, default=5, help="runs, of which the medians are told")
    made.add_argument("--jobs", type=int, help="jobs of a run (latency: samples)")
    made.add_argument("--rows", type=int, default=1_000_000, help="rows that are there already (depth, snapshot)")
    made.add_argument("--seconds", type=float, help="length of a run or block, where there is one")
    made.add_argument(
        "--calm",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="wait so long before each run until nobody else works, and count only runs during which nobody did",
    )
    made.add_argument("--peers", default="pgqueuer,refskip", help=f"beside us: {', '.join(PEERS)}")
    return made


if __name__ == "__main__":
    sys.exit(main())
