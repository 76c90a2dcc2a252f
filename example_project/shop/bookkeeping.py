"""What the handlers write: the stock, the sales of a day, and which events there were."""

from __future__ import annotations

from django.db.models import F

from django_pgbus import Event
from shop.models import AuditEntry, SalesDay, StockMovement
from shop.rows import OrderRow


def take_from_stock(row: OrderRow) -> bool:
    """Return True if this call took the records of an order from the stock, False if they were taken before."""
    return StockMovement.objects.get_or_create(order_id=row.order_id, defaults={"quantity": row.quantity})[1]


def count_sale(row: OrderRow) -> None:
    """
    Add an order to the totals of its day.

    Adds whenever it is called. Whoever calls makes sure that it is once for an order.
    """
    SalesDay.objects.bulk_create([SalesDay(day=row.placed_on)], ignore_conflicts=True)
    SalesDay.objects.filter(day=row.placed_on).update(
        orders=F("orders") + 1, quantity=F("quantity") + row.quantity, amount=F("amount") + row.amount
    )


def keep(event: Event) -> bool:
    """Return True if this call wrote the event into the audit, False if it was there."""
    entry = {"topic": event.topic, "payload": event.payload, "published_at": event.published_at}
    return AuditEntry.objects.get_or_create(event_id=event.id, defaults=entry)[1]
