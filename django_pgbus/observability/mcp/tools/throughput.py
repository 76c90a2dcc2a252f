"""What ran, how long it took and how long it had waited."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from django_pgbus.insights import stats
from django_pgbus.insights.stats import Runs, Window
from django_pgbus.observability.mcp import inputs, words

Of = Literal["tasks", "queues"]
Order = Literal["run_seconds", "slowest", "failures", "number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """
    What came of runs; `task` and `queue` are empty where all are meant.

    `failed` are attempts that are tried again, `dead` those that were the last; `failure_rate` is both of all, 0 to 1.
    Waits last from standing in line to the start of the run.
    """

    task: str
    queue: str
    runs: int
    succeeded: int
    failed: int
    dead: int
    snoozed: int
    failure_rate: float
    run_seconds: float
    run_average_seconds: float | None
    run_p50_seconds: float | None
    run_p95_seconds: float | None
    run_p99_seconds: float | None
    longest_seconds: float
    wait_average_seconds: float | None
    wait_p95_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came of runs from `at` for one step of the window."""

    at: datetime
    succeeded: int
    failed: int
    dead: int
    run_p95_seconds: float | None
    wait_p95_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """All runs of the window together, its tasks or queues as asked for, and the window step by step, oldest first."""

    overall: Ran
    runs_per_second: float
    rows: list[Ran]
    step_seconds: int
    series: list[Step]


def pgbus_throughput(
    window: Annotated[Literal["1h", "24h", "7d"], Field(description="How far back.")] = "1h",
    of: Annotated[Of, Field(description="Whether the rows are tasks or queues.")] = "tasks",
    order: Annotated[
        Order, Field(description="Of tasks, what comes first: time taken, 95th percentile, failures or runs.")
    ] = "run_seconds",
    task: Annotated[inputs.Text, Field(description="The path of one task, for the series; empty: all.")] = "",
    queue: Annotated[inputs.Text, Field(description="The name of one queue, for the series; empty: all.")] = "",
    limit: inputs.Limit = 20,
) -> Throughput:
    """
    Tell what ran in the last hour, day or week: how many runs, failures, how long they took and had waited.

    By task or by queue, and step by step. Workers write their counts every few seconds: the last of them are not among it.
    """
    span = Window(window)
    rows = stats.by_task(span, limit, order) if of == "tasks" else stats.by_queue(span, limit)
    overall = stats.overall(span)
    return Throughput(
        overall=_ran(overall),
        runs_per_second=round(sum(stats.rates().values()), 3),
        rows=[_ran(one) for one in rows],
        step_seconds=span.step,
        series=[
            Step(
                at=words.known_utc(point.at),
                succeeded=point.succeeded,
                failed=point.failed,
                dead=point.dead,
                run_p95_seconds=words.rounded(point.run_p95),
                wait_p95_seconds=words.rounded(point.wait_p95),
            )
            for point in stats.series(span, task, queue)
        ],
    )


def _ran(runs: Runs) -> Ran:
    return Ran(
        task=words.name(runs.task),
        queue=words.name(runs.queue),
        runs=runs.number,
        succeeded=runs.succeeded,
        failed=runs.failed,
        dead=runs.dead,
        snoozed=runs.snoozed,
        failure_rate=round(runs.failure_rate, 4),
        run_seconds=round(runs.run_seconds, 3),
        run_average_seconds=words.rounded(runs.run_average),
        run_p50_seconds=words.rounded(runs.run_percentile(0.5)),
        run_p95_seconds=words.rounded(runs.run_percentile(0.95)),
        run_p99_seconds=words.rounded(runs.run_percentile(0.99)),
        longest_seconds=round(runs.longest, 3),
        wait_average_seconds=words.rounded(runs.wait_average),
        wait_p95_seconds=words.rounded(runs.wait_percentile(0.95)),
    )
