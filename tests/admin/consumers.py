"""Consumers whose groups the pages show; they are found by the path that is stored."""

from __future__ import annotations

from typing import Any

from django_pgbus.streams.consumers import consume


@consume("ledger", group="totals")
def totals(entry: Any) -> None:
    """Read the ledger."""


@consume("ledger", group="mail", sensitive=["token"])
def mail(entry: Any) -> None:
    """Read the ledger, whose tokens nobody may read."""
