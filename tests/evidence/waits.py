"""What a statement locks, in which mode, and where it may wait for another transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from django_pgbus.postgres import Statement
from tests.evidence.uniques import of_table

LOCKING: Final = re.compile(
    r"SELECT((?:(?!\bSELECT\b).)*?)(FOR (?:(?:NO KEY )?UPDATE|SHARE))(?: OF (\w+))?( SKIP LOCKED)?", re.DOTALL
)


def locks_and_waits(statement: Statement) -> str:
    """Return them in words, "none" if it locks no row and waits for nobody."""
    return "; ".join([*_locks(statement), *_waits(statement)]) or "none"


def _locks(statement: Statement) -> Iterator[str]:
    modes = _modes(re.sub(r"--[^\n]*", "", statement.sql))
    for table in statement.locks:
        mode = modes.get(table, "")
        known = "locked before" if table in statement.again else "passes over" if "SKIP" in mode else "waits"
        yield f"`{table}`: `{mode}` ({known})" if mode else f"`{table}` ({known})"


def _modes(text: str) -> dict[str, str]:
    """Return by what each table is locked first: a row that is locked can be changed without a further wait."""
    found: dict[str, str] = {}
    for select, mode, alias, skips in LOCKING.findall(text):
        sources = re.findall(r"(?:FROM|JOIN) pgbus_(\w+)(?: AS (\w+))?", select)
        tables = [table for table, known_as in sources if not alias or alias == known_as]
        if alias and alias not in {known_as for _, known_as in sources}:  # it stands before a nested SELECT
            tables = re.findall(rf"pgbus_(\w+) AS {alias}\b", text)
        for table in tables:
            found.setdefault(table, f"{mode}{skips}")
    for mode, table in re.findall(r"(UPDATE|DELETE) (?:FROM )?pgbus_(\w+)", text):
        found.setdefault(table, mode)
    if "DO UPDATE" in text:
        for table in re.findall(r"INSERT INTO pgbus_(\w+)", text)[:1]:
            found.setdefault(table, "ON CONFLICT DO UPDATE")
    return found


def _waits(statement: Statement) -> Iterator[str]:
    for table in dict.fromkeys(re.findall(r"INSERT INTO pgbus_(\w+)", statement.sql)):
        for one in of_table(table):
            yield f"waits at `{one.name}`"
    if "pg_advisory_xact_lock" in statement.sql:
        yield "waits for an advisory lock"
