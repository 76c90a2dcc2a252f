"""
One look at the database: read only, of one snapshot, and bounded in time.

Each part of it stands on a savepoint, so that one that fails leaves the others their transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import connections, transaction

from django_pgbus.conf import database
from django_pgbus.postgres import Statement
from django_pgbus.postgres.time_limit import time_limited

STATEMENT_TAKES: Final = 1_500  # milliseconds
PART_TAKES: Final = 3.0  # seconds
LOOK_TAKES: Final = 6.0  # a scrape of Prometheus ends after ten, unless told otherwise

ONE_SNAPSHOT = Statement(sql="SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")


class TookTooLongError(Exception):
    """The time of a look is used up."""


class Look:
    """What can be asked within the time that is left; made by `look()`."""

    def __init__(self) -> None:
        self._end = time.monotonic() + LOOK_TAKES

    @contextmanager
    def part(self) -> Iterator[None]:
        """Read a part; raises what its statements raise, or TookTooLongError before one of them."""
        end = min(self._end, time.monotonic() + PART_TAKES)

        def in_time(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
            if time.monotonic() > end:
                raise TookTooLongError
            return execute(sql, params, many, context)

        with transaction.atomic(using=database()), connections[database()].execute_wrapper(in_time):
            yield


@contextmanager
def look() -> Iterator[Look]:
    """
    Look at the database, of one snapshot.

    Within a transaction of the caller's it is only bounded: what that transaction sees is not ours to decide.
    """
    connection = connections[database()]
    begins = not connection.in_atomic_block and connection.get_autocommit()
    with transaction.atomic(using=database()):
        if begins:
            ONE_SNAPSHOT.count()
        with time_limited(STATEMENT_TAKES):
            yield Look()
