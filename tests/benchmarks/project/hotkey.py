"""Clients that enqueue limited tasks inside transactions, and what many parked tasks cost."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from django.db import connection, transaction

from django_pgbus import concurrency
from django_pgbus.tasks import lifecycle
from tests.benchmarks.figures import median, percentile
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.project import driver, tasks

assert driver  # has set Django up
LENGTH = 0.020  # seconds that a transaction of a client lasts
PAUSE = 0.005  # between two calls of the client of another key
CALLS = 200
PROMOTIONS = 50
SHALLOW = 100
PARK = """
    INSERT INTO pgbus_blocked_executions (queue, priority, task, backend, payload, constraints, waits_for, key, semaphore)
    SELECT queue, priority, task, backend, payload, constraints, waits_for, key, semaphore
    FROM pgbus_blocked_executions, generate_series(1, %s)
    WHERE id = %s
"""


def rates(clients: int, seconds: float, hot: int) -> dict[str, float]:
    """
    Let clients enqueue inside transactions, all for one key or without a limit, beside one client of another key.

    Returns commits a second of both, how long a call took, and how many tasks were sent.
    """
    forked = multiprocessing.get_context("fork")  # before any connection is open
    barrier, results = forked.Barrier(clients + 1), forked.Queue()
    arguments = (barrier, results, seconds)
    processes = [forked.Process(target=_client, args=(*arguments, hot)) for _ in range(clients)]
    processes.append(forked.Process(target=_other, args=arguments))
    for process in processes:
        process.start()
    rows = [results.get(timeout=seconds + 60) for _ in processes]
    for process in processes:
        process.join()
    ours, (other,) = [row for row in rows if not row["other"]], [row for row in rows if row["other"]]
    calls = [call for row in ours for call in row["calls"]]
    return {
        "rate": sum(len(row["calls"]) / row["took"] for row in ours),
        "p99_ms": 1000 * (percentile(calls, 99) or 0.0),
        "other_rate": len(other["calls"]) / other["took"],
        "other_p99_ms": 1000 * (percentile(other["calls"], 99) or 0.0),
        "sent": len(calls) + len(other["calls"]),
    }


def _client(barrier: Any, results: Any, seconds: float, hot: int) -> None:
    def call() -> None:
        with transaction.atomic():
            if hot:
                tasks.limited.enqueue("hot", **ARGUMENTS)
            else:
                tasks.noop.enqueue(**ARGUMENTS)
            time.sleep(LENGTH)

    results.put({"other": False, **_repeated(call, barrier, seconds, 0.0)})


def _other(barrier: Any, results: Any, seconds: float) -> None:
    results.put(
        {"other": True, **_repeated(lambda: tasks.limited.enqueue("other", **ARGUMENTS), barrier, seconds, PAUSE)}
    )


def _repeated(call: Any, barrier: Any, seconds: float, pause: float) -> dict[str, Any]:
    connection.ensure_connection()
    barrier.wait()
    calls = []
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        call()
        calls.append(time.perf_counter() - now)
        time.sleep(pause)
    return {"calls": calls, "took": time.perf_counter() - began}


def parked(rows: int) -> dict[str, float]:
    """Return what one step costs with so many tasks parked behind a key, and with a hundred, in milliseconds."""
    from django_pgbus.models import BlockedExecution, Message, Slot

    found: dict[str, float] = {}
    for name, count in (("shallow", SHALLOW), ("deep", rows)):
        _fill(name, count)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    wrong = 0
    for name in ("shallow", "deep"):
        found[f"enqueue_{name}_ms"] = _milliseconds(
            [_timed(lambda: tasks.limited.enqueue(name, **ARGUMENTS)) for _ in range(CALLS)]  # noqa: B023
        )
        times = []
        for _ in range(PROMOTIONS):
            slot = Slot.objects.filter(key=name).order_by("message_id").first()
            assert slot
            Message.objects.filter(id=slot.message_id).delete()
            slot.delete()
            best = BlockedExecution.objects.filter(key=name).order_by("id").values_list("id", flat=True)[0]
            times.append(_timed(lambda: lifecycle.let_in([name])))  # noqa: B023
            wrong += not Slot.objects.filter(message_id=best).exists()
        found[f"promotion_{name}_ms"] = _milliseconds(times)
    waiting = BlockedExecution.objects.filter(key="deep").count()
    found["discard_parked_s"] = _timed(lambda: wrong_by(waiting))
    return {**found, "discarded": waiting, "wrong": wrong + BlockedExecution.objects.filter(key="deep").count()}


def wrong_by(waiting: int) -> None:
    """Discard what is parked; as many as there were."""
    assert concurrency.discard_parked("deep") == waiting


def _fill(key: str, rows: int) -> None:
    for _ in range(5):  # four are let in
        id = tasks.limited.enqueue(key, **ARGUMENTS).id
    with connection.cursor() as cursor:
        cursor.execute(PARK, [rows - 1, int(id)])


def _timed(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _milliseconds(times: list[float]) -> float:
    return 1000 * (median(times) or 0.0)
