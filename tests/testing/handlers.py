"""Handlers for the tests of the helpers."""

from __future__ import annotations

from typing import Any

from django_pgbus import publish, subscribe
from django_pgbus.models import QueueState
from tests.testing.tasks import note

seen: list[Any] = []


@subscribe("helped.#")
def audit(event: Any) -> None:
    seen.append(("audit", event.topic, event.payload))


@subscribe("helped.first", queue_name="steps", idempotent=True)
def step(event: Any) -> None:
    seen.append(("step", event.topic, event.payload))
    publish("helped.second", event.payload)
    note.enqueue("from the handler")


@subscribe("helped.async", "helped.async.*")
class Later:
    async def handle(self, event: Any) -> None:
        seen.append(("later", event.topic, await QueueState.objects.acount()))


@subscribe("failing.here", max_attempts=2)
def fails(event: Any) -> None:
    seen.append(("fails", event.topic, event.attempt))
    raise ConnectionError(event.payload)
