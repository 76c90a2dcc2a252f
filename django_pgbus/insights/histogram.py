"""Durations in buckets: which one, and what a percentile of many is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# Seconds; a bucket holds what took at most so long and longer than the one before. One more bucket holds what is beyond.
BOUNDS: Final[tuple[float, ...]] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
BUCKETS: Final = len(BOUNDS) + 1
NONE: Final = (0,) * BUCKETS


def bucket(seconds: float) -> int:
    """Return the number of the bucket that a duration belongs to."""
    return bisect_left(BOUNDS, seconds)


def percentile(counts: Sequence[int], q: float, longest: float | None = None) -> float | None:
    """
    Return how many seconds the share `q` (0 to 1) took at most, or None if there are none.

    Interpolated within its bucket, as if what is in it were spread evenly; never above `longest`, where that is known.
    Without it the last bucket says its lower end, since it has no other.
    """
    if not (total := sum(counts)):
        return None
    rank, below = min(max(q, 0.0), 1.0) * total, 0
    for number, count in enumerate(counts):
        if count and below + count >= rank:
            low = BOUNDS[number - 1] if number else 0.0
            high = BOUNDS[number] if number < len(BOUNDS) else low if longest is None else longest
            if longest is not None:
                low, high = min(low, longest), min(high, longest)
            return low + (high - low) * ((rank - below) / count)
        below += count
    raise AssertionError("unreachable")
