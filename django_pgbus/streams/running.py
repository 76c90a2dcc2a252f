"""How an entry is run that was routed into a queue: as a job, by the handler of its group."""

from __future__ import annotations

import inspect

from django_pgbus.conf import get_settings
from django_pgbus.exceptions import InvalidPayload
from django_pgbus.queues.message import Delivery
from django_pgbus.streams.consumers import consumers
from django_pgbus.streams.entry import Entry
from django_pgbus.tasks import payload
from django_pgbus.tasks.lookup import imported
from django_pgbus.tasks.masking import without
from django_pgbus.tasks.policy import Policy
from django_pgbus.tasks.runnable import Call, Runnable, loaders
from django_pgbus.tasks.sensitive import secrets_in


class RunnableEntry(Runnable):
    """The handler of a group; what it returns is not kept."""

    def __init__(self, path: str) -> None:
        self.func = imported(path, "handler of a stream")
        found = [consumer for consumer in consumers.values() if consumer.path == path]
        # It may handle ranges of other groups too; what those have declared does not hold for what is routed.
        consumer = min(found, key=lambda consumer: consumer.route_to is None, default=None)
        if consumer is None or not callable(self.func):
            raise ImportError(f"{path} consumes no stream. Was @consume(...) taken away?")
        self.is_async = inspect.iscoroutinefunction(self.func)
        self.policy = Policy(
            max_attempts=consumer.max_attempts or get_settings().MAX_ATTEMPTS,
            backoff=consumer.backoff,
            timeout=consumer.timeout,
            sensitive=consumer.sensitive,
        )

    def open(self, call: Call, worker: str) -> None:
        """Make the entry."""
        call.subject = entry_in(call.delivery)
        call.args = (call.subject,)

    def scrubbed(self, text: str, call: Call) -> str:
        """Return it without the values of sensitive keys."""
        if call.subject is None:
            return text
        return without(text, secrets_in(call.subject.payload, self.policy.sensitive))


def entry_in(delivery: Delivery) -> Entry:
    """Return the entry that a message carries, or raise InvalidPayload."""
    assert delivery.topic is not None
    match payload.decode_value(delivery.payload):
        case {"position": int(position), "at": int(at), "payload": body}:
            return Entry(delivery.topic.partition("/")[0], position, body, at, delivery.attempts)
    raise InvalidPayload('The stored entry has not the shape {"position": ..., "at": ..., "payload": ...}.')


loaders.entry = RunnableEntry
