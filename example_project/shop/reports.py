"""
What is mailed when an import has ended: how many rows were orders, and what is wrong with the others.

Each is written by a callback of the import's batch, which is enqueued once. A mail cannot be taken back: as with a
receipt, a worker killed between sending and noting it sends it again, under the same Message-ID.
"""

from __future__ import annotations

import json
from typing import Any, Final

from django.core.mail import EmailMessage

from django_pgbus import Batch
from django_pgbus.models import Archived, DeadLetter
from shop.jobs import PATH, last_error

TO: Final = "office@shop.example.com"
MOST_ROWS: Final = 100  # in one mail


def report(batch: dict[str, Any]) -> EmailMessage:
    """Return the report of an import; `batch` is what its callbacks are given."""
    title, total, orders, broken = (batch[name] for name in ("description", "total", "succeeded", "failed"))
    return EmailMessage(
        subject=f"{title}: {orders:,} of {total:,} rows are orders" if total else f"{title}: nothing new",
        body=f"Rows enqueued: {total:,}\nOrders: {orders:,}\nBroken: {broken:,}\n",
        to=[TO],
        headers={"Message-ID": f"<import-{batch['id']}@shop.example.com>"},
    )


def broken_rows(batch: dict[str, Any]) -> EmailMessage:
    """Return the list of the rows that gave up: they are dead letters, to be redriven in the admin or discarded."""
    letters = DeadLetter.objects.filter(batch_id=batch["id"]).order_by("id")[:MOST_ROWS]
    return EmailMessage(
        subject=f"{batch['description']}: {batch['failed']:,} rows are broken",
        body="".join(f"{last_error(letter)}\n" for letter in letters),
        to=[TO],
        headers={"Message-ID": f"<broken-rows-{batch['id']}@shop.example.com>"},
    )


def send(letter: EmailMessage) -> str:
    """Mail it and return its subject."""
    letter.send()
    return str(letter.subject)


def arrived(batch: Batch) -> str | None:
    """Return the subject of the report of an import once it is mailed."""
    if batch.progress().finished_at is None:
        return None
    done = Archived.objects.filter(task=f"{PATH}mail_report", outcome=Archived.Outcome.SUCCEEDED)
    results = (json.loads(text) for text in done.values_list("result", flat=True))
    return next((result["mailed"] for result in results if result["batch"] == batch.id), None)
