"""How a handler is run: the event it gets, and what is said of it."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Mapping
from typing import Any

from django_pgbus import signals
from django_pgbus.conf import get_settings
from django_pgbus.events.event import Event, current
from django_pgbus.events.handlers import find_handler
from django_pgbus.exceptions import InvalidPayload
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import payload
from django_pgbus.tasks.masking import without
from django_pgbus.tasks.runnable import Call, Runnable, loaders
from django_pgbus.tasks.sensitive import secrets_in


class RunnableHandler(Runnable):
    """A handler; what it returns is not kept."""

    def __init__(self, path: str) -> None:
        handler, self.func = find_handler(path)
        self.is_async = inspect.iscoroutinefunction(self.func)
        self.policy = dataclasses.replace(
            handler.policy, max_attempts=handler.policy.max_attempts or get_settings().MAX_ATTEMPTS
        )

    def open(self, call: Call, worker: str) -> None:
        """Make the event."""
        call.subject = event_of(call.delivery)
        call.args = (call.subject,)

    def enter(self, call: Call) -> None:
        """Let what the handler publishes know what led to it."""
        current.set(call.subject)

    def succeeds(self, call: Call, value: Any) -> None:
        """Send `event_processed`."""
        signals.event_processed.send_robust(
            sender=type(self), delivery=call.delivery, seconds=time.monotonic() - call.began
        )

    async def asucceeds(self, call: Call, value: Any) -> None:
        """Send `event_processed`; what listens may use the database."""
        await signals.event_processed.asend_robust(
            sender=type(self), delivery=call.delivery, seconds=time.monotonic() - call.began
        )

    def scrubbed(self, text: str, call: Call) -> str:
        """Return it without the values of sensitive keys."""
        if call.subject is None:
            return text
        return without(text, secrets_in(call.subject.payload, self.policy.sensitive))


def event_of(delivery: Delivery) -> Event:
    """Return the event that a delivery is about, or raise InvalidPayload saying why it cannot be read."""
    assert delivery.event is not None
    assert delivery.topic is not None
    body, headers = opened(delivery.payload)
    return Event(
        id=delivery.event,
        topic=delivery.topic,
        payload=body,
        published_at=delivery.enqueued_at,
        headers=headers,
        attempt=delivery.attempts,
    )


def opened(text: str) -> tuple[Any, Mapping[str, Any]]:
    """Return payload and headers of a stored event, or raise InvalidPayload."""
    match payload.decode_value(text):
        case {"payload": body, "headers": dict(headers)}:
            return body, headers
    raise InvalidPayload('The stored event has not the shape {"payload": ..., "headers": {...}}.')


loaders.handler = RunnableHandler
