"""PgQueuer: asyncpg and uvloop, as its own command runs it; async jobs, a batch of 100 (its default is 10)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import asyncpg
import psycopg
import uvloop
from pgqueuer.db import AsyncpgDriver, SyncPsycopgDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries, SyncQueries

from tests.benchmarks import counters
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.peers import CONCURRENCY, DSN, chunks


def install() -> str:
    async def make() -> None:
        connection = await asyncpg.connect(DSN)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    asyncio.run(make())
    return version("pgqueuer")


def queries() -> Any:
    return SyncQueries(SyncPsycopgDriver(psycopg.connect(DSN, autocommit=True)))


def send_many(count: int) -> float:
    queue, payload = queries(), json.dumps(ARGUMENTS).encode()
    began = time.perf_counter()
    for size in chunks(count):
        queue.enqueue(["noop"] * size, [payload] * size, [0] * size)
    return time.perf_counter() - began


@contextlib.contextmanager
def sender() -> Iterator[Callable[[int], None]]:
    queue = queries()

    def send(number: int) -> None:
        queue.enqueue("stamp", json.dumps({**ARGUMENTS, "number": number}).encode())

    send(-1)
    yield send


def work() -> None:
    async def run() -> None:
        manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(DSN))))

        @manager.entrypoint("noop")
        async def noop(job: Any) -> None:
            json.loads(job.payload)
            counters.hit()

        @manager.entrypoint("stamp")
        async def stamp(job: Any) -> None:
            counters.stamp(json.loads(job.payload)["number"])

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
        await manager.run(batch_size=CONCURRENCY)

    uvloop.run(run())
