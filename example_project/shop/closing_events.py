"""
The closing table's second half: what the handlers of events made of what was published.

One event for each order and each payment, a copy for each handler, and of every copy it is known what became of it.
"""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.db.models import Count, Sum

from django_pgbus.models import Archived, DeadLetter, Delayed, EventCount, Message
from shop import receipts, welcomes
from shop.events import CREATED, PAID
from shop.jobs import HANDLERS, open_jobs
from shop.models import AuditEntry, Customer, Order, Payment, SalesDay, StockMovement, Welcome
from shop.table import Closing, why

OF_NEW_ORDERS: Final = ("take_from_stock", "count_sales", "welcome", "audit")
MOST_REASONS: Final = 5  # shown

Copies = Counter[tuple[str, str]]  # by handler, and by what became of them


def add_events(closing: Closing, repeated: int) -> None:
    """Add what became of the events; `repeated` of those of new orders were published twice."""
    dead = list(DeadLetter.objects.filter(task__startswith=HANDLERS).order_by("id"))
    _add_copies(closing, repeated)
    _add_stock_and_sales(closing)
    _add_audit(closing)
    _add_welcomes(closing)
    _add_failures(closing, dead)
    closing.reasons += [why(letter) for letter in dead[:MOST_REASONS]]
    if len(dead) > MOST_REASONS:
        closing.reasons.append(f"and {len(dead) - MOST_REASONS} more of handlers")


def _add_copies(closing: Closing, repeated: int) -> None:
    orders, payments = Order.objects.count(), Payment.objects.count()
    topics = Counter(topic for topic, _ in _published())
    copies = _copies()
    skipped = {handler: number for (handler, outcome), number in copies.items() if outcome == "skipped"}
    found: Counter[str] = Counter()
    for (handler, _), number in copies.items():
        found[handler] += number
    wanted = Counter(dict.fromkeys(OF_NEW_ORDERS, orders + repeated)) + Counter(audit=payments)
    lost = wanted.total() - found.total()
    closing.add("events published", topics.total(), f"{topics[CREATED]:,} {CREATED}, {topics[PAID]:,} {PAID}")
    closing.add("  published once more", repeated, "under the same ids")
    closing.add("copies for handlers", found.total(), f"{len(found)} handlers")
    closing.add("  done", sum(number for (_, outcome), number in copies.items() if outcome == "succeeded"))
    closing.add("  skipped as duplicates", sum(skipped.values()), ", ".join(skipped))
    closing.add(
        "  that became dead letters", sum(number for (_, outcome), number in copies.items() if outcome == "dead")
    )
    closing.add("  lost", lost)
    closing.require("events", topics, Counter({CREATED: orders}) + Counter({PAID: payments}))
    closing.require("copies of each handler", found, wanted)
    closing.require("copies skipped as duplicates", skipped, {"count_sales": repeated} if repeated else {})
    counted = EventCount.objects.filter(status=EventCount.Status.SKIPPED, name__startswith=HANDLERS)
    closing.require("skipped copies, as pgbus counted them", _sum(counted, "amount"), sum(skipped.values()))


def _add_stock_and_sales(closing: Closing) -> None:
    taken = dict(StockMovement.objects.values_list("order_id", "quantity"))
    ordered = dict(Order.objects.values_list("order_id", "quantity"))
    sums = {"number": Count("*"), "pieces": Sum("quantity"), "worth": Sum("amount")}
    by_day = Order.objects.values("placed_on").annotate(**sums).order_by()
    summed = {each["placed_on"]: [each[name] for name in sums] for each in by_day}
    kept = {each.day: [each.orders, each.quantity, each.amount] for each in SalesDay.objects.iterator()}
    closing.add("taken from stock", sum(taken.values()), f"for {len(taken):,} orders")
    closing.add("days with sales", len(kept))
    closing.add("  orders of these days", sum(orders for orders, *_ in kept.values()))
    closing.add("  quantity of these days", sum(quantity for _, quantity, _ in kept.values()))
    closing.add("  amount of these days", sum((amount for *_, amount in kept.values()), Decimal()))
    closing.require("quantities taken from stock", taken, ordered)
    closing.require("sales by day", kept, summed)


def _add_audit(closing: Closing) -> None:
    entries = list(AuditEntry.objects.values_list("topic", "event_id", "payload__order_id"))
    told = Counter((topic, order) for topic, _, order in entries)
    orders, payments = (model.objects.values_list("pk", flat=True) for model in (Order, Payment))
    closing.add("entries of the audit", len(entries))
    closing.require("events in the audit", {(topic, event) for topic, event, _ in entries}, _published())
    wanted = Counter(chain(((CREATED, pk) for pk in orders), ((PAID, pk) for pk in payments)))
    closing.require("orders and payments in the audit", told, wanted)


def _add_welcomes(closing: Closing) -> None:
    noted = set(Welcome.objects.values_list("customer_id", flat=True))
    mails = receipts.mailed(Path(settings.SHOP_MAIL_FOLDER), "welcome")
    customers = Customer.objects.values_list("pk", flat=True)
    closing.add("customers welcomed", len(noted))
    closing.add("welcome mails", mails.total(), f"sent twice: {mails.total() - len(mails)}")
    closing.require("customers welcomed", noted, {pk for pk in customers if not welcomes.is_refused(pk)})
    closing.require("welcomes without a mail", noted - set(mails), set())


def _add_failures(closing: Closing, dead: list[DeadLetter]) -> None:
    events = {letter.event_id for letter in dead}
    failed = {(letter.task.removeprefix(HANDLERS), _customer_of(letter)) for letter in dead}
    others = Archived.objects.filter(event_id__in=events, outcome=Archived.Outcome.SUCCEEDED).exclude(
        task__in={letter.task for letter in dead}
    )
    done = others.values("event_id", "task").distinct().count()
    names = ", ".join(sorted({handler for handler, _ in failed}))
    closing.add("events of which one handler failed", len(events), names)
    closing.add("  handlers that had done theirs", done, "the others of the same events")
    refused = {pk for pk in Customer.objects.values_list("pk", flat=True) if welcomes.is_refused(pk)}
    closing.require("handlers that failed", failed, {("welcome", pk) for pk in refused})
    closing.require("others that had done theirs", done, (len(OF_NEW_ORDERS) - 1) * len(events))


def _published() -> set[tuple[str, Any]]:
    """Return topic and id of every event of which there is a copy, whatever became of it."""
    tables = [
        model.objects.filter(task__startswith=HANDLERS).values_list("topic", "event_id").order_by()
        for model in (Message, Delayed, Archived, DeadLetter)
    ]
    return set(tables[0].union(*tables[1:]))


def _copies() -> Copies:
    """Return how many copies of events each handler got, by what became of them."""
    archived = Archived.objects.filter(task__startswith=HANDLERS).values("task", "outcome").annotate(number=Count("*"))
    found: Copies = Counter()
    for each in archived.order_by():
        found[each["task"].removeprefix(HANDLERS), each["outcome"]] = each["number"]
    for task in DeadLetter.objects.filter(task__startswith=HANDLERS).values_list("task", flat=True):
        found[task.removeprefix(HANDLERS), "dead"] += 1
    for task, number in open_jobs().items():
        if task.startswith(HANDLERS):
            found[task.removeprefix(HANDLERS), "waiting"] = number
    return found


def _customer_of(letter: DeadLetter) -> Any:
    return json.loads(letter.payload)["payload"].get("customer_id")


def _sum(rows: Any, name: str) -> int:
    return int(rows.aggregate(sum=Sum(name, default=0))["sum"])
