"""A shop whose tasks are unique and limited: three keys in each state, to look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django_pgbus.models import BlockedExecution, QueueState, UniquenessKey
from django_pgbus.postgres.keys import stored
from tests.admin import rows
from tests.admin.rows import now

CHARGE = "tests.admin.tasks.charge"
LONG = "catalogue/" + "/".join(f"region-{number}" for number in range(30))
ODD = '<b>label & "printer"</b>\nof the second floor'


@dataclass(frozen=True)
class LockedShop:
    parked: BlockedExecution
    unique: UniquenessKey
    running: str  # keys
    waiting: str
    nobody: str


def a_locked_shop() -> LockedShop:
    worker = rows.a_worker(running=6)
    QueueState.objects.create(queue="reports", paused_at=now() - timedelta(hours=3), paused_by="anna")
    for number in range(1, 4):
        _held(f"customer-{4700 + number}", number, running=number, worker=worker.id, parked=12 * number)
        _held(f"gateway-{number}", 4, waiting=4 - number, parked=0)
        _held(f"printer-{number}", 2, silent=number % 2 + 1, parked=number)
        rows.a_limit(f"closing-{number}", 1)
        _parked(f"closing-{number}", 2, queue="reports")
        _unique(f"import-2026-11-{number:02}", rows.a_running(worker.id), minutes=7 * number, name="while_executing")
        _unique(f"order-{1040 + number}", rows.a_delayed(queue="imports"), minutes=95 * number)
        _unique(f"nightly-{number}", rows.a_parked(f"closing-{number}", queue="reports"), minutes=300 * number)
    rows.a_limit(stored(LONG), 25, name=LONG)
    for ordinal in range(1, 26):
        rows.a_slot(rows.a_message(queue="imports").pk, stored(LONG), ordinal)
    _parked(stored(LONG), 3)
    _held(ODD, 1, running=1, worker=worker.id, parked=1)
    _unique(ODD, rows.a_message(), minutes=1)
    for _ in range(3):
        rows.a_parked("import-2026-11-01", waits_for="key", semaphore=None)
    first = BlockedExecution.objects.filter(key="customer-4703").order_by("id")[0]
    lock = UniquenessKey.objects.get(key="order-1041")
    return LockedShop(first, lock, "customer-4703", "gateway-1", "closing-1")


def _held(
    key: str, capacity: int, *, parked: int, running: int = 0, waiting: int = 0, silent: int = 0, worker: Any = None
) -> None:
    rows.a_limit(key, capacity)
    holders = [rows.a_running(worker, task=CHARGE).pk for _ in range(running)]
    for ordinal, holder in enumerate(holders, 1):
        rows.a_beating_slot(holder, key, ordinal)
    for ordinal in range(running + 1, running + waiting + 1):
        rows.a_slot(rows.a_delayed(reason="retry", attempts=1).pk, key, ordinal)
    for ordinal in range(running + waiting + 1, running + waiting + silent + 1):
        lapsed = rows.a_running(worker, leased_until=now() - timedelta(minutes=4))
        rows.a_beating_slot(lapsed.pk, key, ordinal)
    _parked(key, parked, to=capacity)


def _parked(key: str, number: int, *, to: int = 1, **fields: Any) -> None:
    bound = rows.constraints(limit=key, to=to)
    for nth in range(number):
        since = now() - timedelta(minutes=3 * (number - nth), seconds=nth)
        rows.a_parked(key, task=CHARGE, constraints=bound, parked_at=since, enqueued_at=since, **fields)
    if number:
        due = now() + timedelta(minutes=40)
        rows.a_parked(key, task=CHARGE, constraints=bound, due_at=due, **fields)


def _unique(key: str, job: Any, *, minutes: int, name: str = "until_executed") -> None:
    rows.a_lock(job.pk, key, strategy=name, queue=job.queue, created_at=now() - timedelta(minutes=minutes))
