"""A shop that publishes: copies of events in every state, claims, subscriptions, and topics that nobody handles."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django_pgbus.models import Archived, DeadLetter, Delayed, Message, QueueState, Subscription
from tests.admin import rows
from tests.admin.rows import now

RECEIPT = "tests.admin.handlers.receipt"
ORDER = {
    "order_id": 1043,
    "customer": {"name": "Anna Holm", "city": "Aarhus"},
    "cents": 1999,
    "lines": ["LP-17", "CD-4"],
}
PAID = {"order_id": 1043, "token": "tok_live_31337", "cents": 1999}


@dataclass(frozen=True)
class Published:
    ready: Message
    masked: Message
    owned: Delayed
    done: Archived
    dead: DeadLetter
    gone: DeadLetter
    subscription: Subscription


def published_events() -> Published:
    worker = rows.a_worker(queues="*, @events, @mail: 10", running=2)
    Subscription.objects.all().delete()
    QueueState.objects.create(queue="@reports", paused_at=now() - timedelta(hours=3), paused_by="anna")
    bound = rows.a_subscription(idempotent=True)
    rows.a_subscription("orders.paid", RECEIPT, queue="@mail")
    rows.a_subscription("payments.*", RECEIPT, queue="@mail")
    rows.a_subscription("catalogue.#.price.*", rows.GONE_HANDLER, queue="@search")
    rows.a_subscription("orders.#", "shop.handlers.monthly_report", queue="@reports")
    _processed(worker)
    one = _id(90)
    headers = {"correlation_id": str(_id(200)), "causation_id": str(_id(150)), "tenant": "aarhus"}
    running = rows.a_running(worker.id, **_copy(one, ORDER, 90, headers))
    rows.a_claim(running)
    masked = rows.a_message(**_copy(one, PAID, 90, task=RECEIPT, queue="@mail", topic="orders.paid"))
    for ago in (3, 2):
        ready = rows.a_message(**_copy(_id(ago), ORDER, ago, headers))
    rows.a_message(
        **_copy(_id(400), ORDER, 400, task=rows.GONE_HANDLER, queue="@search", topic="catalogue.lp.price.eu")
    )
    rows.a_message(**_copy(_id(300), ORDER, 300, task="shop.handlers.monthly_report", queue="@reports"))
    rows.a_delayed(due_at=now() + timedelta(hours=2), **_copy(_id(40), ORDER, 40, topic="orders.reminder"))
    retried = {"reason": "retry", "attempts": 2, "delivery": 2, "due_at": now() + timedelta(seconds=18)}
    rows.a_delayed(**retried, **_copy(_id(60), ORDER, 60))
    owned = rows.a_delayed(reason="owned", due_at=now() + timedelta(seconds=12), **_copy(_id(30), ORDER, 30))
    rows.a_claim(owned, claimed_at=now() - timedelta(seconds=90), leased_until=now() - timedelta(seconds=20))
    failed = {"attempts": 4, "errors": [rows.error(attempt=nth) for nth in range(1, 5)]}
    dead = rows.a_dead_letter(**failed, **_copy(_id(700), ORDER, 700, headers))
    gone = rows.a_dead_letter(
        reason="gave_up",
        attempts=1,
        errors=[rows.error(exception="builtins.ImportError", traceback="")],
        **_copy(_id(800), PAID, 800, task=rows.GONE_HANDLER, queue="@search", topic="catalogue.lp.price.eu"),
    )
    rows.an_event_count("orders.cancelled.eu", 1_204)
    rows.an_event_count("newsletter.unsubscribed", 3, last_at=now() - timedelta(days=2))
    for reason, amount in (("completed", 1_311), ("owned", 12)):
        rows.an_event_count(rows.HANDLER, amount, "skipped", reason=reason)
    done = Archived.objects.filter(outcome="skipped").latest("id")
    return Published(ready, masked, owned, done, dead, gone, bound)


def _processed(worker: Any) -> None:
    for nth in range(30):
        ago = 1000 + 40 * nth
        ended = now() - timedelta(seconds=ago - 2)
        times = {"finished_at": ended, "started_at": ended - timedelta(milliseconds=40 + 13 * nth)}
        copy = _copy(_id(ago), ORDER, ago)
        claimed = rows.an_archived(worker=worker.id, result=None, **times, **copy)
        if nth < 4:
            rows.a_claim(claimed, completed_at=ended, leased_until=None, claimed_at=ended)
        if not nth % 7:
            skipped = {"outcome": "skipped", "note": "completed", "attempts": 0, "result": None, "started_at": None}
            rows.an_archived(**skipped, finished_at=ended, **copy)


def _id(seconds_ago: int) -> uuid.UUID:
    """Return an id that tells the time, as `publish` makes them."""
    milliseconds = int((now() - timedelta(seconds=seconds_ago)).timestamp() * 1000)
    return uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | 0b10 << 62 | uuid.uuid4().int >> 68)


def _copy(event: uuid.UUID, payload: Any, seconds_ago: int, headers: Any = None, **fields: Any) -> dict[str, Any]:
    at = now() - timedelta(seconds=seconds_ago)
    once = {"constraints": '{"idempotent": true}'} if "task" not in fields else {}
    return rows.event(payload, headers, event_id=event, enqueued_at=at, **once, **fields)
