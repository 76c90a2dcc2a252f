"""What the workers run. Most of it writes down when it began and ended, by the database's clock."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import threading
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone, translation

from django_pgbus import limits_concurrency, task

CREATE = """
    CREATE TABLE IF NOT EXISTS process_test_runs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL,
        event text NOT NULL,
        pid int NOT NULL,
        thread text NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
"""
INSERT = "INSERT INTO process_test_runs (name, event, pid, thread) VALUES (%s::text, %s::text, %s::int, %s::text)"

mood = contextvars.ContextVar("mood", default="calm")
local = threading.local()


def at_once(exception: BaseException, result: Any) -> float:
    return 0.0


def record(name: str, event: str) -> None:
    """Write it down, committed before this returns."""
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [name, event, os.getpid(), threading.current_thread().name])


arecord = sync_to_async(record)


@task
def note(name: str = "note") -> None:
    record(name, "ran")


@task
def nothing(number: int = 0) -> None:
    return None


@task
async def anothing() -> None:
    return None


@task
def naps(name: str, seconds: float) -> None:
    """Sleep, and write down the end only: one statement for many short jobs."""
    time.sleep(seconds)
    record(name, "ran")


@task(backoff=at_once)
def reads(number: int = 0) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return int(cursor.fetchone()[0])


@task(backoff=at_once)
async def areads(name: str) -> None:
    await arecord(name, "ran")


# --- long ones ----------------------------------------------------------------------------------------


@task(takes_context=True, backoff=at_once)
def holds(context: Any, name: str, seconds: float, later: float = 0.0) -> None:
    """Run for `seconds`, in an attempt after the first for `later`."""
    record(name, "began")
    time.sleep(seconds if context.attempt == 1 else later)
    connections.close_all()  # it may have been lost meanwhile
    record(name, "ended")


@task
def ticks(name: str, seconds: float) -> None:
    """Show signs of life all the time, whoever asks to stop."""
    record(name, "began")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        record(name, "lives")
        time.sleep(0.02)
    record(name, "ended")


@limits_concurrency(to=1, key=lambda name, seconds: name, duration=1)
@task(backoff=at_once)
def holds_alone(name: str, seconds: float) -> int:
    """Run for `seconds`; one at a time per name. Returns the process it ran in."""
    record(name, "began")
    time.sleep(seconds)
    connections.close_all()
    record(name, "ended")
    return os.getpid()


@task
async def awaits(name: str, seconds: float, cleans: float = 0.0) -> None:
    await arecord(name, "began")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        await asyncio.sleep(cleans)
        await arecord(name, "cancelled")
        raise
    await arecord(name, "ended")


@task
def names_its_process(name: str, seconds: float) -> int:
    record(name, "began")
    time.sleep(seconds)
    record(name, "ended")
    return os.getpid()


@task
async def anames_its_process(name: str, seconds: float) -> int:
    await arecord(name, "began")
    await asyncio.sleep(seconds)
    await arecord(name, "ended")
    return os.getpid()


@task(max_attempts=1)
async def fails_when_cancelled(name: str) -> None:
    await arecord(name, "began")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        await arecord(name, "cancelled")
        raise ConnectionError("The server went away.") from None


@task(timeout=0.3, max_attempts=1)
def loops_for_ever(name: str) -> None:
    record(name, "began")
    while True:
        time.sleep(0.01)


@task(timeout=0.3, max_attempts=1)
def ignores_its_timeout(name: str) -> None:
    record(name, "began")
    while True:
        with contextlib.suppress(BaseException):
            while True:
                time.sleep(0.01)


@task(timeout=0.3, max_attempts=1)
async def awaits_in_spite_of_its_timeout(name: str) -> None:
    await arecord(name, "began")
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@task(timeout=0.3, max_attempts=1)
async def blocks_the_event_loop(name: str) -> None:
    await arecord(name, "began")
    time.sleep(3600)  # noqa: ASYNC251


@task(transactional=True, takes_context=True, backoff=at_once)
def has_one_effect(context: Any, seconds: float) -> None:
    """Leave one row, whatever happens."""
    record(context.task_result.id, "effect")
    time.sleep(seconds)
    if context.attempt == 1 and int(context.task_result.id) % 7 == 0:
        raise ValueError("the first time")


# --- ends ---------------------------------------------------------------------------------------------


@task(max_attempts=2, backoff=at_once)
def leaves(name: str, code: int) -> None:
    record(name, "began")
    os._exit(code)


@task(takes_context=True)
def forks_and_leaves(context: Any, name: str, seconds: float) -> None:
    """End with the process, once, while a copy of it lives on."""
    if value_of(name, "began"):
        return
    record(name, "began")
    if (copy := os.fork()) == 0:
        time.sleep(seconds)
        os._exit(0)
    record(name, str(copy))
    os._exit(3)


def value_of(name: str, event: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM process_test_runs WHERE name = %s::text AND event = %s::text", [name, event]
        )
        return int(cursor.fetchone()[0])


@task(max_attempts=1)
def exits(kind: str) -> None:
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit}[kind](3)


@task(max_attempts=1)
async def aexits(kind: str) -> None:
    await asyncio.sleep(0)
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[kind](3)


@task(max_attempts=1)
def fails() -> None:
    raise ValueError("no")


# --- what they leave behind ---------------------------------------------------------------------------


@task
def leaks_a_broken_transaction() -> None:
    transaction.atomic().__enter__()
    with contextlib.suppress(Exception), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


@task
def leaks_an_open_transaction() -> None:
    transaction.atomic().__enter__()
    record("leaked", "in atomic")


@task
def leaks_a_transaction_of_sql() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    record("leaked", "after BEGIN")


@task
def turns_autocommit_off() -> None:
    transaction.set_autocommit(False)
    record("leaked", "without autocommit")


@task
def closes_the_socket() -> None:
    connection.ensure_connection()
    os.close(os.dup(connection.connection.fileno()))
    connection.connection.pgconn.finish()


@task
def changes_everything_else() -> None:
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    mood.set("wild")


@task(max_attempts=1)
def looks_around() -> dict[str, Any]:
    record("looks_around", "ran")
    return {
        "language": translation.get_language(),
        "zone": timezone.get_current_timezone_name(),
        "mood": mood.get(),
        "autocommit": connection.get_autocommit(),
        "atomic": connection.in_atomic_block,
        "pid": os.getpid(),
        "thread": threading.current_thread().name,
    }


@task(max_attempts=1)
async def alooks_around() -> dict[str, Any]:
    return {
        "language": translation.get_language(),
        "zone": timezone.get_current_timezone_name(),
        "mood": mood.get(),
        "atomic": await sync_to_async(lambda: connection.in_atomic_block)(),
    }


@task
async def achanges_everything_else() -> None:
    changes_everything_else.func()
    await sync_to_async(leaks_a_broken_transaction.func)()


@task
def counts_logged_queries() -> int:
    """Return how many statements all connections of this process remember."""
    return sum(len(thing.queries_log) for thing in gc.get_objects() if isinstance(thing, BaseDatabaseWrapper))


@task
def names_the_pool() -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = cursor.fetchone()[0]
    return [id(connection.pool), backend]


@task
def grows(megabytes: int) -> None:
    """Use memory that is never given back."""
    held.append(bytearray(os.urandom(1 << 20) * megabytes))


held: list[bytearray] = []


@task
def enqueues_by_sql(left: int) -> None:
    """Put the next one into the line as psql would: nobody is woken."""
    record("chain", "ran")
    if left:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO pgbus_messages (queue, task, payload) VALUES ('default', %s::text, %s::json)",
                ["tests.processes.tasks.enqueues_by_sql", f'{{"args": [{left - 1}], "kwargs": {{}}}}'],
            )


@task(timeout=0.3, max_attempts=2, takes_context=True)
def stops_at_the_second_attempt(context: Any, name: str) -> None:
    record(name, "began")
    while context.attempt == 1:
        with contextlib.suppress(BaseException):
            while True:
                time.sleep(0.01)


@task
def waits_for_all(number: int) -> None:
    """Run until as many have begun, so that they end at the same instant."""
    record("all", "began")
    deadline = time.monotonic() + 20
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute("SELECT count(*) FROM process_test_runs WHERE name = 'all'")
            if cursor.fetchone()[0] >= number:
                return
            time.sleep(0.002)
    raise AssertionError("the others did not come")


@task
def batch_ended(batch: dict[str, Any]) -> None: ...


@task
def batch_succeeded(batch: dict[str, Any]) -> None: ...
