"""
Whether a series is flat: the slope through the medians of windows, in percent of its level in an hour.

A single point says nothing: tables grow until a purge, and dead tuples until a vacuum. So each window is longer than what
comes and goes in it, and its median is one point. The line is Theil and Sen's, the median of all slopes between two points:
one window that was disturbed does not move it. Its interval (95 %, after Kendall) says how far chance could have led it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from statistics import median
from typing import Final

HOUR: Final = 3600.0
WINDOWS: Final = 9
SHORTEST: Final = 1200.0  # seconds after the warm-up: of less, no hour can be told
TOLERANCE: Final = 5.0  # percent of the level in an hour
WARM_UP: Final = 0.25  # of the run
Z: Final = 1.96


class Word(StrEnum):
    """What a series does."""

    FLAT = "flat"
    GROWING = "growing"
    FALLING = "falling"
    UNSTEADY = "unsteady"  # more than the tolerance, but as likely chance as not
    SHORT = "too short"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a series stands after the warm-up and where it goes, in an hour; percent of the level, None of a level of 0."""

    word: Word
    level: float
    change: float
    percent: float | None
    low: float | None
    high: float | None


Points = Sequence[tuple[float, float]]


def judged(points: Points, *, warm_up: float, small: float = 0.0) -> Verdict | None:
    """
    Return the verdict on (seconds, value) pairs from `warm_up` seconds on; None without any.

    `small` is a change in an hour, in the unit of the series, that nobody would call growth, whatever the percentage.
    """
    kept = [(at, value) for at, value in points if at >= warm_up]
    if not kept:
        return None
    level = median(value for _, value in kept)
    middles = windowed(kept)
    slope, low, high = sloped(middles)
    change = slope * HOUR
    scale = 100 * HOUR / abs(level) if level else None
    percent, *ends = [None if scale is None else one * scale for one in (slope, low, high)]
    if kept[-1][0] - kept[0][0] < SHORTEST:
        word = Word.SHORT
    elif abs(change) <= small or (percent is not None and abs(percent) <= TOLERANCE):
        word = Word.FLAT
    elif low < 0 < high:
        word = Word.UNSTEADY
    else:
        word = Word.GROWING if slope > 0 else Word.FALLING
    return Verdict(word, level, change, percent, *ends)


def windowed(points: Points, windows: int = WINDOWS) -> list[tuple[float, float]]:
    """Return the middle of each of so many windows of equal length, with the median of what lies in it."""
    first, last = points[0][0], points[-1][0]
    length = (last - first) / windows or 1.0
    within: dict[int, list[float]] = {}
    for at, value in points:
        within.setdefault(min(int((at - first) / length), windows - 1), []).append(value)
    return [(first + (number + 0.5) * length, median(values)) for number, values in sorted(within.items())]


def sloped(points: Points) -> tuple[float, float, float]:
    """Return the median of the slopes between any two points, and the ends of its interval."""
    slopes = sorted((after - before) / (later - at) for (at, before), (later, after) in combinations(points, 2))
    if not slopes:
        return 0.0, -math.inf, math.inf
    n = len(points)
    spread = Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    rank = math.floor((len(slopes) - spread) / 2)
    if rank < 0:
        return median(slopes), -math.inf, math.inf
    return median(slopes), slopes[rank], slopes[-1 - rank]
