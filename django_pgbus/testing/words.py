"""Words that the assertions share."""

from __future__ import annotations


def times_of(count: int) -> str:
    """Return how often, in words."""
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")
