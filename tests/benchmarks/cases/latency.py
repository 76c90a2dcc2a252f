"""
P4, latency: one idle worker process, from the commit to the start of the job, by one clock.

    spaced         a job now and then, so that the worker sleeps: 20 to 80 ms apart
    back to back   one after the other without a pause
    delayed        how late tasks start that were sent with `run_after`
    unheard        jobs whose NOTIFY is lost; only the poll finds them

The commit is the moment when the reply to the INSERT arrived; the wake-up goes out after it, within the same call.
Peers are timed from the call, since their commit is not to be seen from outside; `call` is ours in the same way. They send
a third as many, spaced ones only: their medians are comparable, their 99th percentiles are of few samples. PgQueuer, Oban,
Procrastinate and refskip listen for notifications, Celery waits in a blocking read of Redis; django-tasks-db polls once a
second, by its default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import median_ratio, medians, milliseconds
from tests.benchmarks.goals import reached
from tests.benchmarks.report import Report
from tests.benchmarks.server import Store
from tests.benchmarks.systems import OURS, System, Worker

SAMPLES = 300
DELAYED = 60
UNHEARD = 15
WARM_UP = 3.0  # seconds
LONGEST = 30.0  # seconds to wait for the last start
GOALS = {
    "P4__spaced_p50": "spaced_p50_ms",
    "P4__spaced_p99": "spaced_p99_ms",
    "P4__back_to_back_p50": "back_to_back_p50_ms",
    "P4__back_to_back_p99": "back_to_back_p99_ms",
    "P4__delayed": "delayed_max_ms",
    "P4__unheard": "unheard_max_ms",
}


def run(bench: Bench) -> Report:
    samples = bench.jobs or SAMPLES
    systems = bench.systems()
    runs: list[dict[str, Any]] = []
    checks = {"lost": 0, "doubled": 0}
    for _ in bench.each_run():
        found: dict[str, Any] = {}
        for system in systems:
            with bench.sparing(system), bench.fresh(system) as store:
                found |= one(bench, system, store, samples if system is OURS else max(20, samples // 3), checks)
        runs.append(found)
    runs = bench.in_calm(runs)
    middle = medians(runs)
    return Report(
        bench=bench.name,
        settings=bench.settings(samples=samples, delayed=DELAYED, unheard=UNHEARD),
        runs=runs,
        ratios={
            f"call_p50_vs_{name}": median_ratio(runs, "pgbus_call_p50_ms", f"{name}_call_p50_ms")
            for name in dict.fromkeys(["pgqueuer", "refskip", *bench.peers])
        },
        goals=reached("latency", **{name: middle.get(figure) for name, figure in GOALS.items()}),
        checks=checks,
    )


def one(bench: Bench, system: System, store: Store, samples: int, checks: dict[str, int]) -> dict[str, Any]:
    """Time one system."""
    bench.counters.clear()
    store.settle()
    with Worker(system, bench.counters, store) as worker:
        timed = Timed(bench, system, store, worker, checks)
        timed.warm_up()
        rows = timed.rows("latency", samples, 0.02, 0.08)
        found = milliseconds(f"{system.name}_call", timed.durations((number, called) for number, called, _, _ in rows))
        if system is OURS:
            found |= milliseconds("spaced", timed.durations((number, sent) for number, _, sent, _ in rows))
            found |= milliseconds("enqueue_call", [returned - called for _, called, _, returned in rows])
            rows = timed.rows("latency", samples * 3, 0.0, 0.0)
            found |= milliseconds("back_to_back", timed.durations((number, sent) for number, _, sent, _ in rows))
            rows = timed.rows("send_delayed", DELAYED, 1.5, 0.07)
            found |= milliseconds("delayed", timed.durations(rows))
            rows = timed.rows("send_unheard", UNHEARD, 0.6)
            found |= milliseconds("unheard", timed.durations(rows))
    return found


class Timed:
    """A worker, and the moments at which its jobs start."""

    def __init__(self, bench: Bench, system: System, store: Store, worker: Worker, checks: dict[str, int]) -> None:
        self._bench = bench
        self._worker = worker
        self._send: Callable[..., Any] = lambda *asked: system.run(bench.counters, store, *asked)
        self._checks = checks

    def warm_up(self) -> None:
        """Wait until jobs run and the start of the worker is behind it."""
        time.sleep(WARM_UP)
        self.durations((number, called) for number, called, _, _ in self.rows("latency", 20, 0.02, 0.08))
        time.sleep(WARM_UP)

    def rows(self, *asked: Any) -> list[Any]:
        """Send, having forgotten what was sent before, and return what was sent when."""
        for file in self._bench.counters.folder.glob("*.stamps"):
            file.write_bytes(b"")
        sent = self._send(*asked)
        return list(sent["rows"] if isinstance(sent, dict) else sent)

    def durations(self, sent: Iterable[tuple[int, float]]) -> list[float]:
        """Wait for the starts and return the seconds from each moment to its start; negative ones too."""
        rows = list(sent)
        deadline = time.monotonic() + LONGEST
        while time.monotonic() < deadline:
            self._worker.check()
            starts = self._bench.counters.stamps()
            if all(number in starts for number, _ in rows):
                break
            time.sleep(0.05)
        self._checks["lost"] += sum(number not in starts for number, _ in rows)
        self._checks["doubled"] += sum(len(starts.get(number, ())) > 1 for number, _ in rows)
        return [starts[number][0] - moment for number, moment in rows if number in starts]
