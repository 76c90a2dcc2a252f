"""
Celery with Redis as its broker: prefork, one process that runs tasks; no result backend.

As its guide to optimizing has it for many short tasks: 64 messages fetched ahead, rate limits off, no gossip, no mingle, no
events. It acknowledges before it runs a task, which is its default and the faster way.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, Final

from celery import Celery

from tests.benchmarks import counters
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.peers import CONCURRENCY, DSN

POOL: Final = os.environ.get("BENCH_CELERY_POOL", "prefork")
BULK: Final = False  # it has no call that sends many

app = Celery("bench", broker=DSN)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    worker_disable_rate_limits=True,
    worker_hijack_root_logger=False,
    task_acks_late="BENCH_CELERY_LATE" in os.environ,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(**kwargs: Any) -> None:
    counters.hit()


@app.task(name="stamp")
def stamp(number: int, **kwargs: Any) -> None:
    counters.stamp(number)


def install() -> str:
    return version("celery")


def send_many(count: int) -> float:
    noop.delay(**ARGUMENTS)
    began = time.perf_counter()
    for _ in range(count - 1):
        noop.delay(**ARGUMENTS)
    return time.perf_counter() - began


@contextlib.contextmanager
def sender() -> Iterator[Callable[[int], None]]:
    def send(number: int) -> None:
        stamp.delay(number=number, **ARGUMENTS)

    send(-1)
    yield send


def work() -> None:
    quiet = ("--loglevel", "CRITICAL", "--without-gossip", "--without-mingle", "--without-heartbeat")
    app.worker_main(["worker", "--pool", POOL, "--concurrency", str(CONCURRENCY), *quiet])
