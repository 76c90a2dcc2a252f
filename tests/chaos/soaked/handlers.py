"""Three handlers of each event, and two groups of the stream; the part says which of them it was."""

from __future__ import annotations

import os
import time
from typing import Any

from django_pgbus import Stream, consume, subscribe
from tests.chaos.soaked.tables import ran, ran_many

LEDGER = Stream(
    "ledger",
    retention=float(os.environ["SOAK_RETENTION"]),
    partition_size=int(os.environ["SOAK_PARTITION"]),
)


@subscribe("orders.*", idempotent=True)
def mail(event: Any) -> None:
    ran(event.payload["number"], 0)
    time.sleep(0.005)


@subscribe("orders.#", idempotent=True)
def statistics(event: Any) -> None:
    ran(event.payload["number"], 1)


@subscribe("#.placed", idempotent=True, transactional=True)
def book(event: Any) -> None:
    ran(event.payload["number"], 2)


@consume("ledger", group="totals", batch_size=500, transactional=True)
def totals(entries: Any) -> None:
    ran_many([entry.payload["number"] for entry in entries], 0)


@consume("ledger", group="each", key=lambda entry: entry.payload["account"])
def each(entry: Any) -> None:
    ran(entry.payload["number"], 1)
