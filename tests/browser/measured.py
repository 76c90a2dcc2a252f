"""A shop that has run something for a week: counts of runs of several tasks, in waves."""

from __future__ import annotations

import math
from datetime import timedelta

from django.utils import timezone

from django_pgbus.insights.histogram import BUCKETS, bucket
from django_pgbus.models import RunCount
from tests.admin.rows import HANDLER

TASKS = [  # path, queue, runs a minute, seconds of most runs and of the slow ones, share that fails
    ("shop.tasks.orders.import_order", "imports", 42, 0.4, 3.2, 0.012),
    ("shop.tasks.mail.send_receipt", "mail_receipts", 61, 0.12, 0.9, 0.004),
    ("shop.tasks.catalogue.index_prices_of_every_region", "default", 6, 7.0, 44.0, 0.0),
    ("shop.tasks.payments.charge", "default", 17, 1.2, 9.0, 0.07),
    ("shop.tasks.reports.nightly_export", "reports", 0.2, 130.0, 260.0, 0.2),
]


def a_week_of_runs(minutes: int = 60) -> None:
    """Count what ran in each of the last minutes, and by hour in the week before."""
    now = timezone.now().replace(second=0, microsecond=0)
    found = [
        _count(number, now - timedelta(minutes=minute), "minute", 1.0, nth)
        for nth, number in enumerate(TASKS)
        for minute in range(minutes)
    ]
    hours = [
        _count(number, now.replace(minute=0) - timedelta(hours=hour), "hour", 60.0, nth)
        for nth, number in enumerate(TASKS)
        for hour in range(2, 168)
    ]
    events = _count((HANDLER, "@events", 30, 0.006, 0.03, 0.0), now - timedelta(minutes=3), "minute", 1.0, 9)
    RunCount.objects.bulk_create(one for one in [*found, *hours, events] if one.succeeded or one.failed or one.dead)


def _count(
    of: tuple[str, str, float, float, float, float], at: object, resolution: str, by: float, nth: int
) -> RunCount:
    task, queue, a_minute, most, slow, share = of
    wave = 1.0 + 0.4 * math.sin(at.timestamp() / 700 + nth) + 0.2 * math.sin(at.timestamp() / 131)  # type: ignore[attr-defined]
    number = round(a_minute * by * max(0.0, wave))
    failed = round(number * share * (3 if at.minute % 20 < 4 else 0.6))  # type: ignore[attr-defined]
    dead = failed // 4
    run, wait = [0] * BUCKETS, [0] * BUCKETS
    tail = number // 12
    run[bucket(most)], run[bucket(slow)] = number - tail, tail
    wait[bucket(0.08)], wait[bucket(0.6 * wave)] = number - number // 3, number // 3
    return RunCount(
        resolution=resolution,
        bucket=at,
        queue=queue,
        task=task,
        event=queue.startswith("@"),
        succeeded=number - failed,
        failed=failed - dead,
        dead=dead,
        run_seconds=most * (number - tail) + slow * tail,
        wait_seconds=0.2 * number,
        longest=slow if tail else most,
        run=run,
        wait=wait,
    )
