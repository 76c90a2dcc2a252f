"""Summing what was counted into fewer rows, and forgetting what is old; each bounded."""

from __future__ import annotations

from typing import Final

from django_pgbus.insights import sql

BATCH: Final = 10_000  # rows
MINUTES_FOR: Final = "2 hours"
TEN_MINUTES_FOR: Final = "26 hours"
HOURS_FOR: Final = "8 days"
TOTALS_FOR: Final = "366 days"  # of a pair that did not run


def sum_written() -> int:
    """
    Make rows of minutes of what workers wrote, and add it to the totals; return of how many rows.

    A minute is summed once it is over. Locks: run_counts (skipping).
    """
    return _roll_up("raw", "minute", span="1 minute", age="0 seconds")


def sum_minutes() -> int:
    """Make rows of ten minutes of minutes that are two hours old; return of how many. Locks: run_counts (skipping)."""
    return _roll_up("minute", "ten_minutes", span="10 minutes", age=MINUTES_FOR)


def sum_ten_minutes() -> int:
    """Make rows of hours of ten minutes that are 26 hours old; return of how many. Locks: run_counts (skipping)."""
    return _roll_up("ten_minutes", "hour", span="1 hour", age=TEN_MINUTES_FOR)


def purge_hours() -> int:
    """Forget hours that are eight days old, and return how many. Locks: run_counts (skipping)."""
    return sql.FORGET.count(resolution="hour", age=HOURS_FOR, limit=BATCH)


def purge_totals() -> int:
    """Forget totals of what did not run for a year, and return how many. Locks: run_counts (skipping)."""
    return sql.FORGET.count(resolution="total", age=TOTALS_FOR, limit=BATCH)


def _roll_up(finer: str, coarser: str, *, span: str, age: str) -> int:
    return int(sql.ROLL_UP.row(finer=finer, coarser=coarser, span=span, age=age, limit=BATCH).rows)
