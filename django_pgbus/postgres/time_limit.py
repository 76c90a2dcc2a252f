"""A time limit for the statements of people and monitors, which ends with the transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django_pgbus.postgres.statement import Statement

CANCELED: Final = "57014"  # the SQLSTATE of a statement that took too long

# Never longer than the project itself allows.
LIMIT_TIME = Statement(
    sql="""
    SELECT setting AS before,
           set_config('statement_timeout',
                      CASE WHEN setting::int BETWEEN 1 AND %(most)s::int THEN setting ELSE %(most)s::text END,
                      true) AS now
    FROM pg_settings
    WHERE name = 'statement_timeout'
    """
)
RESTORE_TIME = Statement(sql="SELECT set_config('statement_timeout', %(before)s::text, true) AS now")


@contextmanager
def time_limited(milliseconds: int) -> Iterator[None]:
    """Let no statement take longer; inside a transaction, whose end (or savepoint) restores it after an error."""
    before = LIMIT_TIME.row(most=milliseconds).before
    yield
    RESTORE_TIME.row(before=before)  # we may stand inside the request's own transaction
