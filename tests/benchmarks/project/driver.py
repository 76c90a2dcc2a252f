"""Our side, in the shape of `peers/__init__.py`: what is sent goes through the public API, what works is `runworker`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.project.settings"
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from django_pgbus import Batch, enqueue_many  # noqa: E402
from tests.benchmarks.payload import ARGUMENTS  # noqa: E402
from tests.benchmarks.project import tasks  # noqa: E402

CHUNK = 1000


def install() -> str:
    """Migrate, and return the version of Django."""
    call_command("migrate", verbosity=0)
    return django.get_version()


def send_many(count: int) -> float:
    """Enqueue no-ops by the thousand and return how many seconds it took."""
    began = time.perf_counter()
    for start in range(0, count, CHUNK):
        enqueue_many(tasks.noop, [((), ARGUMENTS)] * min(CHUNK, count - start))
    return time.perf_counter() - began


def send_batch(count: int) -> float:
    """Enqueue no-ops by the thousand as members of one batch and return how many seconds it took."""
    with Batch("benchmark"):
        return send_many(count)


def send_numbered(count: int) -> float:
    """Enqueue tasks that mark their number, in one call, and return how many seconds it took."""
    began = time.perf_counter()
    for start in range(0, count, CHUNK):
        enqueue_many(tasks.mark, [((n,), ARGUMENTS) for n in range(start, min(start + CHUNK, count))])
    return time.perf_counter() - began


@contextlib.contextmanager
def sender() -> Iterator[Callable[[int], float]]:
    """Return a function that enqueues one task and returns when its INSERT was committed."""
    committed = 0.0

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal committed
        result = execute(sql, params, many, context)
        if "INSERT INTO pgbus_messages" in sql:
            committed = time.time()  # autocommit: the reply is the commit; the wake-up comes after it
        return result

    def send(number: int) -> float:
        tasks.stamp.enqueue(number, **ARGUMENTS)
        return committed

    with connection.execute_wrapper(note):
        send(-1)  # the first one connects
        yield send


def send_delayed(count: int, first: float, gap: float) -> list[tuple[int, float]]:
    """Enqueue tasks due one after the other, and return when each is due."""
    now = timezone.now()
    due = [now + timedelta(seconds=first + number * gap) for number in range(count)]
    for number, moment in enumerate(due):
        tasks.stamp.using(run_after=moment).enqueue(number, **ARGUMENTS)
    return [(number, moment.timestamp()) for number, moment in enumerate(due)]


def send_unheard(count: int, gap: float) -> list[tuple[int, float]]:
    """Enqueue tasks whose wake-up is lost, and return when each was committed."""
    rows = []
    with sender() as send, mock.patch("django_pgbus.queues.wake.notify"):
        for number in range(count):
            time.sleep(gap)
            rows.append((number, send(number)))
    return rows


def work(*options: str) -> None:
    """Become `manage.py runworker`."""
    os.execv(sys.executable, [sys.executable, "-m", "django", "runworker", *options])
