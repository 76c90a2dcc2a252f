"""The statements of the package, and a guard that follows the locks a call takes."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

from django.db import connections

import django_pgbus
from django_pgbus.postgres import LOCK_ORDER, Statement
from django_pgbus.streams.log_statement import ANY_LOG, LogStatement

ORDER = list(LOCK_ORDER)
LOG = re.compile(r"(\b)pgbus_stream_\d+")
LOCKING = re.compile(r"\bFOR ((NO KEY )?UPDATE|SHARE)\b")


def all_statements() -> Iterator[tuple[str, Statement]]:
    """Yield (dotted name, statement) for every `sql.py` and every statement elsewhere; one about a log is about log 0."""
    seen = set()
    for module in pkgutil.walk_packages(django_pgbus.__path__, "django_pgbus."):
        if ".migrations" in module.name or ".management" in module.name or "pytest_plugin" in module.name:
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, (Statement, LogStatement)) and id(value) not in seen:
                seen.add(id(value))
                yield f"{module.name}.{name}", value.of(0) if isinstance(value, LogStatement) else value


def numbered(sql: str) -> str:
    """Return the text with $1, $2 ... for %(name)s."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return re.sub(r"%\((\w+)\)s", number, sql).replace("%%", "%")


def prepare(statement: Statement, alias: str = "default") -> str:
    """Return the server's complaint about a statement, empty if it prepares."""
    connections[alias].ensure_connection()
    result = connections[alias].connection.pgconn.prepare(b"", numbered(statement.sql).encode())
    return "" if result.status == 1 else result.error_message.decode()


def tables_locked(sql: str) -> set[str]:
    """Return the tables whose existing rows the text changes or locks."""
    text = re.sub(r"--[^\n]*", "", sql)
    taken = set(re.findall(r"(?:UPDATE|DELETE FROM) pgbus_(\w+)", text))
    if "DO UPDATE" in text:
        taken.add(re.search(r"INSERT INTO pgbus_(\w+)", text)[1])  # type: ignore[index]
    for select, alias in re.findall(
        r"SELECT((?:(?!\bSELECT\b).)*?)FOR (?:(?:NO KEY )?UPDATE|SHARE)(?: OF (\w+))?", text, re.DOTALL
    ):
        sources = re.findall(r"(?:FROM|JOIN) pgbus_(\w+)(?: AS (\w+))?", select)
        taken |= {table for table, known_as in sources if not alias or alias == known_as}
        if alias and alias not in {known_as for _, known_as in sources}:  # it stands before a nested SELECT
            taken |= set(re.findall(rf"pgbus_(\w+) AS {alias}\b", text))
    return taken


class LockOrderBroken(AssertionError):
    """A table was locked after one that comes later in the order."""


class LockGuard:
    """
    Fails when one transaction of a public call locks tables out of order.

    Use as an execute wrapper of a connection; `begin` starts the order afresh with each public call.
    """

    def __init__(self) -> None:
        self._by_sql = {statement.sql: statement for _, statement in all_statements()}
        self._transaction: Any = None
        self.held: list[str] = []
        self.seen: list[str] = []

    def begin(self) -> None:
        """Start afresh."""
        self.held = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        blocks = context["connection"].atomic_blocks
        current = blocks[0] if blocks else None
        if current is None or current is not self._transaction:
            self._transaction, self.held = current, []
        statement = self._by_sql.get(sql) or self._by_sql.get(LOG.sub(rf"\g<1>{ANY_LOG}", str(sql)))
        for table in statement.locks if statement else ():
            if table in statement.again and table in self.held:
                continue
            later = [held for held in self.held if ORDER.index(held) > ORDER.index(table)]
            if later:
                raise LockOrderBroken(f"{table} locked after {later[0]}")
            if table not in self.held:
                self.held.append(table)
            self.seen.append(table)
        return execute(sql, params, many, context)
