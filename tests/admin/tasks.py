"""Tasks whose jobs the admin shows."""

from __future__ import annotations

from django_pgbus import task


@task
def import_order(order_id: int) -> str:
    return f"order {order_id}"


@task(sensitive=("token",))
def charge(order_id: int, token: str) -> str:
    return f"charged with {token}"
