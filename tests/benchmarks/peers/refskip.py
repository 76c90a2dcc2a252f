"""
The yardstick, no product: a table, FOR UPDATE SKIP LOCKED, a loop.

It claims a hundred, calls a function for each, moves them to an archive in one statement, and listens. It has no
retries, no results, no signals, no leases renewed, no stop: what plain SQL costs, and so the most there is to reach.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import psycopg
from psycopg.types.json import set_json_loads

from tests.benchmarks import counters
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.peers import CONCURRENCY, DSN, chunks

TABLES = (
    """
    CREATE TABLE line (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        reads int NOT NULL DEFAULT 0,
        enqueued_at timestamptz NOT NULL DEFAULT now(),
        visible_at timestamptz NOT NULL DEFAULT now(),
        message jsonb NOT NULL
    )
    """,
    "CREATE INDEX line_visible ON line (visible_at)",
    """
    CREATE TABLE archive (
        id bigint PRIMARY KEY,
        reads int,
        enqueued_at timestamptz,
        archived_at timestamptz DEFAULT now(),
        message jsonb
    )
    """,
)
SEND = """
    WITH sent AS (INSERT INTO line (message) VALUES (%s::jsonb) RETURNING id)
    SELECT id, pg_notify('line', '') FROM sent
"""
CLAIM = """
    WITH chosen AS (
        SELECT id FROM line WHERE visible_at <= now() ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
    )
    UPDATE line SET visible_at = now() + interval '30 s', reads = reads + 1
    FROM chosen WHERE line.id = chosen.id
    RETURNING line.id, line.message
"""
SETTLE = """
    WITH done AS (DELETE FROM line WHERE id = ANY (%s) RETURNING id, reads, enqueued_at, message)
    INSERT INTO archive (id, reads, enqueued_at, message) SELECT * FROM done
"""


def connect() -> psycopg.Connection[Any]:
    return psycopg.connect(DSN, autocommit=True, prepare_threshold=0)


def install() -> str:
    with connect() as connection:
        for table in TABLES:
            connection.execute(table)
    return psycopg.__version__


def send_many(count: int) -> float:
    text = json.dumps(ARGUMENTS)
    with connect() as connection:
        began = time.perf_counter()
        for size in chunks(count):
            connection.execute("INSERT INTO line (message) SELECT unnest(%s::jsonb[])", ([text] * size,))
        connection.execute("NOTIFY line")
        return time.perf_counter() - began


@contextlib.contextmanager
def sender() -> Iterator[Callable[[int], None]]:
    with connect() as connection:

        def send(number: int) -> None:
            connection.execute(SEND, (json.dumps({**ARGUMENTS, "number": number}),))

        send(-1)
        yield send


def noop(**kwargs: Any) -> None:
    counters.hit()


def stamp(number: int, **kwargs: Any) -> None:
    counters.stamp(number)


def work() -> None:
    connection, listening = connect(), connect()
    set_json_loads(orjson.loads, connection)
    cursor = connection.cursor(binary=True)
    listening.execute("LISTEN line")
    while True:
        rows = cursor.execute(CLAIM, (CONCURRENCY,)).fetchall()
        if not rows:
            for _ in listening.notifies(timeout=5, stop_after=1):
                pass
            continue
        for _, message in rows:
            (stamp if "number" in message else noop)(**message)
        cursor.execute(SETTLE, ([row[0] for row in rows],))
