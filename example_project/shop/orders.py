"""Writing an order: its row and its customer's totals, once, whoever else writes beside us."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from django.db import transaction
from django.db.models import F

from shop.models import Customer, Order
from shop.rows import BrokenRowError, OrderRow


def unit_price(row: OrderRow) -> Decimal:
    """Return what one record cost, to the cent."""
    return (row.amount / row.quantity).quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)


@transaction.atomic
def write(row: OrderRow) -> int:
    """
    Return how many orders the customer has with this one, 0 if the same order is there already.

    An order of that number with other values is a BrokenRowError. The customer is made sure of first and its totals
    are raised last: who waits for another's order holds no lock on a customer that the other needs, so two writers
    cannot deadlock.
    """
    Customer.objects.bulk_create([Customer(customer_id=row.customer_id)], ignore_conflicts=True)
    order, is_new = Order.objects.get_or_create(
        order_id=row.order_id,
        defaults={
            "customer_id": row.customer_id,
            "placed_on": row.placed_on,
            "quantity": row.quantity,
            "amount": row.amount,
            "unit_price": unit_price(row),
        },
    )
    if is_new:
        customer = Customer.objects.filter(pk=row.customer_id)
        customer.update(orders_placed=F("orders_placed") + 1, spent=F("spent") + row.amount)
        return customer.values_list("orders_placed", flat=True).get()  # locked by the update, so no other order gets it
    if as_row(order) != row:
        raise BrokenRowError(f"order {row.order_id} is already written with other values")
    return 0


def as_row(order: Order) -> OrderRow:
    """Return the row an order was written from."""
    return OrderRow(
        order_id=order.order_id,
        customer_id=order.customer_id,
        placed_on=order.placed_on,
        quantity=order.quantity,
        amount=order.amount,
    )
