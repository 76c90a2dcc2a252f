"""
The four groups of the storm over streams: a transactional one, a plain one, one with a key, and one that routes.

The transactional one writes in the transaction that commits its range; the others note each run at once.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

from django.conf import settings
from django.db import connection

from django_pgbus import Stream, consume
from tests.storm.stream_tables import PARTITION, STREAM, queue_of

MOST: Final = 1000  # attempts: the kills are many
STUBBORN: Final = 3  # runs, then one that always fails is a dead letter

Stream(STREAM, partition_size=PARTITION)


def _execute(statement: str, *values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchone()[0] if cursor.description else None


@consume(STREAM, group="totals", batch_size=100, transactional=True)
def totals(entries: Any) -> None:
    _execute(
        "INSERT INTO stream_storm_totaled (position, id) SELECT * FROM unnest(%s::bigint[], %s::bigint[])",
        [entry.position for entry in entries],
        [entry.payload["id"] for entry in entries],
    )
    time.sleep(getattr(settings, "TOTALS_TAKE", 0.0))
    _execute(
        "UPDATE stream_storm_totals SET entries = entries + %s::int, total = total + %s::bigint",
        len(entries),
        sum(entry.payload["amount"] for entry in entries),
    )


@consume(STREAM, group="plain")
def plain(entry: Any) -> None:
    _note("plain", entry)


def in_a_moment(exception: BaseException, entry: Any) -> float | None:
    return None if entry.payload["fails"] > STUBBORN and entry.attempt >= STUBBORN else 0.2


@consume(STREAM, group="keyed", key=lambda entry: entry.payload["key"], max_attempts=MOST, backoff=in_a_moment)
def keyed(entry: Any) -> None:
    run = _note("keyed", entry)
    time.sleep(entry.payload["seconds"])
    if entry.attempt <= entry.payload["fails"]:
        _execute("UPDATE stream_storm_runs SET ended = clock_timestamp(), failed = true WHERE run = %s::bigint", run)
        raise ValueError("not yet")
    _execute("UPDATE stream_storm_runs SET ended = clock_timestamp() WHERE run = %s::bigint", run)


@consume(STREAM, group="routed", route_to=lambda entry: queue_of(entry.payload["id"]), max_attempts=MOST)
def routed(entry: Any) -> None:
    _note("routed", entry)


def _note(group: str, entry: Any) -> Any:
    return _execute(
        "INSERT INTO stream_storm_runs (grp, position, id, key, pid)"
        " VALUES (%s::text, %s::bigint, %s::bigint, %s::int, %s::int) RETURNING run",
        group,
        entry.position,
        entry.payload["id"],
        entry.payload["key"],
        os.getpid(),
    )
