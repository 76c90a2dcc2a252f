"""Oban for Python, the open source one, on uvloop as its own command runs it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from typing import Any

import uvloop
from oban import Oban
from oban.decorators import worker
from oban.schema import install as make_tables
from psycopg_pool import AsyncConnectionPool

from tests.benchmarks import counters
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.peers import CONCURRENCY, DSN, chunks


@worker(queue="default")
class Noop:
    async def process(self, job: Any) -> None:
        counters.hit()


@worker(queue="default")
class Stamp:
    async def process(self, job: Any) -> None:
        counters.stamp(job.args["number"])


async def open_pool() -> Any:
    pool = AsyncConnectionPool(DSN, min_size=1, max_size=10, open=False)
    await pool.open()
    return pool


def install() -> str:
    async def make() -> None:
        pool = await open_pool()
        await make_tables(pool)
        await pool.close()

    uvloop.run(make())
    return version("oban")


def send_many(count: int) -> float:
    async def send(oban: Any) -> float:
        began = time.perf_counter()
        for size in chunks(count):
            await oban.enqueue_many([Noop.new(ARGUMENTS) for _ in range(size)])
        return time.perf_counter() - began

    return uvloop.run(_with_oban(send))


async def _with_oban(body: Callable[[Any], Awaitable[float]]) -> float:
    pool = await open_pool()
    try:
        return await body(Oban(pool=pool))
    finally:
        await pool.close()


@contextlib.contextmanager
def sender() -> Iterator[Callable[[int], None]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pool = runner.run(open_pool())
        oban = Oban(pool=pool)

        def send(number: int) -> None:
            runner.run(_send(oban, number))

        send(-1)
        yield send
        runner.run(pool.close())


async def _send(oban: Any, number: int) -> None:
    await oban.enqueue(Stamp.new({**ARGUMENTS, "number": number}))


def work() -> None:
    async def run() -> None:
        pool = await open_pool()
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with Oban(pool=pool, queues={"default": CONCURRENCY}):
            await stop.wait()
        await pool.close()

    uvloop.run(run())
