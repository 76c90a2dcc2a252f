"""The goals P1 to P10 in words, in their order, and whether they are reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.benchmarks.report import Goal


@dataclass(frozen=True, slots=True)
class Part:
    """One figure of a goal: what is wanted at least, or at most, what it is, and its unit."""

    goal: float
    what: str
    unit: str = "x"
    at_most: bool = False

    def reached(self, value: float | None) -> Goal:
        """Return it beside what was measured; None means that it was not, and nothing is claimed."""
        return Goal(value, self.goal, self.at_most)

    @property
    def wanted(self) -> str:
        """Return what is wanted in words."""
        if self.goal == 0 and self.at_most:
            return "0"
        return f"{'≤' if self.at_most else '≥'} {number(self.goal)} {self.unit}".strip()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A goal: which benchmark measures it, and its figures by the names that they have in a record."""

    what: str
    bench: str
    parts: Mapping[str, Part]


GOALS: Final = {
    "P1": Wanted(
        "Drain of no-op tasks through the whole product, one worker process",
        "jobs",
        {
            "P1": Part(1.5, "beside PgQueuer"),
            "P1.refskip": Part(0.4, "beside a bare loop over SKIP LOCKED"),
        },
    ),
    "P2": Wanted(
        "The same drain with a million rows that are there already",
        "depth",
        {
            "P2.pending": Part(0.9, "a million waiting, beside none"),
            "P2.delayed": Part(0.9, "a million delayed, beside none"),
            "P2.archived": Part(0.9, "a million finished, beside none"),
        },
    ),
    "P3": Wanted(
        "The same drain while a snapshot is held open",
        "snapshot",
        {
            "P3": Part(0.8, "held, beside not held"),
            "P3.flat": Part(0.8, "the last window of it, beside its first"),
        },
    ),
    "P4": Wanted(
        "Pick-up by an idle worker, from commit to start",
        "latency",
        {
            "P4.spaced_p50": Part(2.0, "spaced sends, median", "ms", at_most=True),
            "P4.spaced_p99": Part(5.0, "spaced sends, 99th percentile", "ms", at_most=True),
            "P4.back_to_back_p50": Part(2.0, "sends back to back, median", "ms", at_most=True),
            "P4.back_to_back_p99": Part(5.0, "sends back to back, 99th percentile", "ms", at_most=True),
            "P4.delayed": Part(100.0, "a delayed task starts late by, at most", "ms", at_most=True),
            "P4.unheard": Part(1500.0, "after a lost notification, at most", "ms", at_most=True),
        },
    ),
    "P5": Wanted(
        "Enqueueing, beside bare inserts through the same Django cursor",
        "enqueue",
        {
            "P5": Part(0.85, "one by one"),
            "P5.many": Part(0.7, "by the thousand"),
        },
    ),
    "P6": Wanted(
        "Streams: one publishing process, one consuming",
        "streams",
        {
            "P6.rate": Part(31_680, "entries a second for a minute, 32,000 asked for", "/s"),
            "P6.missing": Part(0, "entries that no handler saw", "", at_most=True),
            "P6.doubled": Part(0, "entries that a handler saw twice", "", at_most=True),
            "P6.lag_p99": Part(50.0, "lag at that rate, 99th percentile", "ms", at_most=True),
            "P6.flat_out": Part(60_000, "entries a second flat out", "/s"),
        },
    ),
    "P7": Wanted(
        "Enqueueing of limited tasks on one hot key, 8 connections with 20 ms transactions",
        "hotkey",
        {
            "P7": Part(0.8, "limited, beside unlimited"),
            "P7.other": Part(0.8, "another key meanwhile, beside without the hot one"),
        },
    ),
    "P8": Wanted(
        "Commits of 16 clients that enqueue while workers listen",
        "commits",
        {"P8": Part(0.85, "beside the same without any wake-up")},
    ),
    "P9": Wanted(
        "A worker with nothing to do",
        "idle",
        {
            "P9": Part(1.5, "statements a second", "/s", at_most=True),
            "P9.memory": Part(80.0, "memory of its largest process", "MB", at_most=True),
            "P9.connections_vary": Part(0, "connections more or fewer than constant", "", at_most=True),
        },
    ),
    "P10": Wanted(
        "A burst of 100,000 tasks at four sleeping processes",
        "burst",
        {
            "P10.deadlocks": Part(0, "deadlocks", "", at_most=True),
            "P10.longest_wait_s": Part(1.0, "longest wait for a lock", "s", at_most=True),
            "P10.lost": Part(0, "tasks that did not run", "", at_most=True),
            "P10.doubled": Part(0, "tasks that ran twice", "", at_most=True),
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its goal, as text; where it was not measured, nothing is claimed."""

    name: str
    what: str
    wanted: str
    reached: str
    met: bool | None

    @property
    def verdict(self) -> str:
        """Return the state in words."""
        return {True: "met", False: "not met", None: "not measured"}[self.met]


def reached(bench: str, **values: float | None) -> dict[str, Goal]:
    """Return the goals of a benchmark; `P4__delayed` is the figure P4.delayed."""
    given = {name.replace("__", "."): value for name, value in values.items()}
    parts = {name: part for wanted in GOALS.values() if wanted.bench == bench for name, part in wanted.parts.items()}
    if given.keys() != parts.keys():
        raise ValueError(f"The figures of {bench} are {', '.join(parts)}.")
    return {name: part.reached(given[name]) for name, part in parts.items()}


def rows(goal: str, measured: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Yield the figures of a goal, beside what a record has of them."""
    for name, part in GOALS[goal].parts.items():
        value = measured.get(name, {}).get("reached")
        reached = "-" if value is None else f"{number(value)} {part.unit}".strip()
        yield Row(name, part.what, part.wanted, reached, part.reached(value).met)


def met(goal: str, measured: Mapping[str, Mapping[str, Any]]) -> bool | None:
    """Return whether all figures of a goal are reached; None if one of them was not measured and none is missed."""
    verdicts = [row.met for row in rows(goal, measured)]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def number(value: float) -> str:
    """Return a number that people can read: three digits that count, and commas."""
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1g}"
