"""A busy shop's queues, to look at."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model

from django_pgbus.models import Archived, DeadLetter, Delayed, Level, Message, QueueState
from tests.admin.rows import (
    GONE,
    MARKUP,
    a_dead_letter,
    a_delayed,
    a_message,
    a_running,
    a_worker,
    an_archived,
    error,
    now,
    payload,
)

CHARGE = "tests.admin.tasks.charge"
LOST = "The worker process ended or fell silent while this attempt ran."


@dataclass(frozen=True)
class Shop:
    ready: Message
    running: Message
    paused: Message
    retrying: Delayed
    done: Archived
    dead: DeadLetter
    gone: DeadLetter


def a_busy_shop() -> Shop:
    worker = a_worker(running=3)
    a_worker(name="shop-2", pid=4712, queues="imports,default: 10; mail_*: 4", capacity=14, listening=False)
    a_worker(name="shop-3", host="web-2.example", pid=88, state="draining", running=1)
    lost = uuid.uuid4()
    a_worker(id=lost, name="shop-4", host="web-3.example", pid=90, beat_at=now() - timedelta(minutes=4))
    minutes_ago = now() - timedelta(minutes=7)
    QueueState.objects.create(queue="reports", paused_at=now() - timedelta(hours=3), paused_by="anna")
    Level.objects.create(queue="mail_receipts", priority=0, suspect=False)
    for number in range(60):
        a_message(queue="imports", payload=payload(2000 + number), ready_at=minutes_ago, enqueued_at=minutes_ago)
    ready = a_message(queue="imports", priority=10, payload=payload(order_id=1043))
    running = a_running(
        worker.id, queue="imports", payload=payload(1044), enqueued_at=minutes_ago, ready_at=minutes_ago
    )
    a_running(worker.id, task=CHARGE, payload=payload(1045, token="tok_live_31337"))
    a_running(worker.id, discard_requested=True)
    a_running(lost, leased_until=now() - timedelta(minutes=3), attempts=2, delivery=2, suspect=True)
    a_message(task=GONE)
    paused = a_message(queue="reports", task="tests.admin.tasks.import_order")
    a_message(queue="<b>bold</b>", task=MARKUP)
    retrying = a_delayed(
        queue="imports",
        reason="retry",
        enqueued_at=minutes_ago,
        due_at=now() + timedelta(seconds=18),
        attempts=2,
        delivery=2,
        errors=[
            error(exception="django_pgbus.exceptions.WorkerLost", traceback=LOST, attempt=1, worker=str(lost)),
            error(attempt=2, worker=str(worker.id)),
        ],
    )
    a_delayed(reason="snoozed", due_at=now() + timedelta(minutes=5))
    for hours in range(1, 8):
        a_delayed(due_at=now() + timedelta(hours=hours * 6), queue="mail_receipts")
    for number in range(30):
        an_archived(
            payload=payload(number),
            finished_at=now() - timedelta(seconds=number * 3),
            started_at=now() - timedelta(seconds=number * 3, milliseconds=40 + 13 * number),
        )
    an_archived(outcome="discarded", result=None, note="It was a dead letter.", finished_at=now())
    done = an_archived(
        task=CHARGE,
        payload=payload(1045, token="tok_live_31337"),
        result='{"charge": "ch_1", "used": "tok_live_31337", "lines": [{"sku": "LP-17", "cents": 1999}]}',
        worker=worker.id,
        finished_at=now(),
    )
    for number in range(12):
        a_dead_letter(queue="imports", payload=payload(number), died_at=now() - timedelta(minutes=number))
    gone = a_dead_letter(task=GONE, reason="gave_up", attempts=1, errors=[error(traceback="", exception="ImportError")])
    dead = a_dead_letter(
        queue="imports",
        payload=payload(1043, placed_on="1997-02-30", quantity=2),
        worker=worker.id,
        enqueued_at=minutes_ago,
        died_at=now(),
        errors=[error(attempt=attempt, worker=str(worker.id)) for attempt in range(1, 6)],
    )
    admin = get_user_model().objects.filter(is_superuser=True).first()
    LogEntry.objects.log_actions(admin.pk, [QueueState(queue="reports")], CHANGE, "Paused.")
    return Shop(ready, running, paused, retrying, done, dead, gone)
