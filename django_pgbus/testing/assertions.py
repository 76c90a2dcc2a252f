"""What was enqueued and waits: as a list, as assertions, and as methods of a TestCase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from asgiref.sync import sync_to_async

from django_pgbus.tasks import results
from django_pgbus.tasks.compat import DEFAULT_TASK_BACKEND_ALIAS, AnyTask, AnyTaskResult, Task
from django_pgbus.tasks.masking import masked
from django_pgbus.tasks.payload import prepare
from django_pgbus.testing import sql
from django_pgbus.testing.events import assert_not_published, assert_published, deliver_published, published
from django_pgbus.testing.inline import run_enqueued
from django_pgbus.testing.streams import consume_stream
from django_pgbus.testing.words import times_of

SHOWN: Final = 10


def enqueued(task: AnyTask | str | None = None) -> list[AnyTaskResult]:
    """
    Return the results of what waits to be run, oldest first: ready, delayed, parked, or to be tried again.

    `task` is a task or its path; None is all.
    """
    path = task.module_path if isinstance(task, Task) else task
    return [results.stored(row, DEFAULT_TASK_BACKEND_ALIAS) for row in sql.WAITING.rows(task=path)]


def assert_enqueued(
    task: AnyTask | str,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    count: int | None = None,
) -> list[AnyTaskResult]:
    """
    Assert that a task waits to be run, and return the results of those that match.

    `args` and `kwargs` are compared as the worker will see them (tuples as lists); what is None may be anything. `count`
    is how many have to match; None is one or more.
    """
    found = _matching(task, args, kwargs, queue)
    if len(found) == count or (count is None and found):
        return found
    raise AssertionError(
        f"{_described(task, args, kwargs, queue)} is enqueued {times_of(len(found))}"
        + ("." if count is None else f", not {times_of(count)}.")
        + _waiting()
    )


def assert_not_enqueued(
    task: AnyTask | str,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
) -> None:
    """Assert that a task does not wait to be run; the rest as in assert_enqueued()."""
    if found := _matching(task, args, kwargs, queue):
        raise AssertionError(
            f"{_described(task, args, kwargs, queue)} is enqueued {times_of(len(found))}." + _waiting()
        )


class PgbusTestMixin:
    """The functions of this package as methods, for a TestCase or a TransactionTestCase."""

    run_enqueued = staticmethod(run_enqueued)
    enqueued = staticmethod(enqueued)
    assertEnqueued = staticmethod(assert_enqueued)  # noqa: N815  (as unittest spells it)
    assertNotEnqueued = staticmethod(assert_not_enqueued)  # noqa: N815
    deliver_published = staticmethod(deliver_published)
    published = staticmethod(published)
    assertPublished = staticmethod(assert_published)  # noqa: N815
    assertNotPublished = staticmethod(assert_not_published)  # noqa: N815
    consume_stream = staticmethod(consume_stream)


aenqueued = sync_to_async(enqueued, thread_sensitive=True)
aassert_enqueued = sync_to_async(assert_enqueued, thread_sensitive=True)
aassert_not_enqueued = sync_to_async(assert_not_enqueued, thread_sensitive=True)


def _matching(
    task: AnyTask | str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, queue: str | None
) -> list[AnyTaskResult]:
    wanted = prepare(args or (), kwargs or {})
    return [
        result
        for result in enqueued(task)
        if (args is None or result.args == wanted.args)
        and (kwargs is None or result.kwargs == wanted.kwargs)
        and (queue is None or result.task.queue_name == queue)
    ]


def _described(
    task: AnyTask | str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, queue: str | None
) -> str:
    parts = [
        f"{name}={value!r}"
        for name, value in (("args", args), ("kwargs", kwargs), ("queue", queue))
        if value is not None
    ]
    return f"{task.module_path if isinstance(task, Task) else task}{' with ' if parts else ''}{', '.join(parts)}"


def _waiting() -> str:
    """Return what waits, as lines below a message; sensitive arguments are masked."""
    waiting = enqueued()
    if not waiting:
        return " Nothing waits."
    lines = [_line(result) for result in waiting[:SHOWN]]
    if len(waiting) > SHOWN:
        lines.append(f"and {len(waiting) - SHOWN} more")
    return "".join(f"\n    {line}" for line in ["Waiting:", *lines])


def _line(result: AnyTaskResult) -> str:
    args, kwargs = masked(result.task, result.args, result.kwargs)
    given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{result.task.module_path}({', '.join(given)}) in queue {result.task.queue_name!r}"
