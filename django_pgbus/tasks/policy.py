"""What a user declares about a task, checked where it is declared."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django_pgbus.concurrency import policy as concurrency
from django_pgbus.concurrency.policy import Limit
from django_pgbus.conf import EVENT_QUEUE, get_settings
from django_pgbus.exceptions import InvalidHandler, InvalidQueue
from django_pgbus.queues.queue import check_name
from django_pgbus.tasks.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, AnyTask, InvalidTask
from django_pgbus.uniqueness import policy as uniqueness
from django_pgbus.uniqueness.policy import Unique

# Where a function keeps what was declared about it before it became a task.
NOTES: Final = "_pgbus_declared"

# The second argument is the TaskResult of a task, the Event of a handler.
Backoff = Callable[[BaseException, Any], float | timedelta | None]


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
        checked = check_name(name)
    except InvalidQueue as error:
        raise InvalidTaskQueue(str(error)) from None
    if checked.startswith(EVENT_QUEUE):
        raise InvalidTaskQueue(f"The queue name {checked[:50]!r} begins with {EVENT_QUEUE}, as queues of events do.")
    return checked


def checked_priority(value: object) -> int:
    """Return the priority, or raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not TASK_MIN_PRIORITY <= value <= TASK_MAX_PRIORITY:
        raise ValueError(f"priority is a whole number from {TASK_MIN_PRIORITY} to {TASK_MAX_PRIORITY}, not {value!r}.")
    return value


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


def checked_backoff(value: object, second: str = "task_result") -> Backoff | None:
    """Return the function, or None for the default backoff; `second` is what it is given beside the exception."""
    if value is None:
        return None
    wanted = f"backoff is a function (exception, {second}) -> seconds, timedelta, or None to give up"
    if not callable(value):
        raise InvalidTask(f"{wanted}, not {value!r}; for a constant write `lambda exception, {second}: 10`.")
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


def checked_payload_keys(value: object) -> tuple[str, ...]:
    """Return the keys of a payload that nobody may read, or raise InvalidHandler."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidHandler(f"sensitive is a tuple of keys of the payload, as in ({str(value)!r},), not {value!r}.")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str):
            raise InvalidHandler(f"sensitive holds keys of the payload, not {name!r}.")
    return names


def checked_unique(
    value: object, func: Callable[..., Any] | None = None, *, takes_context: bool = False
) -> Unique | None:
    """Return what `unique` declares, or raise InvalidTask saying what to write; `func` is the task's, once it is known."""
    if value is None:
        return None
    if not isinstance(value, Unique):
        raise InvalidTask(f'unique is a Unique, as in unique=Unique(key=lambda id: f"order-{{id}}"), not {value!r}.')
    if problem := uniqueness.problem_of(value):
        raise InvalidTask(f"ensures_uniqueness: {problem}.")
    if value.key is None and func is not None and (arguments := _arguments(func, takes_context=takes_context)):
        raise InvalidTask(
            f"ensures_uniqueness on {func.__name__}() has no key, but the task takes arguments: jobs with different "
            f"arguments would lock each other out. Say what makes two jobs the same, as in "
            f'key=lambda {", ".join(arguments)}: f"{func.__name__}-{{{arguments[0].lstrip("*")}}}".'
        )
    return value


def checked_limit(value: object) -> Limit | None:
    """Return what `limit` declares, or raise InvalidTask saying what is wrong with it."""
    if value is None:
        return None
    if not isinstance(value, Limit):
        raise InvalidTask(f"limit is Limit(to=...), as in limit=Limit(to=4), not {value!r}.")
    if problem := concurrency.problem_of(value):
        raise InvalidTask(f"limits_concurrency: {problem}.")
    return value


def _arguments(func: Callable[..., Any], *, takes_context: bool) -> list[str]:
    parameters = list(inspect.signature(func).parameters.values())[1 if takes_context else 0 :]
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(parameter.kind, "") + parameter.name for parameter in parameters]
