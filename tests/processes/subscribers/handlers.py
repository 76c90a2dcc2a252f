"""What the workers run for events. It writes down when it began and ended, as the tasks do."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from django.db import connections

from django_pgbus import subscribe
from django_pgbus.worker.heart import Heart
from tests.processes.tasks import arecord, record, value_of


def at_once(exception: BaseException, event: Any) -> float:
    return 0.0


def heart_stands_still(self: Heart) -> float:
    return 3600.0


@subscribe("slow.sync", idempotent=True, backoff=at_once)
def slow(event: Any) -> None:
    """Run for so many seconds, the first time; it may stop the heart of its process, which then tells it nothing."""
    name, first = event.payload["name"], not value_of(event.payload["name"], "began")
    record(name, "began")
    if first and event.payload.get("stops_the_heart"):
        Heart.work = heart_stands_still  # type: ignore[method-assign]
    time.sleep(event.payload["seconds"] if first else 0)
    connections.close_all()
    record(name, "ended")


@subscribe("slow.async", idempotent=True, backoff=at_once)
async def aslow(event: Any) -> None:
    name = event.payload["name"]
    await arecord(name, "began")
    await asyncio.sleep(event.payload["seconds"])
    await arecord(name, "ended")


@subscribe("trips.#", "trips.*", "*.created.eu")
def trips(event: Any) -> None:
    record(f"trips {event.topic}", "ran")


@subscribe("trips.created", queue_name="mail_trips")
class Mail:
    def handle(self, event: Any) -> None:
        record(f"mail {event.topic}", "ran")


def not_subscribed(event: Any) -> None: ...
