"""
No page of ours makes the database work for long.

Reading is done under a time limit of its own. Lists count up to `LIMIT` and estimate beyond, and only so many rows can
be paged through: what lies deeper is found by its ID, a filter or the other order. Filters without an index look at the
newest `REACH` rows. None of this depends on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.core.paginator import Paginator
from django.db import OperationalError, transaction
from django.utils.functional import cached_property
from django.utils.translation import gettext

from django_pgbus.admin import words
from django_pgbus.conf import database
from django_pgbus.postgres import Statement
from django_pgbus.postgres.retrying import sqlstate
from django_pgbus.postgres.time_limit import CANCELED, time_limited
from django_pgbus.queues.stats import LIMIT

if TYPE_CHECKING:
    AnyPaginator = Paginator[Any]
else:
    AnyPaginator = Paginator

REACH: Final = 100_000
PATIENCE: Final = 5_000  # milliseconds

ESTIMATE = Statement(
    sql="""
    SELECT reltuples::float8 AS number
    FROM pg_class
    WHERE oid = to_regclass(%(table)s::text)
    """
)


class TookTooLongError(Exception):
    """A page's question to the database was ended at its time limit."""


@contextmanager
def bounded(patience: int | None = None) -> Iterator[None]:
    """Read with a time limit for each statement, in milliseconds; raises TookTooLongError."""
    try:
        with transaction.atomic(using=database()), time_limited(PATIENCE if patience is None else patience):
            yield
    except OperationalError as error:
        if sqlstate(error) == CANCELED:
            raise TookTooLongError from error
        raise


class BoundedPaginator(AnyPaginator):
    """Counts no further than `LIMIT`, and pages no further either."""

    @cached_property
    def found(self) -> int:
        """Return how many there are, or one more than `LIMIT`."""
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: LIMIT + 1].count())

    @cached_property
    def count(self) -> int:
        """Return how many can be paged through."""
        return min(self.found, LIMIT)

    @property
    def more(self) -> bool:
        """Return whether there are rows beyond the last page."""
        return self.found > LIMIT

    @cached_property
    def shown(self) -> str:
        """Return the number for people; beyond `LIMIT` what the planner believes."""
        rows: Any = self.object_list
        # Asked in any case: a page takes as many queries for ten rows as for a million.
        estimate = 0 if rows.query.where else int(ESTIMATE.row(table=rows.model._meta.db_table).number)
        if not self.more:
            return words.number(self.found)
        if estimate > LIMIT:
            return gettext("about %(number)s") % {"number": words.number(_rounded(estimate))}
        return f"{words.number(LIMIT)}+"


def estimated(model: Any) -> int:
    """Return how many rows the planner believes a table has, to three digits."""
    return _rounded(int(ESTIMATE.row(table=model._meta.db_table).number))


def _rounded(estimate: int) -> int:
    """Return an estimate to three digits: it knows no more."""
    digits = max(0, len(str(estimate)) - 3)
    return int(round(estimate, -digits))
