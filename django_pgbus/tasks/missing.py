"""
A stand-in for a task whose code is gone, renamed, or not deployed here yet.

Its result can still be read and shown: path, queue and arguments are those that were stored. It cannot be enqueued, and
calling it raises ImportError.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django_pgbus.tasks.compat import AnyTask
from django_pgbus.tasks.task import PgbusTask, unchecked


def missing_task(path: str, *, priority: int, backend: str, queue_name: str) -> AnyTask:
    """Return a stand-in for the task at `path`."""
    return unchecked(
        PgbusTask,
        func=_function(path),
        priority=priority,
        backend=backend,
        queue_name=queue_name,
        run_after=None,
        takes_context=False,
        max_attempts=None,
        backoff=None,
        timeout=None,
        transactional=False,
        sensitive=(),
        unique=None,
        limit=None,
    )


def is_missing(task: AnyTask) -> bool:
    """Return whether a task is only a stand-in."""
    return hasattr(task.func, "pgbus_missing")


@lru_cache(maxsize=256)  # two results of one task name one function, so that they compare equal
def _function(path: str) -> Callable[..., Any]:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise ImportError(f"The task {path} cannot be imported.")

    missing.__module__, _, missing.__name__ = path.rpartition(".")
    missing.__qualname__ = missing.__name__
    missing.pgbus_missing = True  # type: ignore[attr-defined]
    return missing
