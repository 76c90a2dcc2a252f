"""Rows of every table, as the pages find them."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django_pgbus.events.topics import compiled
from django_pgbus.insights.histogram import BUCKETS, bucket
from django_pgbus.models import (
    Archived,
    Batch,
    BatchCount,
    BlockedExecution,
    DeadLetter,
    Delayed,
    EventCount,
    Message,
    ProcessedEvent,
    RunCount,
    Semaphore,
    Slot,
    Subscription,
    UniquenessKey,
    Worker,
)

TASK = "tests.admin.tasks.import_order"
HANDLER = "tests.admin.handlers.audit"
GONE_HANDLER = "shop.handlers.renamed_last_week"
GONE = "shop.tasks.renamed_last_week"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 41, in import_order
    order = validate(row)
  File "/srv/shop/rows.py", line 77, in validate
    raise BrokenRow(f"line {line}: placed_on {text!r} is not a date")
shop.rows.BrokenRow: line 1043: placed_on '1997-02-30' is not a date
"""


def now() -> datetime:
    return datetime.now(UTC)


def payload(*args: Any, **kwargs: Any) -> str:
    return json.dumps({"args": args, "kwargs": kwargs})


def error(**changes: Any) -> dict[str, Any]:
    entry = {
        "exception": "shop.rows.BrokenRow",
        "traceback": TRACEBACK,
        "worker": str(uuid.uuid4()),
        "attempt": 1,
        "started_at": (now() - timedelta(seconds=62)).isoformat(),
        "failed_at": (now() - timedelta(seconds=60)).isoformat(),
    }
    return {**entry, **changes}


def a_message(**fields: Any) -> Message:
    return Message.objects.create(**{"queue": "default", "task": TASK, "payload": payload(17), **fields})


def a_running(worker: uuid.UUID | None = None, **fields: Any) -> Message:
    leased = {
        "leased_until": now() + timedelta(seconds=30),
        "claimed_at": now() - timedelta(seconds=4),
        "started": True,
        "delivery": 1,
        "attempts": 1,
        "worker": worker or uuid.uuid4(),
    }
    return a_message(**{**leased, **fields})


def a_delayed(**fields: Any) -> Delayed:
    due = {"due_at": now() + timedelta(hours=2), "reason": "scheduled"}
    return Delayed.objects.create(**{"queue": "default", "task": TASK, "payload": payload(17), **due, **fields})


def an_archived(**fields: Any) -> Archived:
    done = {
        "outcome": "succeeded",
        "result": json.dumps("order 17"),
        "attempts": 1,
        "delivery": 1,
        "worker": uuid.uuid4(),
        "started_at": now() - timedelta(seconds=2),
        "finished_at": now() - timedelta(seconds=1),
    }
    return Archived.objects.create(**{"queue": "default", "task": TASK, "payload": payload(17), **done, **fields})


def a_dead_letter(**fields: Any) -> DeadLetter:
    died = {
        "reason": "exhausted",
        "attempts": 5,
        "delivery": 5,
        "errors": [error()],
        "worker": uuid.uuid4(),
        "started_at": now() - timedelta(seconds=62),
        "died_at": now() - timedelta(seconds=60),
    }
    return DeadLetter.objects.create(**{"queue": "default", "task": TASK, "payload": payload(17), **died, **fields})


def constraints(*, unique: str = "", limit: str = "", to: int = 1) -> str:
    """Return what a job carries."""
    parts: dict[str, Any] = {}
    if unique:
        parts["unique"] = {"key": unique, "name": "", "strategy": "until_executed", "on_conflict": "reject"}
    if limit:
        parts["limit"] = {"key": limit, "name": "", "to": to, "duration": 900.0, "on_conflict": "block"}
    return json.dumps(parts)


def a_parked(key: str = "printer", **fields: Any) -> BlockedExecution:
    waits = {"waits_for": "semaphore", "key": key, "semaphore": key, "constraints": constraints(limit=key)}
    return BlockedExecution.objects.create(
        **{"queue": "default", "task": TASK, "payload": payload(17), **waits, **fields}
    )


def a_limit(key: str = "printer", capacity: int = 1, **fields: Any) -> Semaphore:
    return Semaphore.objects.create(key=key, capacity=capacity, **fields)


def a_slot(holder: int, key: str = "printer", ordinal: int = 1, **fields: Any) -> Slot:
    return Slot.objects.create(message_id=holder, key=key, ordinal=ordinal, **{"duration": 900.0, **fields})


def a_beating_slot(holder: int, key: str = "printer", ordinal: int = 1) -> Slot:
    return a_slot(holder, key, ordinal, leased_until=now() + timedelta(minutes=14))


def a_lock(holder: int, key: str = "order-17", **fields: Any) -> UniquenessKey:
    return UniquenessKey.objects.create(
        key=key, message_id=holder, **{"strategy": "until_executed", "queue": "default", **fields}
    )


def a_batch(total: int = 0, succeeded: int = 0, failed: int = 0, **fields: Any) -> Batch:
    """Return a batch of which so much has been folded."""
    given = {"properties": "{}", "callbacks": "{}", "total": total, "succeeded": succeeded, "failed": failed, **fields}
    return Batch.objects.create(**given)


def a_finished_batch(total: int = 0, failed: int = 0, **fields: Any) -> Batch:
    ended = {"created_at": now() - timedelta(minutes=3), "finished_at": now() - timedelta(minutes=1)}
    return a_batch(total, total - failed, failed, **{**ended, **fields})


def a_count(batch: Batch, added: int = 0, succeeded: int = 0, failed: int = 0) -> BatchCount:
    return BatchCount.objects.create(batch_id=batch.pk, added=added, succeeded=succeeded, failed=failed)


def callbacks(task: str = TASK, queue: str = "default", **more: Any) -> str:
    """Return what is stored of three callbacks of one task."""
    one = {"task": task, "queue": queue, "priority": 0, "backend": "default", "due_in": 0.0, **more}
    return json.dumps(dict.fromkeys(("on_finish", "on_success", "on_failure"), one))


def a_worker(**fields: Any) -> Worker:
    beating = {
        "id": uuid.uuid4(),
        "name": "shop-1",
        "host": "web-1.example",
        "pid": 4711,
        "version": "0.1.0",
        "queues": "*: 10",
        "capacity": 10,
        "running": 3,
        "state": "running",
        "listening": True,
        "lease": timedelta(seconds=30),
    }
    return Worker.objects.create(**{**beating, **fields})


def event(payload: Any = None, headers: Any = None, **fields: Any) -> dict[str, Any]:
    """Return what a handler's copy of an event has in place of a task and its arguments."""
    body = {"payload": {"order_id": 17} if payload is None else payload, "headers": headers or {}}
    of_event = {"queue": "@events", "task": HANDLER, "topic": "orders.created", "event_id": uuid.uuid4()}
    return {**of_event, "payload": json.dumps(body), **fields}


def a_subscription(pattern: str = "orders.#", handler: str = HANDLER, **fields: Any) -> Subscription:
    part = compiled(pattern)
    found = {"prefix": part.prefix, "suffix": part.suffix, "regex": part.regex}
    # It may be there: whoever empties the tables sends `post_migrate`, and what this process has loaded is declared.
    row, _ = Subscription.objects.update_or_create(
        pattern=pattern, handler=handler, defaults={"queue": "@events", **found, **fields}
    )
    return row


def a_claim(holder: Any, **fields: Any) -> ProcessedEvent:
    """Return the pending claim of a copy whose run beats."""
    return ProcessedEvent.objects.create(
        event_id=holder.event_id,
        handler=holder.task,
        message_id=holder.pk,
        delivery=holder.delivery,
        **{"leased_until": now() + timedelta(seconds=30), **fields},
    )


def an_event_count(name: str, amount: int = 1, status: str = "unrouted", **fields: Any) -> EventCount:
    return EventCount.objects.create(status=status, name=name, amount=amount, **fields)


def a_run_count(minutes_ago: int = 2, seconds: float = 0.04, waited: float = 0.2, **fields: Any) -> RunCount:
    """Return what ten runs in one minute came to, each of which took and waited so long."""
    counted = {"queue": "default", "task": TASK, "resolution": "minute", "succeeded": 10}
    counted |= {"bucket": now().replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago), **fields}
    number = sum(counted.get(name, 0) for name in ("succeeded", "failed", "dead", "snoozed"))
    run, wait = [0] * BUCKETS, [0] * BUCKETS
    run[bucket(seconds)], wait[bucket(waited)] = number, number
    sums = {"run_seconds": number * seconds, "wait_seconds": number * waited, "longest": seconds}
    return RunCount.objects.create(**{**sums, "run": run, "wait": wait, **counted})
