"""Medians, percentiles, ratios: None wherever something to compute with is missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of what is there."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the median of each number that the runs have."""
    names = dict.fromkeys(name for run in runs for name, value in run.items() if is_number(value))
    return {name: rounded(median(run.get(name) for run in runs)) for name in names}


def median_ratio(runs: Sequence[Mapping[str, Any]], ours: str, theirs: str) -> float | None:
    """Return the median of the ratios within each run: what moves a whole run moves both of its sides."""
    ratios = [run[ours] / run[theirs] for run in runs if run.get(ours) and run.get(theirs)]
    return rounded(median(ratios), 3)


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the value below which `share` percent lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share / 100 * len(ordered)))] if ordered else None


def milliseconds(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """Return p50, p99 and the maximum of durations, in milliseconds."""
    values = [value * 1000 for value in seconds]
    return {
        f"{name}_p50_ms": rounded(percentile(values, 50), 2),
        f"{name}_p99_ms": rounded(percentile(values, 99), 2),
        f"{name}_max_ms": rounded(max(values, default=None), 2),
    }


@overload
def rounded(value: float, digits: int | None = None) -> float: ...
@overload
def rounded(value: None, digits: int | None = None) -> None: ...
@overload
def rounded(value: float | None, digits: int | None = None) -> float | None: ...


def rounded(value: float | None, digits: int | None = None) -> float | None:
    """Return a number people can read: without decimals from a thousand on."""
    if value is None:
        return None
    if digits is None:
        digits = 0 if abs(value) >= 1000 else 3
    return round(value) if digits == 0 else round(value, digits)


def is_number(value: Any) -> bool:
    """Return whether a median of it means anything."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
