"""Tasks and handlers whose runs are traced, and what they saw of their trace."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from opentelemetry import baggage, trace

from django_pgbus import Snooze, limits_concurrency, publish, subscribe, task
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import handlers

SECRET = "hunter2-hunter2"

seen: list[Any] = []


def look(name: str) -> None:
    """Note the span that is current here, as (name, id)."""
    seen.append((name, trace.get_current_span().get_span_context().span_id))


@task
def order(number: int) -> None:
    look("order")
    publish("traced.ordered", {"order": number})


@subscribe("traced.ordered", queue_name="traced")
def ship(event: Any) -> None:
    look("ship")
    seen.append(dict(event.headers))
    label.enqueue(event.payload["order"])


@task
def label(number: int) -> None:
    look("label")


@task
async def aorder(number: int) -> None:
    look("aorder")
    await sync_to_async(look)("aorder in a thread")
    await label.aenqueue(number)


@task(max_attempts=2, backoff=lambda exception, result: 0)
def fails(text: str = "") -> None:
    raise ValueError(text)


@task(sensitive=("token",), max_attempts=1)
def login(user: str, token: str) -> None:
    raise ValueError(f"{user} has the bad token {token}")


@task
def snoozes() -> None:
    raise Snooze(60)


@task
def gone() -> None: ...


@limits_concurrency(to=1, key=lambda key, *args: key)
@task
def one(key: str, number: int) -> None:
    look(f"one {number}")


@task
def ended(batch: dict[str, Any]) -> None:
    look("ended")


@task
def tags() -> None:
    import sentry_sdk

    sentry_sdk.set_tag("mine", 1)


@task
def who() -> None:
    seen.append(baggage.get_baggage("tenant"))


def declare() -> None:
    """Write the subscriptions of this module alone."""
    subscriptions.declare([handlers[f"{__name__}.ship"]])
