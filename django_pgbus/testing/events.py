"""What was published: delivered to its handlers in the test, listed, and asserted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from asgiref.sync import sync_to_async

from django_pgbus.conf import ANY_EVENT_QUEUE
from django_pgbus.events import handlers, subscriptions
from django_pgbus.events.event import Event
from django_pgbus.events.handlers import Handler, event_queue
from django_pgbus.events.running import event_of, opened
from django_pgbus.events.topics import compiled, matches
from django_pgbus.queues.message import Delivery
from django_pgbus.streams.entry import Entry
from django_pgbus.streams.running import entry_in
from django_pgbus.tasks.payload import decode_value, encode_value
from django_pgbus.tasks.policy import Policy
from django_pgbus.tasks.runnable import kind_of
from django_pgbus.testing import sql
from django_pgbus.testing.inline import run_all
from django_pgbus.testing.words import times_of
from django_pgbus.worker.plan import Capsule

SHOWN: Final = 10


class _Anything:
    def __repr__(self) -> str:
        return "anything"


ANYTHING: Final = _Anything()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """
    One run of a handler: its path, what it got, and what it raised or None.

    That is an event, or the entry of a stream that was routed into a queue.
    """

    handler: str
    event: Event | Entry
    error: BaseException | None


def deliver_published(
    queues: str | Sequence[str] | None = None,
    *,
    include_delayed: bool = False,
    limit: int = 1000,
    raise_failures: bool = True,
) -> list[Delivered]:
    """
    Run the handlers of what was published or routed, and of what they publish; return one item for each run, in order.

    `queues` names queues of events or patterns, with or without their @ (None: all). The rest as in run_enqueued(), which
    runs the tasks that handlers enqueue.
    """
    names = (queues,) if isinstance(queues, str) else (ANY_EVENT_QUEUE,) if queues is None else tuple(queues)
    wanted = Capsule(queues=tuple(f"@{name.removeprefix('@')}" for name in names), threads=1)
    return [
        Delivered(handler=delivery.task, event=_subject_of(delivery), error=error)
        for delivery, error in run_all(
            wanted,
            f"deliver_published() has run {limit} handlers",
            include_delayed=include_delayed,
            limit=limit,
            raise_failures=raise_failures,
        )
    ]


def _subject_of(delivery: Delivery) -> Event | Entry:
    return event_of(delivery) if kind_of(delivery.topic) == "handler" else entry_in(delivery)


def published(pattern: str = "#") -> list[Event]:
    """
    Return the events whose topic matches and that some handler got or gets, each once, oldest first.

    `attempt` tells how often its first handler has run.
    """
    compiled(pattern)
    found: dict[Any, Event] = {}
    for row in sql.PUBLISHED.rows():
        if row.event_id not in found and matches(pattern, row.topic):
            body, headers = opened(row.payload)
            found[row.event_id] = Event(
                id=row.event_id,
                topic=row.topic,
                payload=body,
                published_at=row.enqueued_at,
                headers=headers,
                attempt=row.attempts,
            )
    return list(found.values())


def assert_published(pattern: str, payload: Any = ANYTHING, *, count: int | None = None) -> list[Event]:
    """
    Assert that an event was published whose topic matches, and return those that match.

    `payload` is compared as the handlers see it; left out it may be anything, and then events count too that no handler
    got. `count` is how many have to match; None is one or more.
    """
    found, lost = _matching(pattern, payload)
    times = len(found) + lost
    if times == count or (count is None and times):
        return found
    raise AssertionError(
        f"{_described(pattern, payload)} was published {times_of(times)}"
        + ("." if count is None else f", not {times_of(count)}.")
        + _all_published(pattern)
    )


def assert_not_published(pattern: str, payload: Any = ANYTHING) -> None:
    """Assert that no event was published whose topic matches; the rest as in assert_published()."""
    found, lost = _matching(pattern, payload)
    if times := len(found) + lost:
        raise AssertionError(
            f"{_described(pattern, payload)} was published {times_of(times)}." + _all_published(pattern)
        )


@contextmanager
def subscribed(pattern: str = "#") -> Iterator[None]:
    """
    Subscribe a handler that does nothing, for a block: of events that nobody else gets the payload is kept then.

    It counts in what publish() returns.
    """
    subscriptions.declare([replace(_NOBODY, patterns=(compiled(pattern).text,))])
    try:
        yield
    finally:
        subscriptions.unbind(_NOBODY.path)


def nobody(event: Event) -> None:
    """Do nothing: the handler of `subscribed`."""


_NOBODY: Final = Handler(
    path=f"{__name__}.{nobody.__name__}",
    target=nobody,
    patterns=(),
    queue=event_queue("nobody"),
    priority=0,
    idempotent=False,
    policy=Policy(max_attempts=1),
)
handlers.handlers[_NOBODY.path] = _NOBODY


def declare_subscriptions() -> int:
    """
    Write the subscriptions of all `handlers` modules and of what else has been declared, and return how many there are.

    `migrate` has done it in a test database; this is for handlers declared in a test, and for emptied tables.
    """
    handlers.autodiscover()
    return subscriptions.declare()


adeliver_published = sync_to_async(deliver_published, thread_sensitive=True)
apublished = sync_to_async(published, thread_sensitive=True)
aassert_published = sync_to_async(assert_published, thread_sensitive=True)
aassert_not_published = sync_to_async(assert_not_published, thread_sensitive=True)


def _matching(pattern: str, payload: Any) -> tuple[list[Event], int]:
    """Return the events that match, and of how many more nothing but the topic is known."""
    events = published(pattern)
    if payload is ANYTHING:
        return events, sum(row.events for row in sql.UNROUTED.rows() if matches(pattern, row.topic))
    wanted = decode_value(encode_value(payload, "payload", "The payload takes"))
    return [event for event in events if event.payload == wanted], 0


def _described(pattern: str, payload: Any) -> str:
    return f"An event on {pattern}" + ("" if payload is ANYTHING else f" with {payload!r}")


def _all_published(pattern: str) -> str:
    events = published()
    lines = [f"{event.topic}: {event.payload!r}" for event in events[:SHOWN]]
    if len(events) > SHOWN:
        lines.append(f"and {len(events) - SHOWN} more")
    for row in sql.UNROUTED.rows():
        lines.append(f"{row.topic}: {times_of(row.events)}, for nobody, so its payload is not kept")
    if not lines:
        return " Nothing was published."
    return "".join(f"\n    {line}" for line in ["Published:", *lines])
