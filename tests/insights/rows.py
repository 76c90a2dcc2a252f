"""Rows of runs that were counted, and what they add up to."""

from __future__ import annotations

from typing import Any

from django_pgbus.insights.histogram import BUCKETS, bucket
from django_pgbus.insights.recording import Tally, Verdict
from django_pgbus.queues.message import Delivery, Level
from tests.sessions import execute

NUMBERS = ("succeeded", "failed", "dead", "snoozed", "superseded", "handed_back")
SUMS = ", ".join(
    [
        *(f"sum({name})::bigint" for name in NUMBERS),
        # What is added up in another order may differ in the last digit of a float, but not in the sixth.
        "round(sum(run_seconds)::numeric, 6)",
        "round(sum(wait_seconds)::numeric, 6)",
        "max(longest)",
        *(f"sum({name}[{n}])::bigint" for name in ("run", "wait") for n in range(1, BUCKETS + 1)),
    ]
)


def a_row(
    ago: str = "0 seconds",
    resolution: str = "raw",
    *,
    task: str = "t",
    queue: str = "default",
    event: bool = False,
    run: float = 0.02,
    wait: float = 0.2,
    number: int = 1,
    **numbers: int,
) -> None:
    """Write a row as it was counted `ago`; `number` runs, which succeeded unless `numbers` say otherwise."""
    counts = {**dict.fromkeys(NUMBERS, 0), **(numbers or {"succeeded": number})}
    runs, waits = [0] * BUCKETS, [0] * BUCKETS
    runs[bucket(run)] = waits[bucket(wait)] = number
    execute(
        "INSERT INTO pgbus_run_counts (resolution, bucket, queue, task, event, succeeded, failed, dead, snoozed, superseded,"
        " handed_back, run_seconds, wait_seconds, longest, run, wait)"
        " VALUES (%s, statement_timestamp() - %s::interval, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            *(resolution, ago, queue, task, event),
            *(counts[name] for name in NUMBERS),
            *(run * number, wait * number, run, runs, waits),
        ],
    )


def a_delivery(task: str = "t", queue: str = "default", waited: float | None = 0.0, **fields: Any) -> Delivery:
    """Return a delivery whose run began at the monotonic time 1000."""
    defaults: dict[str, Any] = {
        "position": 1,
        "id": 1,
        "level": Level(queue, 0),
        "delivery": 1,
        "attempts": 1,
        "task": task,
        "backend": "default",
        "payload": "{}",
        "errors": None,
        "enqueued_at": None,
        "confirmed_at": 0.0,
        "ready_at": None if waited is None else 1000.0 - waited,
        "started_at": 1000.0,
    }
    return Delivery(**{**defaults, **fields})


def write(*tasks: str, verdict: Verdict = Verdict.SUCCEEDED, ran_for: float = 0.02) -> int:
    """Count a run of each of these tasks, as a worker process would, and write it."""
    tally = Tally()
    for task in tasks:
        tally.add(a_delivery(task), verdict, ran_for)
    return tally.write()


def in_spans() -> dict[Any, Any]:
    """Return what all rows but the totals add up to, by queue, task and whether it is of events."""
    return _sums("resolution <> 'total'")


def in_totals() -> dict[Any, Any]:
    """Return what the totals and what is not in them yet add up to."""
    return _sums("resolution IN ('total', 'raw')")


def rows(resolution: str) -> int:
    return int(execute("SELECT count(*) FROM pgbus_run_counts WHERE resolution = %s", [resolution])[0][0])


def _sums(condition: str) -> dict[Any, Any]:
    found = execute(
        f"SELECT queue, task, event, {SUMS} FROM pgbus_run_counts WHERE {condition} GROUP BY queue, task, event"
    )
    return {row[:3]: row[3:] for row in found}
