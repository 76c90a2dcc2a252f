"""
Read-only numbers of what ran, for people: admin, metrics and MCP all read these.

Each function asks once, of a table that grows with the number of tasks and not with that of jobs. What workers counted in
the seconds since their last beat is not among it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from django_pgbus.insights import stats_sql
from django_pgbus.insights.histogram import BOUNDS, NONE, percentile

__all__ = [
    "BOUNDS",
    "ORDERS",
    "Point",
    "Runs",
    "Window",
    "by_queue",
    "by_task",
    "overall",
    "rates",
    "series",
    "totals",
]

MOST_QUEUES: Final = 1000
REACH: Final = 100_000  # rows that a total is added up from
SLOWEST_OF: Final = 1000  # tasks, those with the longest average
ORDERS: Final = ("run_seconds", "slowest", "failures", "number")


class Window(StrEnum):
    """A span of time up to now, in whole steps."""

    HOUR = "1h"
    DAY = "24h"
    WEEK = "7d"

    @property
    def seconds(self) -> int:
        """Return how long it is."""
        return {"1h": 3600, "24h": 86_400, "7d": 604_800}[self.value]

    @property
    def step(self) -> int:
        """Return how many seconds one point of it is."""
        return {"1h": 60, "24h": 600, "7d": 3600}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """
    What came of runs of one task in one queue; either is empty where it is grouped away, or was one too many to be named.

    `failed` is an attempt that is tried again, `dead` one that was the last, or a job without an attempt left, which did not
    run. `run` and `wait` count durations by `BOUNDS`, with one more bucket for what is beyond; a wait lasts from standing in
    the line to the start of the run. What was superseded or handed back came to nothing and is in no duration.
    """

    task: str
    queue: str
    event: bool
    succeeded: int
    failed: int
    dead: int
    snoozed: int
    superseded: int
    handed_back: int
    run_seconds: float
    wait_seconds: float
    longest: float
    run: tuple[int, ...]
    wait: tuple[int, ...]

    @property
    def number(self) -> int:
        """Return how many runs came to something."""
        return self.succeeded + self.failed + self.dead + self.snoozed

    @property
    def failure_rate(self) -> float:
        """Return the share of them that failed, 0 to 1."""
        return (self.failed + self.dead) / self.number if self.number else 0.0

    @property
    def run_average(self) -> float | None:
        """Return how many seconds a run took."""
        return _average(self.run_seconds, self.run)

    @property
    def wait_average(self) -> float | None:
        """Return how many seconds one waited."""
        return _average(self.wait_seconds, self.wait)

    def run_percentile(self, q: float) -> float | None:
        """Return the seconds that the share `q` of the runs took at most."""
        return percentile(self.run, q, self.longest)

    def wait_percentile(self, q: float) -> float | None:
        """Return the seconds that the share `q` waited at most; beyond the last bound that bound."""
        return percentile(self.wait, q)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What came of runs in one step of a window; `at` is its begin."""

    at: datetime
    succeeded: int
    failed: int
    dead: int
    run_p95: float | None
    wait_p95: float | None


NOTHING: Final = Runs(
    task="",
    queue="",
    event=False,
    succeeded=0,
    failed=0,
    dead=0,
    snoozed=0,
    superseded=0,
    handed_back=0,
    run_seconds=0.0,
    wait_seconds=0.0,
    longest=0.0,
    run=NONE,
    wait=NONE,
)


def totals(most: int = 500) -> list[Runs]:
    """
    Return what ran since the beginning by task and queue, the busiest first; a number never goes down.

    A pair that did not run for a year is forgotten.
    """
    return _runs(stats_sql.TOTALS.rows(reach=REACH, most=most))


def overall(window: Window, task: str = "", queue: str = "") -> Runs:
    """Return what ran in a window, all together; of one task, or one queue, or both."""
    return next(iter(_grouped(window, task=task, queue=queue, most=1)), NOTHING)


def by_task(window: Window, most: int = 50, order: str = "run_seconds", task: str = "", queue: str = "") -> list[Runs]:
    """
    Return what ran in a window by task, all its queues together; of one task, or one queue, or both.

    First come those that took the most time (`run_seconds`), whose 95th percentile is the longest (`slowest`), that failed
    most often (`failures`) or ran most often (`number`).
    """
    if order not in ORDERS:
        raise ValueError(f"{order!r} is none of the orders {', '.join(ORDERS)}.")
    if order != "slowest":
        return _grouped(window, by_task=True, task=task, queue=queue, order=order, most=most)
    found = _grouped(window, by_task=True, task=task, queue=queue, order="average", most=max(most, SLOWEST_OF))
    return sorted(found, key=lambda runs: -(runs.run_percentile(0.95) or 0.0))[:most]


def by_queue(window: Window, most: int = 100, task: str = "", queue: str = "") -> list[Runs]:
    """Return what ran in a window by queue, the one that ran most first; of one task, or one queue, or both."""
    return _grouped(window, by_queue=True, task=task, queue=queue, order="number", most=most)


def series(window: Window, task: str = "", queue: str = "") -> list[Point]:
    """Return one point per step of a window, the oldest first; of one task, or one queue, or both."""
    rows = stats_sql.SERIES.rows(**_span(window), task=task, queue=queue)
    return [
        Point(
            at=row.at,
            succeeded=row.succeeded,
            failed=row.failed,
            dead=row.dead,
            run_p95=percentile(row.run or NONE, 0.95, row.longest),
            wait_p95=percentile(row.wait or NONE, 0.95),
        )
        for row in rows
    ]


def rates(seconds: int = 300) -> dict[str, float]:
    """Return how many runs a second came to something, by queue, in the last `seconds` and up to a minute before."""
    return {row.queue: row.rate for row in stats_sql.RATES.rows(span=f"{seconds} seconds", most=MOST_QUEUES)}


def _grouped(
    window: Window,
    *,
    task: str,
    queue: str,
    most: int,
    by_task: bool = False,
    by_queue: bool = False,
    order: str = "run_seconds",
) -> list[Runs]:
    grouping = {"by_task": by_task, "by_queue": by_queue, "order": order, "most": most}
    return _runs(stats_sql.GROUPED.rows(**_span(window), **grouping, task=task, queue=queue))


def _span(window: Window) -> dict[str, str]:
    return {"window": f"{window.seconds} seconds", "step": f"{window.step} seconds"}


def _runs(rows: Sequence[Any]) -> list[Runs]:
    return [Runs(**{**row._asdict(), "run": tuple(row.run), "wait": tuple(row.wait)}) for row in rows]


def _average(seconds: float, counts: Sequence[int]) -> float | None:
    number = sum(counts)
    return seconds / number if number else None
