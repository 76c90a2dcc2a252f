"""Handlers whose copies of events the admin shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django_pgbus import subscribe
from django_pgbus.events.handlers import handlers


@subscribe("orders.#", idempotent=True, max_attempts=4)
def audit(event: Any) -> None: ...


@subscribe("orders.paid", "payments.*", queue_name="mail", sensitive=("token",))
def receipt(event: Any) -> None: ...


# The tests write the subscriptions they want to show: no other test's orders come here.
for _path in (f"{__name__}.audit", f"{__name__}.receipt"):
    handlers[_path] = replace(handlers[_path], patterns=())
