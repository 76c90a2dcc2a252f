"""Enqueueing through the product beside bare inserts into the same table; block after block, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import connection

from django_pgbus import enqueue_many
from tests.benchmarks.payload import ARGUMENTS, TEXT
from tests.benchmarks.project import driver, tasks

CHUNK = 1000
COLUMNS = "INSERT INTO pgbus_messages (queue, priority, task, backend, payload)"
BARE = f"{COLUMNS} VALUES (%s, %s, %s, %s, %s::json)"
BARE_MANY = f"{COLUMNS} SELECT %s, %s, %s, %s, unnest(%s::text[])::json"
VALUES = ("default", 0, tasks.noop.module_path, "default")
assert driver  # has set Django up

ROWS = [((), ARGUMENTS)] * CHUNK
TEXTS = [TEXT] * CHUNK


def single() -> int:
    tasks.noop.enqueue(**ARGUMENTS)
    return 1


def bare() -> int:
    with connection.cursor() as cursor:
        cursor.execute(BARE, (*VALUES, TEXT))
    return 1


def many() -> int:
    enqueue_many(tasks.noop, ROWS)
    return CHUNK


def bare_many() -> int:
    with connection.cursor() as cursor:
        cursor.execute(BARE_MANY, (*VALUES, TEXTS))
    return CHUNK


def rates(seconds: float, blocks: int = 4) -> dict[str, float]:
    """Return rows a second of each way, from blocks that take turns."""
    ways = (single, bare, many, bare_many)
    rows = dict.fromkeys(ways, 0)
    spent = dict.fromkeys(ways, 0.0)
    for way in ways:
        way()
    for block in range(blocks):
        for way in ways if block % 2 else reversed(ways):
            done, took = _block(way, seconds / blocks)
            rows[way] += done
            spent[way] += took
    return {way.__name__: rows[way] / spent[way] for way in ways} | {"sent": sum(rows.values()) + 2 + 2 * CHUNK}


def _block(way: Callable[[], int], seconds: float) -> tuple[int, float]:
    began = time.perf_counter()
    done = 0
    while (took := time.perf_counter() - began) < seconds:
        done += way()
    return done, took


def processor(seconds: float) -> dict[str, float]:
    """Return the microseconds of this process's processor time for each row, by the way it was sent."""
    found = {}
    for way in (single, bare, many, bare_many):
        way()
        began, rows = time.process_time(), _block(way, seconds / 4)[0]
        found[f"enqueue: {way.__name__}"] = (time.process_time() - began) / rows * 1e6
    return found
