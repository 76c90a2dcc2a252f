"""A shop that works in batches: one that is on its way, one that ended well, one that did not, and some more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from django_pgbus.models import Batch, DeadLetter, Message, UniquenessKey
from tests.admin import rows
from tests.admin.rows import now

CHARGE = "tests.admin.tasks.charge"


@dataclass(frozen=True)
class Batches:
    open: Batch
    failed: Batch
    done: Batch
    member: Message
    letter: DeadLetter
    lock: UniquenessKey


def some_batches() -> Batches:
    """Return batches with members in each place."""
    worker = rows.a_worker(running=2)
    properties = json.dumps({"file": "orders-2026-11-30.csv", "requested_by": "anna", "rows": 240})
    for day in range(20, 29):
        ended = now() - timedelta(days=30 - day)
        rows.a_finished_batch(
            180 + day,
            description=f"Orders of {day} November",
            created_at=ended - timedelta(minutes=day),
            finished_at=ended,
        )
    rows.a_finished_batch(0)
    failed = rows.a_finished_batch(
        230, 4, description="Orders of 29 November", properties=properties, callbacks=rows.callbacks(CHARGE, "reports")
    )
    letter = _dead(failed, 2)
    _dead(failed, 1)
    done = rows.a_finished_batch(
        1_204_331,
        description="Prices of the whole catalogue, all regions: every offer is computed again from the supplier's list",
        properties=properties,
    )
    open = rows.a_batch(
        240,
        168,
        3,
        description="Orders of 30 November",
        properties=properties,
        callbacks=rows.callbacks("tests.admin.tasks.import_order", "reports", due_in=300),
        key="orders-2026-11-30",
        created_at=now() - timedelta(minutes=7, seconds=12),
    )
    for nth in range(3):
        rows.a_running(worker.id, task=CHARGE, queue="imports", batch_id=open.pk, suspect=nth == 2)
    for _ in range(54):
        member = rows.a_message(queue="imports", batch_id=open.pk)
    for nth in range(7):
        rows.a_delayed(
            queue="imports",
            batch_id=open.pk,
            reason="retry",
            attempts=2,
            due_at=now() + timedelta(seconds=20 * nth + 9),
        )
    for _ in range(5):
        rows.a_parked("printer-1", queue="imports", batch_id=open.pk)
    _dead(open, 2)
    rows.a_batch(12, 12, description="Receipts")
    rows.a_count(rows.a_batch(description="Newsletter"), added=48_210)
    lock = rows.a_lock(open.pk, "orders-2026-11-30", strategy="until_finished", queue="", created_at=open.created_at)
    return Batches(open, failed, done, member, letter, lock)


def _dead(batch: Batch, number: int) -> DeadLetter:
    """Give a batch so many dead letters and return the last."""
    for nth in range(number):
        letter = rows.a_dead_letter(queue="imports", batch_id=batch.pk, died_at=now() - timedelta(minutes=nth))
    return letter
