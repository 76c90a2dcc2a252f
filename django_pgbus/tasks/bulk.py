"""One task, many times, in one go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asgiref.sync import sync_to_async

from django_pgbus.exceptions import ConcurrencyLimitExceeded, JobNotUnique
from django_pgbus.tasks.backend import PgbusBackend
from django_pgbus.tasks.compat import AnyTask, AnyTaskResult

Outcome = AnyTaskResult | JobNotUnique | ConcurrencyLimitExceeded
Rows = Iterable[tuple[Sequence[Any], Mapping[str, Any]]]


def enqueue_many(task: AnyTask, rows: Rows) -> list[Outcome]:
    """
    Enqueue a task once for each (args, kwargs), and return the results in that order.

    All or none: one statement for a thousand rows, in the caller's transaction. A row that cannot be stored raises
    InvalidPayload naming row and argument before any SQL. Each row of a task that is unique or limited has an outcome
    of its own: JobNotUnique or ConcurrencyLimitExceeded stands in the place of its result where a single enqueue would
    raise it. `task_enqueued` is sent for each that is stored. Other backends, in tests say, get the rows one by one.
    """
    backend = task.get_backend()
    if isinstance(backend, PgbusBackend):
        return backend.enqueue_many(task, rows)
    return [backend.enqueue(task, list(args), dict(kwargs)) for args, kwargs in rows]


async def aenqueue_many(task: AnyTask, rows: Rows) -> list[Outcome]:
    """See enqueue_many()."""
    return await sync_to_async(enqueue_many, thread_sensitive=True)(task, rows)
