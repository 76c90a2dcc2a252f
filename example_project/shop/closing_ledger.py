"""The closing table's third part: the ledger, and what its two groups of readers made of it, of which one began later."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from django.db.models import Count, Sum

from shop.models import DayTotal, Order
from shop.streams import RECOUNT, TOTALS, behind, ledger
from shop.table import Closing

AT_ONCE = 10_000


def add_ledger(closing: Closing) -> None:
    """Add the ledger, and what each group arrived at."""
    _add_entries(closing)
    by_day = Order.objects.values("placed_on").annotate(number=Count("*"), worth=Sum("amount")).order_by()
    summed = {each["placed_on"]: (each["number"], each["worth"]) for each in by_day}
    for group, note in ((TOTALS, "reads from the first order on"), (RECOUNT, "began later, from the beginning")):
        kept = {each.day: (each.orders, each.amount) for each in DayTotal.objects.filter(kept_by=group).iterator()}
        closing.add(f"  handled by {group}", sum(orders for orders, _ in kept.values()), note)
        closing.add(f"  amount of {group}", sum((amount for _, amount in kept.values()), Decimal()))
        closing.require(f"positions that {group} is behind", behind([group]), 0)
        closing.require(f"the days of {group}", kept, summed)


def _add_entries(closing: Closing) -> None:
    found: Counter[int] = Counter()
    last, worth = 0, Decimal()
    while entries := ledger.read(after=last, limit=AT_ONCE):
        last = entries[-1].position
        found.update(entry.payload["order_id"] for entry in entries)
        worth += sum(Decimal(entry.payload["amount"]) for entry in entries)
    closing.add("entries of the ledger", found.total(), f"in {ledger.head():,} positions: the others were rolled back")
    closing.add("  amount of them", worth)
    closing.require("orders in the ledger", found, Counter(Order.objects.values_list("pk", flat=True)))
