"""
The shop's ledger: one entry for each order, in one order, for as long as there is a shop. And who reads it.

    shop-ledger  ->  totals     keeps what each day came to, from the first entry on
                 ->  recount    begins later, when somebody wants to know: it reads the same entries from the beginning

An entry is appended in the transaction that writes its order, so there is one for each order, whichever worker dies when.
Both groups are `transactional`: what they add, and how far they are, is one transaction. So each entry counts once in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final

from django_pgbus import Entry, Stream, StreamDoesNotExist, consume
from shop import bookkeeping
from shop.rows import OrderRow

ledger: Final = Stream("shop-ledger")
TOTALS: Final = "totals"
RECOUNT: Final = "recount"


def enter(row: OrderRow) -> int:
    """Enter an order in the ledger, in the transaction that writes it; return its position there."""
    return ledger.append({"order_id": row.order_id, "day": row.placed_on.isoformat(), "amount": str(row.amount)})


@consume(ledger.name, group=TOTALS, batch_size=200, transactional=True)
def keep_totals(entries: Sequence[Entry]) -> None:
    """Add what was ordered to the totals of its day."""
    bookkeeping.add_to_totals(TOTALS, amounts(entries))


@consume(ledger.name, group=RECOUNT, batch_size=200, transactional=True)
def recount(entries: Sequence[Entry]) -> None:
    """Do the same, apart from it."""
    bookkeeping.add_to_totals(RECOUNT, amounts(entries))


def amounts(entries: Iterable[Entry]) -> list[tuple[str, Decimal]]:
    """Return day and amount of each entry."""
    return [(entry.payload["day"], Decimal(entry.payload["amount"])) for entry in entries]


def behind(groups: Iterable[str]) -> int:
    """Return how many positions of the ledger these groups are not done with; all, if nobody has begun one."""
    return sum(_lag(group) for group in groups)


def _lag(group: str) -> int:
    try:
        return ledger.lag(group).entries
    except StreamDoesNotExist:
        return ledger.head()
