"""Handlers whose copies of events the admin shows."""

from __future__ import annotations

from typing import Any

from django_pgbus import subscribe


@subscribe("orders.#", idempotent=True, max_attempts=4)
def audit(event: Any) -> None: ...


@subscribe("orders.paid", "payments.*", queue_name="mail", sensitive=("token",))
def receipt(event: Any) -> None: ...
