"""Chancy: its async executor with eager polling."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

from chancy import Chancy, Job, Queue, Worker

from tests.benchmarks import counters
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.peers import CONCURRENCY, DSN

quiet = logging.getLogger("quiet")
quiet.setLevel(logging.ERROR)
QUEUE = Queue("default", concurrency=CONCURRENCY, executor=Chancy.Executor.Async, eager_polling=True)


async def noop(**kwargs: Any) -> None:
    counters.hit()


async def stamp(number: int, **kwargs: Any) -> None:
    counters.stamp(number)


def a_job(name: str, **more: Any) -> Any:
    return Job(func=f"tests.benchmarks.peers.chancy.{name}", kwargs={**ARGUMENTS, **more})


def open_app() -> Any:
    return Chancy(DSN, log=quiet)


def install() -> str:
    async def make() -> None:
        async with open_app() as app:
            await app.migrate()
            await app.declare(QUEUE, upsert=True)

    asyncio.run(make())
    return version("chancy")


def send_many(count: int) -> float:
    with open_app() as app:
        began = time.perf_counter()
        for _ in app.sync_push_many([a_job("noop")] * count):
            pass
        return time.perf_counter() - began


@contextlib.contextmanager
def sender() -> Iterator[Callable[[int], None]]:
    with open_app() as app:

        def send(number: int) -> None:
            app.sync_push(a_job("stamp", number=number))

        send(-1)
        yield send


def work() -> None:
    async def run() -> None:
        async with open_app() as app, Worker(app) as worker:
            await worker.wait_for_shutdown()

    asyncio.run(run())
