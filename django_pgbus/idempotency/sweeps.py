"""Retention of the claims and the sums of the counts, each bounded."""

from __future__ import annotations

from typing import Final

from django_pgbus.conf import get_settings
from django_pgbus.idempotency import sql

BATCH: Final = 1000
ROWS: Final = 10_000


def purge_claims() -> int:
    """
    Forget some claims completed before `IDEMPOTENCY_TTL` and return how many.

    Never one that is pending, nor one whose event may still come to its handler. Locks: processed_events (skipping).
    """
    return sql.PURGE_CLAIMS.count(age=f"{get_settings().IDEMPOTENCY_TTL} seconds", limit=BATCH)


def purge_deserted() -> int:
    """
    Forget some claims that are pending for `IDEMPOTENCY_TTL`, silent, and whose message is nowhere; return how many.

    Locks: processed_events (skipping).
    """
    return sql.PURGE_DESERTED.count(age=f"{get_settings().IDEMPOTENCY_TTL} seconds", limit=BATCH)


def sum_counts() -> int:
    """Make one row of many that count the same, and return of how many. Locks: event_counts (skipping)."""
    return int(sql.SUM_COUNTS.row(limit=BATCH, rows=ROWS).rows)


def purge_counts() -> int:
    """
    Forget topics without a handler that were not seen for `ARCHIVE_RETENTION`, and return how many.

    Locks: event_counts (skipping).
    """
    return sql.PURGE_COUNTS.count(age=f"{get_settings().ARCHIVE_RETENTION} seconds", limit=BATCH)
