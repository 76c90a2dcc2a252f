"""Handlers that do nothing but say that they started: one plain, one that runs once for an event."""

from __future__ import annotations

from typing import Any

from django_pgbus import subscribe
from django_pgbus.events.handlers import Handler, handlers
from tests.benchmarks import counters


@subscribe("drain.plain")
def plain(event: Any) -> None:
    counters.hit()


@subscribe("drain.once", idempotent=True)
def once(event: Any) -> None:
    counters.hit()


def declared() -> list[Handler]:
    """Return both as they are declared."""
    return [handlers[f"{__name__}.{handler.__name__}"] for handler in (plain, once)]
