"""
What the workers do, one task per step of an order.

    import_order -> write_order -> charge_customer -> call_gateway -> send_receipt

The first three are `transactional`: what they write, the next task they enqueue and their own end are one transaction,
so each has exactly one effect. The gateway and the mail stand outside the database; there "once" comes from asking by
order number, and the next step is enqueued by the transaction that records the answer.

Who else wants to know of an order hears of it by an event (`events.py`), published in the same transactions. And each order
is an entry of the ledger (`streams.py`), appended in the transaction that writes it.

The rows of a file are a batch (`importing.py`): when all of them are through `import_order`, `mail_report` is enqueued, and
`mail_broken_rows` if any gave up.

An order is imported by one job at a time, a customer is charged by one at a time, and the gateway is called by four.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction

from django_pgbus import ensures_uniqueness, limits_concurrency, task
from shop import events, orders, payments, receipts, reports, rows, runs, streams
from shop.models import Order

CALLS_AT_ONCE: Final = 4  # of the gateway, which allows no more


def unless_broken(error: BaseException, result: Any) -> float | None:
    """Return the seconds to the next attempt: soon, or never for a row that will not get better."""
    return None if isinstance(error, rows.BrokenRowError) else 0.5


def soon(error: BaseException, result: Any) -> float:
    """Return the seconds to the next question to a gateway that is usually back at once."""
    return float(min(0.2 * 2**result.attempts, 5.0))


@ensures_uniqueness(key=lambda row, line=None: f"import-{rows.identity(row)}")
@task(queue_name="imports", transactional=True, backoff=unless_broken)
def import_order(row: dict[str, Any], line: int | None = None) -> dict[str, Any]:
    """Validate one row of the file and hand it on."""
    try:
        order = rows.validate(row)
    except rows.BrokenRowError as error:
        raise rows.BrokenRowError(f"line {line}: {error}" if line else str(error)) from None
    write_order.enqueue(order.as_json())
    return {"order": order.order_id}


@task(queue_name="orders", transactional=True, backoff=unless_broken)
def write_order(row: dict[str, Any]) -> dict[str, Any]:
    """Write the order and its customer; tell of a new one, hand it on to be paid, and enter it in the ledger."""
    order = rows.from_json(row)
    written = orders.write(order)
    if written:
        events.order_created(order, nth_of_customer=written)
    if written and order.amount:
        charge_customer.enqueue(order.order_id, order.customer_id)
    elif written:
        send_receipt.enqueue(order.order_id)
    if written:
        streams.enter(order)  # last: whoever reads the ledger waits for a position until its transaction has ended
    return {"order": order.order_id, "written": written > 0}


@limits_concurrency(to=1, key=lambda order_id, customer_id: f"customer-{customer_id}")
@task(queue_name="payments", transactional=True)
def charge_customer(order_id: int, customer_id: int) -> dict[str, Any]:
    """Enter the order in the account of its customer and have the gateway called."""
    with runs.noted("charge_customer", f"customer-{customer_id}"):
        charged = payments.charge(Order.objects.get(pk=order_id))
        call_gateway.enqueue(order_id)
    return {"order": order_id, "charged": str(charged)}


@limits_concurrency(to=CALLS_AT_ONCE, key=lambda order_id: "gateway")
@task(queue_name="gateway", max_attempts=10, backoff=soon)
def call_gateway(order_id: int) -> dict[str, Any]:
    """Have the order paid at the gateway and record what it confirmed."""
    order = Order.objects.get(pk=order_id)
    with runs.noted("call_gateway", "gateway", payments.GatewayError):
        reference = payments.ask_gateway(order)
    with transaction.atomic():
        recorded = payments.record(order, reference)
        if recorded:
            events.order_paid(order, reference)
            send_receipt.enqueue(order_id)
    return {"order": order_id, "reference": reference, "recorded": recorded}


@task(queue_name="mail", backoff=soon)
def send_receipt(order_id: int) -> dict[str, Any]:
    """Mail the receipt of an order."""
    order = Order.objects.select_related("customer").get(pk=order_id)
    return {"order": order_id, "mailed": receipts.send(order)}


@task(queue_name="mail", priority=10, backoff=soon)
def mail_report(batch: dict[str, Any]) -> dict[str, Any]:
    """Mail what became of the rows of a file."""
    return {"batch": batch["id"], "mailed": reports.send(reports.report(batch))}


@task(queue_name="mail", priority=10, backoff=soon)
def mail_broken_rows(batch: dict[str, Any]) -> dict[str, Any]:
    """Mail which rows of a file are no orders, and why."""
    return {"batch": batch["id"], "mailed": reports.send(reports.broken_rows(batch))}
