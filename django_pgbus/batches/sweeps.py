"""Retention of the batches, each bounded; what moves tasks stands in `tasks/batch_ends.py`."""

from __future__ import annotations

from typing import Final

from django_pgbus.batches import sql
from django_pgbus.conf import get_settings

BATCH: Final = 1000


def purge_batches() -> int:
    """
    Delete some of what finished before `ARCHIVE_RETENTION` and return how many; never one that is not finished.

    Locks: batches (skipping).
    """
    return sql.PURGE.count(age=f"{get_settings().ARCHIVE_RETENTION} seconds", limit=BATCH)


def purge_counts() -> int:
    """Delete counts of batches that are nowhere and return how many. Locks: batch_counts (skipping)."""
    return sql.PURGE_COUNTS.count(limit=BATCH)
