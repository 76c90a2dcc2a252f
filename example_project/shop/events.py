"""
What the shop tells everybody: an order was written, an order was paid.

Both are called in the transaction that writes what they tell of, so there is one event for each order and each payment,
whichever worker dies when. Who hears of it stands in `handlers.py`; nothing here knows.
"""

from __future__ import annotations

from typing import Final

from django_pgbus import publish
from shop.models import Order
from shop.rows import OrderRow

CREATED: Final = "orders.created"
PAID: Final = "orders.paid"


def order_created(row: OrderRow, nth_of_customer: int) -> int:
    """Tell that an order was written, and the how manieth of its customer; return how many handlers will hear of it."""
    return publish(CREATED, {**row.as_json(), "nth_of_customer": nth_of_customer})


def order_paid(order: Order, reference: str) -> int:
    """Tell that the payment of an order was recorded; return how many handlers will hear of it."""
    return publish(PAID, {"order_id": order.order_id, "amount": str(order.amount), "reference": reference})
