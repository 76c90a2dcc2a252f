"""
Where the time of a drain goes, in microseconds a job.

    python -m tests.benchmarks.profile_drain [--jobs N] [--stacks FILE] [--json]

Processor time of the worker process and of each of its sessions in PostgreSQL is read from /proc, statements from
pg_stat_statements; py-spy, where it is installed, tells what the worker's share is spent on (it slows the worker down:
the shares are right, the rate is not). Every sample belongs to the first of `PARTS` that its stack fits. With `--json` the
last line is one object; `cases/budget.py` puts it into the report of all benchmarks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import machine
from tests.benchmarks.bench import Bench
from tests.benchmarks.counters import Counters
from tests.benchmarks.drains import watch
from tests.benchmarks.server import Database, Server
from tests.benchmarks.systems import OURS, Worker

# What a sample counts as: the first line all of whose texts stand in its stack.
PARTS: Final = (
    ("claim: statement", ("Line.claim", "statement.py")),
    ("claim: rows to deliveries", ("Line.claim",)),
    ("claim: poll, notes, moves", ("Consumer._poll",)),
    ("claim: poll, notes, moves", ("Consumer._read_notes",)),
    ("settle: statement", ("lifecycle.py", "Completer", "statement.py")),
    ("settle: preparing the statement", ("lifecycle.py", "Completer")),
    ("reports to the supervisor", ("Reporter",)),
    ("claim: the rest of the consumer", ("Consumer",)),
    ("settle: the rest of the completer", ("Completer.work",)),
    ("hygiene", ("hygiene.py",)),
    ("prepare: decode", ("payload.py:", "Executor.prepare")),
    ("prepare: task result", ("RunnableTask.open",)),
    ("prepare: the rest", ("Executor.prepare",)),
    ("run: signals", ("Signal.send_robust",)),
    ("run: the task", ("noop (",)),
    ("run: encode the result", ("encode_result",)),
    ("run: the rest", ("Run.sync",)),
    ("outcome: put, average, wake", ("Capsule._ended",)),
    ("the rest of a pool thread", ("ThreadPool._work",)),
    ("other loops", ("loop.py",)),
)
SESSIONS: Final = """
    SELECT pid, coalesce(nullif(application_name, ''), backend_type)
    FROM pg_stat_activity
    WHERE datname = %s AND pid <> pg_backend_pid()
"""
STATEMENTS: Final = """
    SELECT calls, total_exec_time * 1000, rows, left(regexp_replace(query, '\\s+', ' ', 'g'), 70)
    FROM pg_stat_statements
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = %s)
    ORDER BY total_exec_time DESC
    LIMIT 6
"""


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--jobs", type=int, default=100_000)
    made.add_argument("--stacks", help="keep what py-spy saw in this file")
    made.add_argument("--json", action="store_true", help="end with one line of JSON")
    asked = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgbus-bench-") as folder:
        server = Server.open()
        counters = Counters(Path(folder) / "run")
        bench = Bench(
            name="profile", server=server, counters=counters, runs=1, jobs=asked.jobs, rows=0, seconds=None, peers=()
        )
        try:
            found = measure(bench, asked.jobs, Path(asked.stacks or Path(folder) / "stacks"))
        finally:
            server.close()
    tell(found)
    if asked.json:
        print(json.dumps(found))


def measure(bench: Bench, jobs: int, stacks: Path) -> dict[str, Any]:
    """Return microseconds a job: of the processor, of each statement, and of each part of the worker's share."""
    with bench.server.fresh("pgbus", bench.install_ours) as database:
        OURS.run(bench.counters, database, "send_many", jobs)
        return _drain(bench, database, jobs, stacks)


def tell(found: dict[str, Any]) -> None:
    """Print it for people."""
    print(f"{found['jobs']:,} jobs: {found['rate']:,.0f} a second, {found['us']:.1f} us each")
    _tell("processor", found["processor"])
    for one in found["statements"]:
        print(f"{one['us']:10.1f} us  {one['calls']:7,} calls  {one['rows']:7.1f} rows  {one['query']}")
    if found["parts"]:
        _tell(f"the worker's {found['processor']['worker']:.1f} us", found["parts"])


def _drain(bench: Bench, database: Database, jobs: int, stacks: Path) -> dict[str, Any]:
    bench.counters.clear()
    database.settle()
    bench.server.admin.execute("SELECT pg_stat_statements_reset()")
    with Worker(OURS, bench.counters, database) as worker:
        watch(worker, bench.counters, lambda _, count: count > jobs // 20)
        child = max(machine.family(worker.pid), key=machine.resident)
        before, spy = _spent(bench, database, child), _spy(child, stacks)
        began, done = time.time(), bench.counters.starts().count
        watch(worker, bench.counters, lambda _, count: count >= jobs * 19 // 20)
        took, done = time.time() - began, bench.counters.starts().count - done
        after = _spent(bench, database, child)
        if spy is not None:
            spy.send_signal(signal.SIGINT)  # the only end after which it writes
            spy.wait()
    processor = {name: (after[name] - before.get(name, 0)) / done * 1e6 for name in after}
    shares = _shares(stacks.read_text().splitlines()) if spy is not None and stacks.exists() else Counter[str]()
    total = sum(shares.values())
    return {
        "jobs": done,
        "rate": done / took,
        "us": took / done * 1e6,
        "processor": processor,
        "statements": [
            {"us": spent / jobs, "calls": calls, "rows": rows / max(calls, 1), "query": query}
            for calls, spent, rows, query in bench.server.admin.execute(STATEMENTS, [database.name])
        ],
        "parts": {name: samples / total * processor["worker"] for name, samples in shares.items()},
    }


def _spent(bench: Bench, database: Database, child: int) -> dict[str, float]:
    """Return the processor seconds so far of the worker process and of each kind of session."""
    spent = defaultdict(float, {"worker": machine.processor_seconds(child)})
    for pid, name in bench.server.admin.execute(SESSIONS, [database.name]):
        spent[f"postgres: {name}"] += machine.processor_seconds(pid)
    return dict(spent)


def _spy(pid: int, stacks: Path) -> subprocess.Popen[bytes] | None:
    program = Path(sys.executable).with_name("py-spy")
    found = str(program) if program.exists() else shutil.which("py-spy")
    if found is None:
        return None
    command = [
        found,
        "record",
        "-p",
        str(pid),
        "-f",
        "raw",
        "-o",
        str(stacks),
        "--gil",
        "-r",
        "500",
        "-d",
        "600",
        "--full-filenames",
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _shares(lines: Iterable[str]) -> Counter[str]:
    shares: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        shares[_part(stack)] += int(count)
    return shares


def _part(stack: str) -> str:
    return next((name for name, texts in PARTS if all(text in stack for text in texts)), "unknown")


def _tell(title: str, figures: dict[str, Any]) -> None:
    print(f"\n{title}, us a job")
    for name, value in sorted(figures.items(), key=lambda item: -item[1]):
        if value >= 0.05:
            print(f"{value:10.1f}  {name}")


if __name__ == "__main__":
    main()
