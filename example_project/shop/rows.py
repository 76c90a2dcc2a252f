"""
The rows of an order file: reading them, and what makes one broken.

A line is parsed by itself (no field may hold a line break), so a stray quote breaks its own row and not the rest.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

COLUMNS = ("order_id", "customer_id", "placed_on", "quantity", "amount")
EXTRA = "extra"

_WHOLE = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_MONEY = re.compile(r"-?[0-9]{1,8}(\.[0-9]{1,2})?", re.ASCII)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


class BrokenRowError(ValueError):
    """A row that is no order; trying again will not help."""


class HeaderError(ValueError):
    """A file that is no order file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRow:
    """One valid row."""

    order_id: int
    customer_id: int
    placed_on: date
    quantity: int
    amount: Decimal

    def as_json(self) -> dict[str, Any]:
        """Return the row as a task's argument."""
        return {
            "order_id": self.order_id,
            "customer_id": self.customer_id,
            "placed_on": self.placed_on.isoformat(),
            "quantity": self.quantity,
            "amount": str(self.amount),
        }


def read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Yield (line number, row) for each line below the header that is not blank.

    Bytes that are not UTF-8 arrive as lone surrogates. Raises HeaderError.
    """
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        header = [name.strip() for name in _fields(next(lines, ""))]
        if sorted(header) != sorted(COLUMNS):
            raise HeaderError(f"{path} begins with {header}, not with the columns {', '.join(COLUMNS)}.")
        for number, line in enumerate(lines, start=2):
            if not line.strip():
                continue
            values = _fields(line)
            row: dict[str, Any] = dict(zip(header, values, strict=False))
            if len(values) > len(header):
                row[EXTRA] = values[len(header) :]
            yield number, row


def validate(row: dict[str, Any]) -> OrderRow:
    """Return the row with its types, or raise BrokenRowError with the first thing that is wrong."""
    for name in COLUMNS:
        if not isinstance(row.get(name), str):
            raise BrokenRowError(f"{name} is missing")
    if row.get(EXTRA):
        raise BrokenRowError(f"has fields beyond its {len(COLUMNS)} columns: {row[EXTRA]!r}")
    return OrderRow(
        order_id=_whole("order_id", row["order_id"]),
        customer_id=_whole("customer_id", row["customer_id"]),
        placed_on=_day("placed_on", row["placed_on"]),
        quantity=_whole("quantity", row["quantity"]),
        amount=_money("amount", row["amount"]),
    )


def from_json(data: dict[str, Any]) -> OrderRow:
    """Return the row that `as_json` made this of, whatever else was put beside it; raises BrokenRowError."""
    return validate({name: str(data[name]) for name in COLUMNS if name in data})


def identity(row: dict[str, Any]) -> str:
    """
    Return what makes two rows the same: the number of their order, or all they hold where they are no order.

    So a broken row never stands in the way of a good one that has its number.
    """
    try:
        return f"order-{validate(row).order_id}"
    except BrokenRowError:
        text = json.dumps(row, sort_keys=True)
        return f"row-{hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()}"


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # a field beyond the reader's limit: kept whole, validation will say what it is not
        return [line.rstrip("\n")]


def _whole(name: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise BrokenRowError(f"{name} {text!r} is not a whole number")
    if int(text) < 1:
        raise BrokenRowError(f"{name} {text} is {'negative' if int(text) < 0 else 'zero'}")
    return int(text)


def _money(name: str, text: str) -> Decimal:
    if not _MONEY.fullmatch(text):
        raise BrokenRowError(f"{name} {text!r} is not an amount of money")
    if text.startswith("-"):
        raise BrokenRowError(f"{name} {text} is negative")
    return Decimal(text)


def _day(name: str, text: str) -> date:
    try:
        if not _DAY.fullmatch(text):
            raise ValueError(text)
        return date.fromisoformat(text)
    except ValueError:
        raise BrokenRowError(f"{name} {text!r} is not a date") from None
