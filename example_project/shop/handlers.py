"""
Who hears of what, each handler with a copy of the event and a queue to itself.

    orders.created  ->  take_from_stock, count_sales, welcome, audit
    orders.paid     ->  audit

An event comes at least once, and the demonstration publishes some a second time. What that must not change is either written
so that a second time finds the first (stock, audit), or `idempotent`, so that pgbus runs it once for an event (sales). One
that fails, as `welcome` does for some customers, is tried again by itself and gives up by itself: the others are done.
"""

from __future__ import annotations

from django_pgbus import Event, subscribe
from shop import bookkeeping, rows, welcomes
from shop.events import CREATED
from shop.models import Customer


def shortly(error: BaseException, event: Event) -> float:
    """Return the seconds to the next attempt: a mail host is asked again soon, and not for long."""
    return float(min(0.2 * 2**event.attempt, 1.0))


@subscribe(CREATED, queue_name="stock", transactional=True)
def take_from_stock(event: Event) -> None:
    """Take what was ordered from the stock."""
    bookkeeping.take_from_stock(rows.from_json(event.payload))


@subscribe(CREATED, queue_name="analytics", idempotent=True, transactional=True)
def count_sales(event: Event) -> None:
    """Add the order to the totals of its day: adding twice would be wrong, and nothing but the event's id would tell."""
    bookkeeping.count_sale(rows.from_json(event.payload))


# An attempt that is killed counts too: some are left for the host to refuse, however often a worker dies.
@subscribe(CREATED, queue_name="mail", max_attempts=6, backoff=shortly)
def welcome(event: Event) -> None:
    """Mail a greeting to the customer of a first order."""
    if event.payload["nth_of_customer"] == 1:
        welcomes.send(Customer.objects.get(pk=event.payload["customer_id"]))


@subscribe("orders.#", transactional=True)
def audit(event: Event) -> None:
    """Keep every event there is about orders, those of topics to come too."""
    bookkeeping.keep(event)
