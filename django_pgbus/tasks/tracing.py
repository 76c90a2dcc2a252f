"""
What stands around the sending and the running of messages: the place where tracing hooks in.

A hook makes context managers. `sends` stands around an enqueue or a publish, and what it writes into `sending.headers`
travels with the message; `runs` stands around each run, in the context in which the task's own code runs, and is given
these headers again. `observability/opentelemetry.py` is one.

A hook changes nothing about a message or a run: what it raises is announced and left at that, it sees no exception pass by,
and it is given no arguments. Headers stand in the stored document beside the arguments, where every move of the message
takes them along; without any, nothing is written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from django_pgbus import signals
from django_pgbus.queues.message import Delivery

KEY: Final = "trace"  # of the headers in a stored document
MOST: Final = 8192  # characters of headers, names and values; W3C Baggage asks for as many
PART: Final = "tracing of a message"  # what `loop_failed` calls it

_START: Final = f',"{KEY}":'
_decode: Final = json.JSONDecoder().raw_decode


@dataclass(slots=True, kw_only=True, eq=False)
class Sending:
    """
    Messages on their way in; `count` of them share `headers`.

    `operation` is send (tasks), publish (events), or create (a task that a batch will enqueue when it ends).
    """

    operation: str
    destination: str  # a queue or a topic; empty where there are several
    task: str = ""  # its path
    count: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    id: str = ""  # of the only one, once it is known
    exception: str = ""  # the path of what was raised instead


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """
    One run of a function: of a task, of the handler of an event, or of the handler of a stream over `count` entries.

    `headers` are those of the message; `outcome`, and for a failed attempt `exception` (a path) and `traceback` (without
    what is sensitive), are known when it has ended.
    """

    task: str  # the path of the function
    queue: str = ""
    topic: str = ""  # of an event, else the name of a stream
    group: str = ""  # of a stream
    message: str = ""  # the id that its sender knows
    id: int = 0  # of the job
    attempt: int = 1
    delivery: int = 1
    batch: int | None = None
    waited: float | None = None  # seconds, from standing in line to the start of the run
    count: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)
    outcome: str = ""  # succeeded, failed (tried again), dead, snoozed, superseded or handed_back
    exception: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hook:
    """What stands around messages that are sent, and around runs."""

    sends: Callable[[Sending], AbstractContextManager[Any]] | None = None
    runs: Callable[[Running], AbstractContextManager[Any]] | None = None


# Empty for almost everybody: whoever sends or runs looks here first, and does nothing more.
hooks: tuple[Hook, ...] = ()


def register(hook: Hook) -> None:
    """Let a hook stand around everything from now on, inside those that were registered before."""
    global hooks
    _announced.clear()
    hooks = (*hooks, hook)


def unregister(hook: Hook) -> None:
    """Forget a hook; what it stands around now, it still leaves."""
    global hooks
    hooks = tuple(other for other in hooks if other is not hook)


# --- around -------------------------------------------------------------------------------------------

About = TypeVar("About", bound=Sending | Running)


class Around(Generic[About]):
    """What all hooks put around one step: entered in their order, left in the opposite one, none harmed by another."""

    __slots__ = ("_about", "_left", "_makers")

    def __init__(self, about: About, makers: list[Callable[[About], AbstractContextManager[Any]]]) -> None:
        self._about = about
        self._makers = makers
        self._left: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> About:
        for make in self._makers:
            try:
                manager = make(self._about)
                manager.__enter__()
            except (Exception, SystemExit) as error:
                _announce(error)
            else:
                self._left.append(manager)
        return self._about

    def __exit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        if kind is not None and not self._about.exception:
            self._about.exception = f"{kind.__module__}.{kind.__qualname__}"
        while self._left:
            try:
                # Never what was raised: a context manager could swallow it.
                self._left.pop().__exit__(None, None, None)
            except (Exception, SystemExit) as error:
                _announce(error)


def sending(about: Sending) -> Around[Sending]:
    """Return what stands around an enqueue or a publish."""
    return Around(about, [hook.sends for hook in hooks if hook.sends is not None])


def running(about: Running) -> Around[Running]:
    """Return what stands around a run."""
    return Around(about, [hook.runs for hook in hooks if hook.runs is not None])


def running_delivery(delivery: Delivery) -> Around[Running]:
    """Return what stands around the run of a delivery."""
    topic, _, group = (delivery.topic or "").partition("/")  # STREAM/GROUP for an entry that was routed
    about = Running(
        task=delivery.task,
        queue=delivery.queue,
        topic=topic,
        group=group,
        message=str(delivery.event or delivery.id),
        id=delivery.id,
        attempt=delivery.attempts,
        delivery=delivery.delivery,
        batch=delivery.batch,
        waited=None if delivery.ready_at is None else max(0.0, time.monotonic() - delivery.ready_at),
        headers=headers_in(delivery.payload),
    )
    return running(about)


_announced: set[type[BaseException]] = set()


def _announce(error: BaseException) -> None:
    """Announce what a hook raised, once for each kind of exception: it would be the same for every message."""
    if type(error) not in _announced:
        _announced.add(type(error))
        signals.loop_failed.send_robust(sender=None, part=PART, exception=error)


# --- headers in a stored document ---------------------------------------------------------------------


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that can travel: plain text as in HTTP, as much of it as there is room for."""
    found: dict[str, str] = {}
    room = MOST
    for name, value in headers.items():
        if _is_plain(name) and _is_plain(value) and len(name) + len(value) <= room:
            found[name] = value
            room -= len(name) + len(value)
    return found


def carried(document: str, headers: Mapping[str, str]) -> str:
    """Return a stored document, a JSON object with other members, with these headers as its last one."""
    if not headers or not (taken := kept(headers)):
        return document
    # As compact as the rest: orjson reads what it would write itself, and anything else has to be read again.
    return f"{document[:-1]}{_START}{json.dumps(taken, separators=(',', ':'))}}}"


def headers_in(document: str) -> dict[str, str]:
    """Return the headers that a stored document carries; none if there are none that can be read."""
    at = document.rfind(_START)  # inside a text its quotes would be escaped
    if at < 0:
        return {}
    try:
        found, end = _decode(document, at + len(_START))
    except (ValueError, RecursionError):
        return {}
    # The last member of the outermost object: one of this name may stand among the arguments, too.
    if document[end:] != "}" or not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _is_plain(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isprintable()
