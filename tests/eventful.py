"""Handlers of events, and what becomes of their copies without a worker: the transitions called by hand."""

from __future__ import annotations

import uuid
from typing import Any
from uuid import UUID

from django_pgbus import publish, subscribe
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import handlers
from django_pgbus.models import ProcessedEvent
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.outcomes import PickedUp
from tests.line import claim
from tests.sessions import execute

EVENTS = Level("@events", 0)
SUSPECT_EVENTS = Level("@events", 0, True)

# What ran, as (handler, event): emptied by whoever looks.
ran: list[tuple[str, UUID]] = []


@subscribe("eventful.plain")
def plain(event: Any) -> None:
    ran.append(("plain", event.id))


@subscribe("eventful.once", idempotent=True)
def once(event: Any) -> None:
    ran.append(("once", event.id))


ONCE = f"{__name__}.once"
PLAIN = f"{__name__}.plain"


def declare() -> None:
    """Write the subscriptions of this module alone."""
    subscriptions.declare(handlers[path] for path in (ONCE, PLAIN))


def publish_once(event: UUID | None = None, **more: Any) -> UUID:
    """Publish for the idempotent handler and return the event's id."""
    event = event or uuid.uuid4()
    declare()
    assert publish("eventful.once", {"number": 1}, event_id=event, **more) == 1
    return event


def claim_events(limit: int = 100) -> list[Delivery]:
    return claim(limit=limit, levels=(EVENTS, SUSPECT_EVENTS))


def claim_event() -> Delivery:
    (delivery,) = claim_events()
    return delivery


def pick_up(*deliveries: Delivery) -> PickedUp:
    return lifecycle.pick_up(deliveries)


def picked_up(event: UUID | None = None) -> Delivery:
    """Publish, claim and pick up; return the delivery that has its claim."""
    publish_once(event)
    delivery = claim_event()
    assert pick_up(delivery).taken == [delivery]
    return delivery


def claim_of(event: UUID, handler: str = ONCE) -> ProcessedEvent | None:
    return ProcessedEvent.objects.filter(event_id=event, handler=handler).first()


def silence_claim(event: UUID) -> None:
    """Let the lease of a claim have run out a second ago."""
    execute(
        "UPDATE pgbus_processed_events SET leased_until = statement_timestamp() - interval '1 second' WHERE event_id = %s",
        [event],
    )
