"""A statement: SQL text, and the tables whose rows it locks."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import connections

from django_pgbus.conf import database


@cache
def _row_type(columns: tuple[str, ...]) -> Any:
    return namedtuple("Row", columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """
    SQL text, and the tables whose rows it locks, in the order it locks them.

    `again` names those of them whose rows the transaction may have locked before, in their place: it waits for nobody then.

    Runs on the connection this thread holds for the pgbus alias, hence in the caller's transaction.
    Every parameter is cast in the text, so that server-side binding finds its type; write % as %%.
    """

    sql: str
    locks: tuple[str, ...] = ()
    again: tuple[str, ...] = ()

    def tuples(self, **params: Any) -> list[tuple[Any, ...]]:
        """Run and return all rows as plain tuples, for the hot paths."""
        # Without the generator of `_execute`, which costs a twentieth of an enqueue.
        with connections[database()].cursor() as cursor:
            cursor.execute(self.sql, params or None)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def rows(self, **params: Any) -> list[Any]:
        """Run and return all rows, columns by name."""
        with self._execute(params) as cursor:
            make = _row_type(tuple(column.name for column in cursor.description))._make
            return [make(row) for row in cursor.fetchall()]

    def row(self, **params: Any) -> Any:
        """Run and return the first row, or None."""
        return next(iter(self.rows(**params)), None)

    def count(self, **params: Any) -> int:
        """Run and return how many rows it touched."""
        with self._execute(params) as cursor:
            return int(cursor.rowcount)

    @contextmanager
    def _execute(self, params: dict[str, Any]) -> Iterator[Any]:
        with connections[database()].cursor() as cursor:
            cursor.execute(self.sql, params or None)
            yield cursor
