"""Procrastinate: its async worker on psycopg, async tasks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import procrastinate as library

from tests.benchmarks import counters
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.peers import CONCURRENCY, DSN, chunks

app = library.App(connector=library.PsycopgConnector(conninfo=DSN, min_size=2, max_size=max(4, min(CONCURRENCY, 20))))


@app.task(name="noop")
async def noop(**kwargs: Any) -> None:
    counters.hit()


@app.task(name="stamp")
async def stamp(number: int, **kwargs: Any) -> None:
    counters.stamp(number)


def install() -> str:
    async def make() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    asyncio.run(make())
    return version("procrastinate")


@contextlib.contextmanager
def sync_app() -> Iterator[Any]:
    connector = library.SyncPsycopgConnector(conninfo=DSN, min_size=1, max_size=2)
    with app.replace_connector(connector) as replaced, replaced.open():
        yield replaced


def send_many(count: int) -> float:
    with sync_app() as opened:
        task = opened.tasks["noop"]
        began = time.perf_counter()
        for size in chunks(count):
            task.batch_defer(*[ARGUMENTS] * size)
        return time.perf_counter() - began


@contextlib.contextmanager
def sender() -> Iterator[Callable[[int], None]]:
    with sync_app() as opened:
        task = opened.tasks["stamp"]

        def send(number: int) -> None:
            task.defer(number=number, **ARGUMENTS)

        send(-1)
        yield send


def work() -> None:
    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY, wait=True, listen_notify=True)

    asyncio.run(run())
