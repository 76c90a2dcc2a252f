"""
`task`: Django's decorator with our options, on every supported Django.

    @task(queue_name="imports", max_attempts=8, timeout=timedelta(minutes=5), sensitive=("token",))
    def import_order(order_id, token): ...

Django's own `@task` makes the same kind of task where it passes options on (6.1 and the backport).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from django_pgbus.concurrency.policy import Limit
from django_pgbus.tasks.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    AnyTask,
    InvalidTask,
    Task,
    TaskContext,
    task_backends,
)
from django_pgbus.tasks.lookup import find_task
from django_pgbus.tasks.policy import (
    NOTES,
    Backoff,
    checked_backoff,
    checked_limit,
    checked_max_attempts,
    checked_sensitive,
    checked_timeout,
    checked_transactional,
    checked_unique,
)
from django_pgbus.uniqueness.policy import Unique

P = ParamSpec("P")
R = TypeVar("R")

# Paths of the transactional tasks declared so far, for the system check (semantics 7.1).
transactional_paths: set[str] = set()
# The limits declared so far, by the path of their task, for the system check (semantics 4.2).
limits: dict[str, Limit] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PgbusTask(AnyTask):
    """
    A task with a policy.

    `max_attempts` counts runs (None: the setting's); `backoff(exception, task_result)` returns the wait before the next
    one, or None to give up; `timeout` is in seconds; `transactional` runs it inside the transaction that settles it;
    `sensitive` names arguments that nobody may read; `unique` and `limit` are what `ensures_uniqueness` and
    `limits_concurrency` declare. `using()` changes none of these.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout: float | timedelta | None = None
    transactional: bool = False
    sensitive: Iterable[str] = ()
    unique: Unique | None = None
    limit: Limit | None = None

    def __post_init__(self) -> None:
        # By name: the class that slots=True makes is another one than super() would look for.
        Task.__post_init__(self)
        notes = getattr(self.func, NOTES, {})
        for option, declared in notes.items():
            if getattr(self, option) not in (None, declared):
                raise InvalidTask(
                    f"{self.func.__name__}() declares {option} twice: in task() and by a decorator below it."
                )
        for name, value in {
            "max_attempts": checked_max_attempts(self.max_attempts),
            "backoff": checked_backoff(self.backoff),
            "timeout": checked_timeout(self.timeout),
            "transactional": checked_transactional(self.transactional, self.func),
            "sensitive": checked_sensitive(self.sensitive, self.func),
            "unique": checked_unique(self.unique or notes.get("unique"), self.func, takes_context=self.takes_context),
            "limit": checked_limit(self.limit or notes.get("limit")),
        }.items():
            object.__setattr__(self, name, value)
        if self.transactional:
            transactional_paths.add(self.module_path)
        if self.limit is not None:
            limits[self.module_path] = self.limit

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by path, as Django 6.1 does: the function itself is hidden behind the task of its name."""
        changes = {name: getattr(self, name) for name in ("priority", "backend", "queue_name", "run_after")}
        return _found_again, (self.module_path, changes)

    def __copy__(self) -> PgbusTask:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PgbusTask:
        """Return the task itself, which nobody can change."""
        return self


OPTIONS = ("priority", "queue_name", "backend", "takes_context", *PgbusTask.__annotations__)


def unchecked(kind: type[AnyTask], **values: Any) -> AnyTask:
    """Return a task that is not validated: what was stored may no longer be allowed by the settings."""
    task = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(task, name, value)
    return task


def changed(task: AnyTask, **changes: Any) -> AnyTask:
    """Return a copy of a task with other values, not validated."""
    return unchecked(type(task), **{field.name: getattr(task, field.name) for field in fields(task)} | changes)


def _found_again(path: str, changes: dict[str, Any]) -> AnyTask:
    return changed(find_task(path), **changes)


@overload
def task(function: Callable[P, R]) -> Task[P, R]: ...


@overload
def task(
    *,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    takes_context: Literal[True],
    max_attempts: int | None = ...,
    backoff: Backoff | None = ...,
    timeout: float | timedelta | None = ...,
    transactional: bool = ...,
    sensitive: Iterable[str] = ...,
    unique: Unique | None = ...,
    limit: Limit | None = ...,
) -> Callable[[Callable[Concatenate[TaskContext[Any, Any], P], R]], Task[P, R]]: ...


@overload
def task(
    *,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    takes_context: Literal[False] = ...,
    max_attempts: int | None = ...,
    backoff: Backoff | None = ...,
    timeout: float | timedelta | None = ...,
    transactional: bool = ...,
    sensitive: Iterable[str] = ...,
    unique: Unique | None = ...,
    limit: Limit | None = ...,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(
    function: Callable[..., Any] | None = None,
    *,
    priority: int = DEFAULT_TASK_PRIORITY,
    queue_name: str = DEFAULT_TASK_QUEUE_NAME,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    **options: Any,
) -> Any:
    """
    Make a function a task.

    `max_attempts`, `backoff`, `timeout`, `transactional`, `sensitive`, `unique` and `limit` as `PgbusTask` says, the rest
    as in Django.
    Under another backend (in tests, say) the options are kept and have no effect.
    """
    if unknown := [name for name in options if name not in OPTIONS]:
        raise TypeError(_unknown(unknown[0]))
    if isinstance(function, str):
        raise TypeError(f"task() takes its options by name, as in task(queue_name={function!r}).")

    def declare(func: Callable[..., Any]) -> AnyTask:
        kind = task_backends[backend].task_class
        return (kind if issubclass(kind, PgbusTask) else PgbusTask)(
            func=func,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            run_after=None,
            takes_context=takes_context,
            **options,
        )

    return declare if function is None else declare(function)


def _unknown(name: str) -> str:
    if name == "run_after":
        return "run_after belongs to one call, not to the task: write .using(run_after=...).enqueue(...)."
    near = difflib.get_close_matches(name, OPTIONS, n=1)
    return f"task() has no option {name!r}. " + (
        f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(OPTIONS)}."
    )
