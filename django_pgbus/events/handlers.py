"""
`subscribe`: what makes a function, or a class with `handle`, a handler of events.

    @subscribe("orders.#", idempotent=True)
    def audit(event): ...

    @subscribe("orders.created", "orders.paid", queue_name="mail", max_attempts=8, timeout=30)
    class Confirm:
        async def handle(self, event): ...

The function or class stays what it is and can be called in tests. Modules named `handlers` or `streams` in the installed
apps are imported when a worker starts and after `migrate`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from django_pgbus.conf import EVENT_QUEUE
from django_pgbus.events.topics import compiled
from django_pgbus.exceptions import InvalidHandler, InvalidQueue
from django_pgbus.queues.queue import check_name
from django_pgbus.tasks.compat import InvalidTask, Task
from django_pgbus.tasks.discovery import autodiscover as autodiscover  # with what else declares itself
from django_pgbus.tasks.lookup import imported
from django_pgbus.tasks.policy import (
    Backoff,
    Policy,
    checked_backoff,
    checked_max_attempts,
    checked_payload_keys,
    checked_priority,
    checked_timeout,
    checked_transactional,
)
from django_pgbus.tasks.task import transactional_paths

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_QUEUE: Final = "events"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A handler as it was declared: `target` is the function or class, `queue` as it is stored, with its @."""

    path: str
    target: Callable[..., Any]
    patterns: tuple[str, ...]
    queue: str
    priority: int
    idempotent: bool
    policy: Policy

    @property
    def is_async(self) -> bool:
        """Return whether it is to be awaited."""
        return inspect.iscoroutinefunction(_function(self.target))


# What has been declared in this process, by path.
handlers: dict[str, Handler] = {}


def subscribe(
    *patterns: str,
    queue_name: str = DEFAULT_QUEUE,
    priority: int = 0,
    idempotent: bool = False,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    timeout: float | timedelta | None = None,
    transactional: bool = False,
    sensitive: Iterable[str] = (),
) -> Callable[[F], F]:
    """
    Make a function, or a class with a method `handle`, a handler of the events whose topic matches one of `patterns`.

    It gets one `Event`, from a queue of events of its own or shared (`queue_name`; shown as `@name`). With `idempotent` at
    most one run of it counts for each event. `max_attempts`, `timeout` and `transactional` as for tasks;
    `backoff(exception, event)` returns the wait before the next attempt, or None to give up; `sensitive` names keys of
    the payload that nobody may read. Raises InvalidTopic or InvalidHandler.
    """
    if not patterns:
        raise InvalidHandler('subscribe() needs at least one pattern of topics, as in @subscribe("orders.#").')
    if callable(patterns[0]):
        raise InvalidHandler('subscribe() needs parentheses and a pattern: @subscribe("orders.#").')
    texts = tuple(dict.fromkeys(compiled(pattern).text for pattern in patterns))

    def declare(target: F) -> F:
        path = _checked_path(target)
        function = _function(target)
        try:
            policy = Policy(
                max_attempts=checked_max_attempts(max_attempts) or 0,
                backoff=checked_backoff(backoff, "event"),
                timeout=checked_timeout(timeout),
                transactional=checked_transactional(transactional, function),
                sensitive=checked_payload_keys(sensitive),
            )
        except InvalidTask as error:
            raise InvalidHandler(f"{path}: {error}") from None
        handler = Handler(
            path=path,
            target=target,
            patterns=texts,
            queue=event_queue(queue_name),
            priority=_checked_priority(priority),
            idempotent=_checked_flag("idempotent", idempotent),
            policy=policy,
        )
        before = handlers.get(path)
        if before is not None and inspect.unwrap(target, stop=lambda inner: inner is before.target) is before.target:
            raise InvalidHandler(
                f"{path} is subscribed twice. Give one subscribe() all its patterns, separated by commas."
            )
        handlers[path] = handler
        if policy.transactional:
            transactional_paths.add(path)
        return target

    return declare


def called(target: Any) -> Callable[..., Any]:
    """Return what is called with an event for a function, or for a class with `handle`, made anew for each delivery."""
    if not inspect.isclass(target):
        function: Callable[..., Any] = target
        return function
    made: Any = target
    if inspect.iscoroutinefunction(made.handle):

        async def ahandle(event: Any) -> Any:
            return await made().handle(event)

        return ahandle
    return lambda event: made().handle(event)


def event_queue(name: object) -> str:
    """Return the name under which a queue of events is stored; raises InvalidHandler."""
    try:
        plain = name.removeprefix(EVENT_QUEUE) if isinstance(name, str) else name
        return check_name(f"{EVENT_QUEUE}{check_name(plain)}")
    except InvalidQueue as error:
        raise InvalidHandler(str(error)) from None


def find_handler(path: str) -> tuple[Handler, Callable[..., Any]]:
    """
    Return a handler and what is called with the event, or raise ImportError saying what is at this path instead.

    A decorator above `subscribe` counts: what the module has under that name is called. So does another name for the same
    handler, `audit = audit_orders`: it was renamed.
    """
    found = imported(path, "handler")
    handler = handlers.get(path) or renamed(found)
    if handler is None or not callable(found):
        raise ImportError(
            f"The handler {path} cannot be run: there is a {type(found).__name__} that is not subscribed to anything. "
            'Was @subscribe("...") taken away?'
        )
    return handler, called(found)


def handler_at(path: str) -> Handler | None:
    """Return the handler at a stored path, or None where this process cannot import it."""
    try:
        return find_handler(path)[0]
    except (Exception, SystemExit):  # importing runs code of the project
        return None


def renamed(found: Any) -> Handler | None:
    """Return the handler that this very function or class is under its present name."""
    return next((handler for handler in handlers.values() if handler.target is found), None)


def _function(target: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(target, "handle") if inspect.isclass(target) else target  # noqa: B009
    return function


def _checked_path(target: Any) -> str:
    if isinstance(target, Task):
        raise InvalidHandler(
            f"{target.module_path} is a task. A handler is a plain function that takes an event; let it enqueue the task."
        )
    is_class = inspect.isclass(target)
    name = getattr(target, "__qualname__", "")
    if not (is_class or inspect.isfunction(target)) or not name:
        raise InvalidHandler(f"subscribe() takes a function or a class with a method `handle`, not {target!r}.")
    path = f"{target.__module__}.{name}"
    if "<" in name:
        raise InvalidHandler(f"Workers cannot import {name}: write the handler at the top level of a module.")
    if target.__module__ == "__main__":
        raise InvalidHandler(f"Workers cannot import {name!r} from a script: move the handler into a module.")
    if is_class and not callable(getattr(target, "handle", None)):
        raise InvalidHandler(f"{path} has no method `handle(self, event)`.")
    try:
        if is_class:
            inspect.signature(target).bind()
            inspect.signature(target.handle).bind(None, None)
        else:
            inspect.signature(target).bind(None)
    except TypeError as error:
        takes = "is made without arguments and its `handle` takes one event" if is_class else "takes one event"
        raise InvalidHandler(f"A handler {takes}; {path} cannot be called so: {error}.") from None
    if inspect.isgeneratorfunction(_function(target)) or inspect.isasyncgenfunction(_function(target)):
        raise InvalidHandler(f"{path} contains a yield: calling it would make a generator and run nothing of it.")
    return path


def _checked_priority(value: object) -> int:
    try:
        return checked_priority(value)
    except ValueError as error:
        raise InvalidHandler(str(error)) from None


def _checked_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidHandler(f"{name} is True or False, not {value!r}.")
    return value
