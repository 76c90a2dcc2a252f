"""Many clients that enqueue at once, each a process with a connection of its own, as web servers do."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any
from unittest import mock

from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.project import driver, tasks

assert driver  # has set Django up


def rate(clients: int, seconds: float, wake: int) -> dict[str, float]:
    """Let clients enqueue for so many seconds and return commits a second; without `wake`, no worker is told."""
    forked = multiprocessing.get_context("fork")  # before any connection is open
    barrier = forked.Barrier(clients)
    results = forked.Queue()
    processes = [forked.Process(target=_client, args=(barrier, results, seconds, wake)) for _ in range(clients)]
    for process in processes:
        process.start()
    rows = [results.get(timeout=seconds + 60) for _ in processes]
    for process in processes:
        process.join()
    return {"rate": sum(count / took for count, took in rows), "sent": sum(count for count, _ in rows) + clients}


def _client(barrier: Any, results: Any, seconds: float, wake: int) -> None:
    if wake:
        _enqueue(barrier, results, seconds)
    else:
        with mock.patch("django_pgbus.queues.wake.notify"):
            _enqueue(barrier, results, seconds)


def _enqueue(barrier: Any, results: Any, seconds: float) -> None:
    tasks.noop.enqueue(**ARGUMENTS)  # connects, announces
    barrier.wait()
    began = time.perf_counter()
    count = 0
    while (took := time.perf_counter() - began) < seconds:
        tasks.noop.enqueue(**ARGUMENTS)
        count += 1
    results.put((count, took))
