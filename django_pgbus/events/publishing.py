"""
`publish`: one message for each handler that matches, in the caller's transaction.

What is wrong with topic, payload or headers is said before any SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.events import sql
from django_pgbus.events.event import CAUSE, CORRELATION, current, new_id
from django_pgbus.events.topics import check_topic, lookups
from django_pgbus.exceptions import InvalidPayload, InvalidTopic
from django_pgbus.postgres.arrays import texts
from django_pgbus.queues import wake
from django_pgbus.queues.message import Level
from django_pgbus.tasks import tracing
from django_pgbus.tasks.payload import encode_value
from django_pgbus.tasks.policy import checked_priority

CHUNK: Final = 500  # events of one statement
LONGEST: Final = 1e9  # seconds


def publish(
    topic: str,
    payload: Any = None,
    *,
    headers: Mapping[str, Any] | None = None,
    correlation_id: str | None = None,
    priority: int | None = None,
    delay: float | timedelta | None = None,
    event_id: UUID | None = None,
) -> int:
    """
    Store one copy of an event for each handler that subscribed to its topic, and return how many.

    In the caller's transaction: rolled back, nothing was published. `headers` travel with it; its correlation id is, unless
    given, that of the event whose handler runs here. `priority` (-100 to 100) is that of the subscription unless given,
    `delay` seconds or a timedelta. `event_id` is for who publishes the same event again: idempotent handlers run
    once for it. Raises InvalidTopic, InvalidPayload naming the part, TypeError or ValueError, before any SQL.
    """
    ids = None if event_id is None else [event_id]
    return _publish([_checked(topic, payload)], ids, headers, correlation_id, priority, delay)[0]


def publish_many(
    events: Iterable[tuple[str, Any]],
    *,
    headers: Mapping[str, Any] | None = None,
    correlation_id: str | None = None,
    priority: int | None = None,
    delay: float | timedelta | None = None,
    event_ids: Sequence[UUID] | None = None,
) -> list[int]:
    """
    Publish (topic, payload) pairs, all or none, and return for each how many handlers get it.

    One statement for five hundred. `headers` and the rest hold for all; `event_ids`, one for each.
    """
    pairs = [_checked_pair(index, pair) for index, pair in enumerate(events)]
    return _publish(pairs, event_ids, headers, correlation_id, priority, delay)


async def apublish(
    topic: str,
    payload: Any = None,
    *,
    headers: Mapping[str, Any] | None = None,
    correlation_id: str | None = None,
    priority: int | None = None,
    delay: float | timedelta | None = None,
    event_id: UUID | None = None,
) -> int:
    """See publish()."""
    return await sync_to_async(publish, thread_sensitive=True)(
        topic,
        payload,
        headers=headers,
        correlation_id=correlation_id,
        priority=priority,
        delay=delay,
        event_id=event_id,
    )


async def apublish_many(
    events: Iterable[tuple[str, Any]],
    *,
    headers: Mapping[str, Any] | None = None,
    correlation_id: str | None = None,
    priority: int | None = None,
    delay: float | timedelta | None = None,
    event_ids: Sequence[UUID] | None = None,
) -> list[int]:
    """See publish_many()."""
    return await sync_to_async(publish_many, thread_sensitive=True)(
        events, headers=headers, correlation_id=correlation_id, priority=priority, delay=delay, event_ids=event_ids
    )


def _publish(
    pairs: Sequence[tuple[str, str]],
    event_ids: Sequence[UUID] | None,
    headers: Mapping[str, Any] | None,
    correlation_id: str | None,
    priority: int | None,
    delay: float | timedelta | None,
) -> list[int]:
    ids = [new_id() for _ in pairs] if event_ids is None else [_checked_id(id) for id in event_ids]
    if len(ids) != len(pairs):
        raise ValueError(f"event_ids holds {len(ids)} ids for {len(pairs)} events.")
    if not pairs:
        return []
    asked = {"priority": None if priority is None else checked_priority(priority), "delay": _checked_delay(delay)}
    tail = f',"headers":{_headers(headers, correlation_id)}}}'
    if not tracing.hooks:
        return _sent(ids, pairs, tail, asked)
    one = len(pairs) == 1
    topic = pairs[0][0] if one or len({topic for topic, _ in pairs}) == 1 else ""
    about = tracing.Sending(operation="publish", destination=topic, count=len(pairs), id=str(ids[0]) if one else "")
    with tracing.sending(about):
        return _sent(ids, pairs, tracing.carried(tail, about.headers), asked)


def _sent(ids: Sequence[UUID], pairs: Sequence[tuple[str, str]], tail: str, asked: Mapping[str, Any]) -> list[int]:
    """Store events whose document ends with `tail`, and announce them."""
    bodies = [f'{{"payload":{body}{tail}' for _, body in pairs]
    topics = [topic for topic, _ in pairs]
    if len(pairs) <= CHUNK:
        counts = _store(ids, topics, bodies, asked)
    else:
        with transaction.atomic(using=database()):
            counts = []
            for start in range(0, len(pairs), CHUNK):
                part = slice(start, start + CHUNK)
                counts += _store(ids[part], topics[part], bodies[part], asked)
    for id, topic, copies in zip(ids, topics, counts, strict=True):
        if copies:
            signals.event_published.send_robust(sender=None, topic=topic, event_id=id, handlers=copies)
        else:
            signals.event_unrouted.send_robust(sender=None, topic=topic, event_id=id)
    return counts


def _store(ids: Sequence[UUID], topics: Sequence[str], bodies: Sequence[str], asked: Mapping[str, Any]) -> list[int]:
    found = [lookups(topic) for topic in topics]
    rows = sql.PUBLISH.tuples(
        ids=list(ids),
        topics=list(topics),
        payloads=texts(bodies),
        prefixes=[prefixes for prefixes, _ in found],
        suffixes=[suffixes for _, suffixes in found],
        **asked,
    )
    counts = [0] * len(topics)
    levels: dict[Level, int] = {}
    due: dict[str, float] = {}
    for kind, number, queue, priority, copies in rows:
        match kind:
            case "event":
                counts[number - 1] = copies
            case "ready":
                levels[Level(queue, priority)] = number
            case "later":
                levels[Level(queue, priority)] = 0
                due[queue] = asked["delay"].total_seconds()
    if levels:
        wake.after_commit(levels, due)
    return counts


def _checked(topic: Any, payload: Any) -> tuple[str, str]:
    return check_topic(topic), encode_value(payload, "payload", "The payload takes")


def _checked_pair(index: int, pair: Any) -> tuple[str, str]:
    place = f"events[{index}]"
    match pair:
        case [topic, payload]:
            pass
        case _:
            raise InvalidPayload(f"{place} is not a pair (topic, payload).", path=place)
    try:
        return _checked(topic, payload)
    except InvalidTopic as error:
        raise InvalidTopic(f"{place}: {error}") from None
    except InvalidPayload as error:
        raise type(error)(f"{place}: {error}", path=f"{place}.{error.path}") from None


def _headers(headers: Mapping[str, Any] | None, correlation_id: str | None) -> str:
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidPayload(f"headers is a dict, not a {type(headers).__name__}.", path="headers")
    if correlation_id is not None and (not isinstance(correlation_id, str) or not correlation_id):
        raise InvalidPayload(
            f"correlation_id is a text that is not empty, not {correlation_id!r}.", path="correlation_id"
        )
    cause = current.get()
    carried = {} if cause is None else {CORRELATION: cause.correlation_id, CAUSE: str(cause.id)}
    carried |= headers or {}
    if correlation_id is not None:
        carried[CORRELATION] = correlation_id
    return encode_value(carried, "headers", "The headers take") if carried else "{}"


def _checked_delay(value: object) -> timedelta | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < LONGEST:
        raise ValueError(f"delay is a number of seconds from 0 or a timedelta, not {value!r}.")
    return timedelta(seconds=seconds) if seconds else None


def _checked_id(value: object) -> UUID:
    if not isinstance(value, UUID):
        raise TypeError(f"event_id is a uuid.UUID, not {value!r}.")
    return value
