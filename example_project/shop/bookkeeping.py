"""What handlers write: the stock, the sales of a day, which events there were, and what the ledger adds up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

from django.db.models import F

from django_pgbus import Event
from shop.models import AuditEntry, DayTotal, SalesDay, StockMovement
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


def add_to_totals(kept_by: str, amounts: Iterable[tuple[str, Decimal]]) -> None:
    """
    Add (day, amount) of each entry to the totals that somebody keeps.

    Adds whenever it is called. The days are gone through in order, so two who add at once wait, and do not deadlock.
    """
    orders: Counter[str] = Counter()
    worth: dict[str, Decimal] = {}
    for day, amount in amounts:
        orders[day] += 1
        worth[day] = worth.get(day, Decimal()) + amount
    DayTotal.objects.bulk_create([DayTotal(kept_by=kept_by, day=day) for day in sorted(orders)], ignore_conflicts=True)
    for day in sorted(orders):
        DayTotal.objects.filter(kept_by=kept_by, day=day).update(
            orders=F("orders") + orders[day], amount=F("amount") + worth[day]
        )
