"""
`consume`: what makes a function the handler of a stream, for one group.

    @consume("ledger", group="totals", batch_size=1000, transactional=True)
    def add_up(entries): ...

    @consume("ledger", group="mail", key=lambda entry: entry.payload["customer"])
    async def tell(entry): ...

With `batch_size` the function gets a list of entries, without it one entry at a time. Modules named `handlers` or `streams`
in the installed apps are imported when a worker starts and after `migrate`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, Final, TypeVar

from django_pgbus.conf import EVENT_QUEUE, get_settings
from django_pgbus.exceptions import InvalidHandler, InvalidQueue
from django_pgbus.queues.queue import check_name
from django_pgbus.streams.entry import Entry
from django_pgbus.streams.stream import Stream, check_stream_name, mention
from django_pgbus.tasks.compat import InvalidTask, Task
from django_pgbus.tasks.policy import (
    Backoff,
    checked_backoff,
    checked_max_attempts,
    checked_payload_keys,
    checked_timeout,
    checked_transactional,
)

F = TypeVar("F", bound=Callable[..., Any])

Start = str | int | datetime
Key = Callable[[Entry], Any]
Route = str | Callable[[Entry], Any]

ONE_BY_ONE: Final = 100  # entries of one range for a handler that takes them one at a time
LARGEST: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A consumer as it was declared; `batch_size` None: one entry at a time. `timeout` is that of one call."""

    path: str
    func: Callable[..., Any]
    stream: str
    group: str
    batch_size: int | None
    start: Start
    key: Key | None
    route_to: Route | None
    transactional: bool
    max_attempts: int | None
    backoff: Backoff | None
    timeout: float | None
    sensitive: tuple[str, ...]

    @property
    def limit(self) -> int:
        """Return how many entries one range has at most."""
        return self.batch_size or ONE_BY_ONE

    @property
    def attempts(self) -> int:
        """Return how many runs of one entry there are before it is a dead letter."""
        return self.max_attempts or get_settings().MAX_ATTEMPTS

    @property
    def is_async(self) -> bool:
        """Return whether it is to be awaited."""
        return inspect.iscoroutinefunction(self.func)

    @property
    def name(self) -> str:
        """Return stream and group, as people write them."""
        return f"{self.stream}/{self.group}"


# What has been declared in this process, by stream and group.
consumers: dict[tuple[str, str], Consumer] = {}


def consume(
    stream: str | Stream,
    *,
    group: str,
    batch_size: int | None = None,
    start: Start = "beginning",
    key: Key | None = None,
    route_to: Route | None = None,
    transactional: bool = False,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
    timeout: float | timedelta | None = None,
    sensitive: Iterable[str] = (),
) -> Callable[[F], F]:
    """
    Make a function the handler of a stream for one group, which has a cursor of its own.

    The stream is a `Stream` or its name. With `batch_size` the function gets a list of up to so many entries, without it
    one `Entry`. `start` says where a new group begins: "beginning", "end", a position, or a datetime. `key(entry)` returns
    what is handled in order (None: it does not matter); `route_to` names a queue, or is a function that returns one for
    each entry (None: none), and the function then runs as a job of that queue, one for each entry. With `transactional`
    it runs in the transaction that commits its range. `max_attempts`, `backoff(exception, entry)` and `timeout` as for
    tasks; `sensitive` names keys of the payload that nobody may read. Raises InvalidHandler or InvalidStream.
    """
    of = stream.name if isinstance(stream, Stream) else check_stream_name(stream)
    name = _checked_group(group)

    def declare(func: F) -> F:
        path = _checked_path(func)
        try:
            consumer = Consumer(
                path=path,
                func=func,
                stream=of,
                group=name,
                batch_size=_checked_batch_size(batch_size),
                start=_checked_start(start),
                key=_checked_function("key", key),
                route_to=_checked_route(route_to),
                transactional=checked_transactional(transactional, func),
                max_attempts=checked_max_attempts(max_attempts),
                backoff=checked_backoff(backoff, "entry"),
                timeout=checked_timeout(timeout),
                sensitive=checked_payload_keys(sensitive),
            )
        except InvalidTask as error:
            raise InvalidHandler(f"{path}: {error}") from None
        _check_together(consumer)
        other = consumers.get((of, name))
        if other is not None and other.path != path:
            raise InvalidHandler(
                f"The group {name!r} of {of!r} has two handlers, {other.path} and {path}. Two functions that each read "
                "all entries are two groups."
            )
        mention(of)
        consumers[of, name] = consumer
        return func

    return declare


def consumer_of(stream: str, group: str, path: str) -> Consumer | None:
    """Return the consumer of a group, or None where this process cannot import its handler."""
    if (stream, group) not in consumers:
        try:
            import_module(path.rpartition(".")[0])
        except (Exception, SystemExit):  # importing runs code of the project
            return None
    return consumers.get((stream, group))


def _check_together(consumer: Consumer) -> None:
    if consumer.route_to is not None:
        for name, given in (
            ("batch_size", consumer.batch_size is not None),
            ("key", consumer.key is not None),
            ("transactional", consumer.transactional),
        ):
            if given:
                raise InvalidHandler(
                    f"{consumer.path}: {name} has no meaning with route_to: each entry becomes a job of its own in a queue."
                )
    if consumer.is_async and consumer.transactional:
        raise InvalidHandler(f"{consumer.path}: Django's transactions are synchronous, so an async handler has none.")


def _checked_group(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > 100 or not value.isprintable() or "/" in value:
        raise InvalidHandler(f"group is a name of 1 to 100 printable characters without a slash, not {value!r}.")
    return value


def _checked_path(func: Any) -> str:
    if isinstance(func, Task):
        raise InvalidHandler(
            f"{func.module_path} is a task. A handler of a stream is a plain function; let it enqueue the task."
        )
    name = getattr(func, "__qualname__", "")
    if not inspect.isfunction(func) or not name:
        raise InvalidHandler(f"consume() takes a function, not {func!r}.")
    path = f"{func.__module__}.{name}"
    if "<" in name:
        raise InvalidHandler(f"Workers cannot import {name}: write the handler at the top level of a module.")
    try:
        inspect.signature(func).bind(None)
    except TypeError as error:
        raise InvalidHandler(f"A handler takes one argument; {path} cannot be called so: {error}.") from None
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise InvalidHandler(f"{path} contains a yield: calling it would make a generator and run nothing of it.")
    return path


def _checked_batch_size(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise InvalidHandler(f"batch_size is a whole number from 1 to {LARGEST:,}, not {value!r}.")
    return value


def _checked_start(value: object) -> Start:
    match value:
        case "beginning" | "end":
            return value
        case bool():
            pass
        case int() if value >= 1:
            return value
        case datetime() if value.tzinfo is not None:
            return value
        case datetime():
            raise InvalidHandler(f"start={value!r} has no time zone, so it names no moment.")
    raise InvalidHandler(f'start is "beginning", "end", a position from 1 or a datetime, not {value!r}.')


def _checked_function(name: str, value: Any) -> Any:
    if value is None:
        return None
    if not callable(value) or inspect.iscoroutinefunction(value):
        raise InvalidHandler(f"{name} is a plain function that takes an entry, not {value!r}.")
    try:
        inspect.signature(value).bind(None)
    except TypeError as error:
        raise InvalidHandler(f"{name} is called with one entry: {error}.") from None
    except ValueError:  # a built-in without a signature
        pass
    return value


def _checked_route(value: Any) -> Any:
    return route_queue(value) if isinstance(value, str) else _checked_function("route_to", value)


def route_queue(name: object) -> str:
    """Return the name under which a queue of routed entries is stored; raises InvalidHandler."""
    try:
        plain = name.removeprefix(EVENT_QUEUE) if isinstance(name, str) else name
        return check_name(f"{EVENT_QUEUE}{check_name(plain)}")
    except InvalidQueue as error:
        raise InvalidHandler(f"route_to: {error}") from None
