"""What a user declares about a task, checked where it is declared."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django_pgbus.conf import get_settings
from django_pgbus.exceptions import InvalidQueue
from django_pgbus.queues.queue import check_name
from django_pgbus.tasks.compat import AnyTask, AnyTaskResult, InvalidTask

Backoff = Callable[[BaseException, AnyTaskResult], float | timedelta | None]


class InvalidTaskQueue(InvalidQueue, InvalidTask):
    """The task names a queue that cannot be used; Django's name for it and ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a task is to be run. `timeout` is in seconds; `max_attempts` counts runs, the first included."""

    max_attempts: int
    backoff: Backoff | None = None
    timeout: float | None = None
    transactional: bool = False
    sensitive: tuple[str, ...] = ()


def policy_of(task: AnyTask) -> Policy:
    """Return the policy in force for a task; a task made by Django's own decorator may declare nothing."""
    return Policy(
        max_attempts=getattr(task, "max_attempts", None) or get_settings().MAX_ATTEMPTS,
        backoff=getattr(task, "backoff", None),
        timeout=getattr(task, "timeout", None),
        transactional=getattr(task, "transactional", False),
        sensitive=getattr(task, "sensitive", ()),
    )


def checked_queue(name: object) -> str:
    """Return the name of a queue, or raise InvalidTaskQueue saying what is wrong with it."""
    try:
        return check_name(name)
    except InvalidQueue as error:
        raise InvalidTaskQueue(str(error)) from None


def checked_max_attempts(value: object) -> int | None:
    """Return the number of runs, or None for the setting's."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise InvalidTask(f"max_attempts is a whole number from 1 (the runs in all), not {value!r}.")
    return value


def checked_timeout(value: object) -> float | None:
    """Return the seconds a run may take, or None for no limit."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e9:
        raise InvalidTask(f"timeout is a number of seconds above 0 or a timedelta, not {value!r}.")
    return float(seconds)


def checked_backoff(value: object) -> Backoff | None:
    """Return the function, or None for the default backoff."""
    if value is None:
        return None
    wanted = "backoff is a function (exception, task_result) -> seconds, timedelta, or None to give up"
    if not callable(value):
        raise InvalidTask(f"{wanted}, not {value!r}; for a constant write `lambda exception, task_result: 10`.")
    if inspect.iscoroutinefunction(value):
        raise InvalidTask(f"{wanted}; an async function cannot be asked.")
    try:
        inspect.signature(value).bind(None, None)
    except TypeError as error:
        raise InvalidTask(f"{wanted}; {getattr(value, '__name__', value)!r} cannot be called so: {error}.") from None
    except ValueError:  # a built-in without a signature
        pass
    return value


def checked_transactional(value: object, func: Callable[..., Any]) -> bool:
    """Return whether the task runs inside the transaction that settles it."""
    if not isinstance(value, bool):
        raise InvalidTask(f"transactional is True or False, not {value!r}.")
    if value and inspect.iscoroutinefunction(func):
        raise InvalidTask("An async function cannot be transactional: Django's transactions are synchronous.")
    return value


def checked_sensitive(value: object, func: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments to mask."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidTask(f"sensitive is a tuple of names of arguments, as in ({str(value)!r},), not {value!r}.")
    names = tuple(value)
    parameters = inspect.signature(func).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in names:
        if not isinstance(name, str):
            raise InvalidTask(f"sensitive holds names of arguments, not {name!r}.")
        if name not in parameters and not takes_any:
            near = difflib.get_close_matches(name, parameters, n=1)
            raise InvalidTask(
                f"sensitive names {name!r}, which {func.__name__}() does not take."
                + (f" Did you mean {near[0]!r}?" if near else "")
            )
    return names
