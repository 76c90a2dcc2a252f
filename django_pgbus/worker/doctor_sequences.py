"""
The look of `pgbus_doctor` at sequences: what they hand out is new, and in the order of the asking.

The floor rests on the order of the positions of the line (docs/architecture/floor.md), a group on that of its log. What was
copied without its sequences, by logical replication or a dump of the data alone, hands out numbers that are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.apps import apps
from django.db import models

from django_pgbus.conf import database
from django_pgbus.streams import stats
from django_pgbus.streams.log_statement import LogStatement, log_table
from django_pgbus.worker import doctor_server_sql as sql
from django_pgbus.worker.doctor_project import APP_LABEL
from django_pgbus.worker.findings import Finding, Findings, Grade

IDS: Final = "pgbus_task_id"
POSITIONS: Final = "pgbus_position"
MOST: Final = 200  # logs

LAST_ENTRY = LogStatement(
    sql="""
    SELECT position
    FROM pgbus_stream_0
    ORDER BY position DESC
    LIMIT 1
    """
)


def look() -> Findings:
    """Look at the sequences of the line, of the tables that count their rows, and of the logs (but for their cache)."""
    # Before the sequences themselves: what is handed out meanwhile is higher.
    line = {IDS: sql.HIGHEST_ID.row().highest, POSITIONS: sql.HIGHEST_POSITION.row().highest}
    highest = {**line, **_of_tables(), **_of_logs()}
    rows = {row.name: row for row in sql.SEQUENCES.rows(names=list(highest))}
    found = [
        *(_gone(name) for name in (IDS, POSITIONS) if name not in rows),
        *(one for name in (IDS, POSITIONS) if name in rows for one in _out_of_order(rows[name])),
        *(one for name, row in rows.items() for one in _behind(row, highest[name])),
    ]
    yield from found
    if not found:
        yield Finding(Grade.OK, "sequences", f"{len(rows)} hand out what is new, in order")


def _gone(name: str) -> Finding:
    return Finding(
        Grade.FAIL,
        "sequences",
        f"{name} is missing: nothing can be enqueued",
        f"CREATE SEQUENCE {name} CACHE 1; then the look says what to set it to.",
        name,
    )


def _out_of_order(row: Any) -> Iterator[Finding]:
    worse = Grade.FAIL if row.name == POSITIONS else Grade.WARN
    if row.cache != 1:
        yield Finding(
            worse,
            "sequences",
            f"{row.name} has CACHE {row.cache}: sessions keep low numbers and use them late, behind what was looked at",
            f"ALTER SEQUENCE {row.name} CACHE 1; then restart what enqueues.",
            row.name,
        )
    if row.increment < 1:
        yield Finding(
            worse,
            "sequences",
            f"{row.name} has INCREMENT {row.increment}: it counts down",
            f"ALTER SEQUENCE {row.name} INCREMENT 1;",
            row.name,
        )
    if row.cycles:
        yield Finding(
            worse,
            "sequences",
            f"{row.name} has CYCLE: at its end it begins anew",
            f"ALTER SEQUENCE {row.name} NO CYCLE;",
            row.name,
        )


def _behind(row: Any, highest: int) -> Iterator[Finding]:
    if row.last is not None and row.last < highest:
        yield Finding(
            Grade.FAIL,
            "sequences",
            f"{row.name} is at {row.last}, and {highest} is taken: what it hands out next was handed out before",
            f"SELECT setval('{row.name}', {highest}); with the workers stopped.",
            row.name,
        )


def _of_tables() -> dict[str, int]:
    """Return the highest number of each table that counts its rows, by its sequence."""
    highest = {}
    for model in apps.get_app_config(APP_LABEL).get_models():
        key: Any = model._meta.pk
        if isinstance(key, models.AutoField):
            name = sql.SERIAL.row(table=model._meta.db_table, column=key.column).name
            last = model._default_manager.using(database()).aggregate(last=models.Max("pk"))["last"]
            if name is not None:
                highest[name] = last or 0
    return highest


def _of_logs() -> dict[str, int]:
    last = {stream.id: LAST_ENTRY.of(stream.id).row() for stream in stats.overview(MOST) if stream.has_log}
    return {f"{log_table(stream)}_position": row.position for stream, row in last.items() if row is not None}
