"""
The closing table: does everything add up?

The file is read once more, by itself, and compared with what the shop, the queue, the gateway and the mail folder
hold. Each sum that is off becomes a sentence in `problems`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from django.conf import settings
from django.db.models import Count, Q, Sum

from django_pgbus import Batch
from django_pgbus.models import Archived, DeadLetter
from shop import receipts, rows, runs
from shop.closing_events import add_events
from shop.closing_ledger import add_ledger
from shop.gateway import Gateway
from shop.importing import Imported
from shop.jobs import PATH, open_jobs
from shop.models import Customer, Order, Payment, Receipt
from shop.orders import as_row
from shop.table import Closing, why
from shop.tasks import CALLS_AT_ONCE

ROW_TASKS = (f"{PATH}import_order", f"{PATH}write_order")


@dataclass(slots=True)
class Expected:
    """What a file asks for: the rows of each order number, which rows are orders, and how many lines are none."""

    orders: dict[int, Counter[rows.OrderRow]] = field(default_factory=dict)
    lines: dict[int, rows.OrderRow] = field(default_factory=dict)
    broken: int = 0


def expected(path: Path) -> Expected:
    """Return what the file asks for."""
    asked = Expected()
    for line, row in rows.read(path):
        try:
            order = rows.validate(row)
        except rows.BrokenRowError:
            asked.broken += 1
        else:
            asked.orders.setdefault(order.order_id, Counter())[order] += 1
            asked.lines[line] = order
    return asked


def close(
    path: Path,
    imported: Imported,
    gateway: Gateway,
    *,
    killed: int,
    again: Imported | None = None,
    repeated: int = 0,
) -> Closing:
    """
    Return the table for one import into an empty shop, after its last job has ended.

    `again` is what became of the same file when it was imported once more before anybody worked, `repeated` how many
    events of new orders were published once more.
    """
    closing = Closing()
    dead = list(DeadLetter.objects.filter(task__startswith=PATH).order_by("id"))
    _add_rows(closing, path, imported, [letter for letter in dead if letter.task in ROW_TASKS])
    _add_batch(closing, imported, dead)
    if again is not None:
        _add_second_import(closing, again)
    uncharged = {_order_of(letter) for letter in dead if letter.task == f"{PATH}charge_customer"}
    _add_customers(closing, uncharged)
    stuck = {_order_of(letter) for letter in dead if letter.task not in ROW_TASKS}
    _add_payments(closing, gateway, stuck)
    _add_receipts(closing, stuck)
    closing.reasons = [why(letter) for letter in dead]
    add_events(closing, repeated)
    add_ledger(closing)
    _add_limits(closing)
    _add_jobs(closing, dead, killed)
    closing.reasons += [f"line {line} refused: {reason}" for line, reason in imported.refused]
    return closing


def _add_rows(closing: Closing, path: Path, imported: Imported, dead: list[DeadLetter]) -> None:
    asked = expected(path)
    orders = {order.order_id: as_row(order) for order in Order.objects.iterator()}
    results = [json.loads(text) for text in _results("write_order")]
    written = Counter(result["order"] for result in results if result["written"])
    again = len(results) - written.total()
    waiting = sum(count for task, count in open_jobs().items() if task in ROW_TASKS)
    lost = imported.enqueued - len(orders) - again - len(dead) - waiting

    closing.add("rows in the file", imported.read)
    closing.add("  refused by the importer", len(imported.refused))
    closing.add("  refused as duplicates", len(imported.duplicates), "their order was being imported already")
    closing.add("  enqueued", imported.enqueued, _escaped(imported))
    closing.add("orders written", len(orders))
    closing.add("rows whose order was there", again, "the same row twice: one order")
    closing.add("rows that became dead letters", len(dead))
    closing.add("rows still waiting", waiting)
    closing.add("rows lost", lost)

    strange = [number for number, row in orders.items() if row not in asked.orders.get(number, ())]
    repeated = sum(asked.orders[number][row] - 1 for number, row in orders.items() if number not in strange)
    other = sum(kinds.total() for kinds in asked.orders.values()) - len(orders) - repeated
    duplicates = [asked.lines[line] for line in imported.duplicates if line in asked.lines]
    same = sum(orders.get(row.order_id) == row for row in duplicates)
    closing.require("rows read", imported.read, imported.enqueued + len(imported.duplicates) + len(imported.refused))
    closing.require("rows still waiting", waiting, 0)
    closing.require("rows lost", lost, 0)
    closing.require("orders that are not in the file", strange, [])
    closing.require("orders", sorted(orders), sorted(asked.orders))
    closing.require("runs that wrote each order", written, Counter(dict.fromkeys(orders, 1)))
    closing.require("rows whose order was there", again, repeated - same)
    refused = len(imported.refused) + len(imported.duplicates) - same
    closing.require("dead letters and refused rows", len(dead) + refused, asked.broken + other)


def _add_batch(closing: Closing, imported: Imported, dead: list[DeadLetter]) -> None:
    progress = Batch.get(imported.batch).progress()
    reports = receipts.mailed(Path(settings.SHOP_MAIL_FOLDER), "import")[imported.batch]
    closing.add("members of the batch", progress.total)
    closing.add("  of these failed", progress.failed, "their rows are no orders")
    closing.add("reports mailed", reports, f"sent twice: {max(reports - 1, 0)}")
    closing.require("members of the batch", progress.total, imported.enqueued)
    closing.require("members that ended", progress.done, progress.total)
    closing.require("members that failed", progress.failed, sum(each.batch_id == imported.batch for each in dead))
    closing.require("whether the batch is finished", progress.finished_at is not None, True)
    closing.require("whether its report was mailed", reports > 0, True)


def _add_second_import(closing: Closing, again: Imported) -> None:
    closing.add("rows imported once more", again.read)
    closing.add("  of these refused", len(again.duplicates), "all of them were being imported already")
    closing.require("rows that a second import enqueued", again.enqueued, 0)


def _add_customers(closing: Closing, uncharged: set[int]) -> None:
    kept = {each.customer_id: (each.orders_placed, each.spent, each.charged) for each in Customer.objects.iterator()}
    charged = Sum("amount", filter=~Q(order_id__in=uncharged), default=Decimal())
    sums = Order.objects.values("customer_id").annotate(number=Count("*"), spent=Sum("amount"), charged=charged)
    summed = {each["customer_id"]: (each["number"], each["spent"], each["charged"]) for each in sums.order_by()}
    totals = Order.objects.aggregate(amount=Sum("amount", default=Decimal()), quantity=Sum("quantity", default=0))
    closing.add("customers", len(kept))
    closing.add("amount", totals["amount"])
    closing.add("quantity", totals["quantity"])
    closing.require("totals kept with the customers", kept, summed)


def _add_payments(closing: Closing, gateway: Gateway, stuck: set[int]) -> None:
    payments = dict(Payment.objects.values_list("order_id", "amount"))
    due = {order: amount for order, amount in Order.objects.values_list("order_id", "amount") if amount}
    free = Order.objects.count() - len(due)
    asked = gateway.asked.total()
    closing.add("payments", len(payments), f"and {free} free of charge" if free else "")
    closing.add("gateway asked", asked)
    closing.add("  confirmed, and recorded", len(payments))
    closing.add("  failed, and asked again", gateway.failed)
    closing.add("  asked again after a kill", gateway.confirmed - len(payments), "all the same charged once")
    owed = {order: amount for order, amount in due.items() if order in payments or order not in stuck}
    closing.require("payments", payments, owed)
    closing.require("questions to the gateway", asked, gateway.confirmed + gateway.failed)
    charged = {order: Decimal(cents) / 100 for order, cents in gateway.charged.items() if order in payments}
    closing.require("charges at the gateway", charged, payments)


def _add_receipts(closing: Closing, stuck: set[int]) -> None:
    noted = set(Receipt.objects.values_list("order_id", flat=True))
    mails = receipts.mailed(Path(settings.SHOP_MAIL_FOLDER))
    closing.add("receipts", len(noted))
    closing.add("mails", mails.total(), "sent twice: " + str(mails.total() - len(mails)))
    orders = set(Order.objects.values_list("order_id", flat=True))
    closing.require("receipts", noted, orders - (stuck - noted))
    closing.require("receipts without a mail", noted - set(mails), set())


def _add_limits(closing: Closing) -> None:
    charges, calls = (runs.most_at_once(task) for task in ("charge_customer", "call_gateway"))
    closing.add("most charges of a customer at once", charges)
    closing.add("most gateway calls at once", calls)
    closing.require_at_most("charges of one customer at once", charges, 1)
    closing.require_at_most("gateway calls at once", calls, CALLS_AT_ONCE)


def _add_jobs(closing: Closing, dead: list[DeadLetter], killed: int) -> None:
    waiting = sum(open_jobs().values())
    closing.add("worker processes killed", killed)
    closing.add("jobs done", Archived.objects.filter(task__startswith=PATH).count())
    closing.add("jobs that became dead letters", len(dead))
    closing.add("jobs still waiting", waiting, "copies of events too")
    closing.require("jobs still waiting", waiting, 0)


def _results(task: str) -> Iterator[str]:
    done = Archived.objects.filter(task=f"{PATH}{task}", outcome=Archived.Outcome.SUCCEEDED)
    return done.values_list("result", flat=True).iterator()


def _order_of(letter: DeadLetter) -> int:
    return int(json.loads(letter.payload)["args"][0])


def _escaped(imported: Imported) -> str:
    if not imported.escaped:
        return ""
    return f"line {', '.join(map(str, imported.escaped))}: characters that cannot be stored were written out"
