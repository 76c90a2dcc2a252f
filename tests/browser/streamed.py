"""A shop with streams: groups that work, lag, wait, refuse and fail, and a log that is kept for one of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db import connection

from django_pgbus.models import ConsumerGroup, EntryException, StreamLog
from django_pgbus.streams import partitions
from tests.admin import consumers, rows  # noqa: F401  (the consumers are declared)
from tests.admin.rows import now
from tests.admin.stream_rows import (
    GONE_CONSUMER,
    a_dead,
    a_failed,
    a_group,
    a_lease,
    a_stream,
    a_waiting,
    age,
    skip,
)

PAID = {"order_id": 1043, "token": "tok_live_31337", "cents": 1999, "lines": [{"sku": "LP-17", "cents": 1999}]}
CALM = "catalogue"


@dataclass(frozen=True)
class Streamed:
    ledger: StreamLog
    calm: StreamLog
    empty: StreamLog
    totals: ConsumerGroup
    masked: EntryException
    gone: EntryException
    retried: EntryException
    waits: EntryException


def some_streams() -> Streamed:
    StreamLog.objects.all().delete()
    follows = "catalogue/prices, ledger/mail, ledger/monthly-report, ledger/reminders, ledger/totals"
    worker = rows.a_worker(queues="*: 10", running=2, streams=follows)
    ledger = a_stream("ledger", 1, partition_size=10_000, retention=timedelta(days=90))
    _fill(ledger, 61_000)
    skip(ledger)
    _fill(ledger, 204)
    age(ledger, timedelta(seconds=40))
    age(ledger, timedelta(days=2, hours=3), up_to=60_400)
    age(ledger, timedelta(days=131), up_to=39_999)
    totals = a_group(ledger, "totals", claimed=61_000, committed=58_000)
    mail = a_group(ledger, "mail", claimed=61_206, committed=61_000, handler="tests.admin.consumers.mail", keyed=True)
    search = a_group(ledger, "search-index", claimed=14_210, handler=GONE_CONSUMER)
    a_group(ledger, "monthly-report", claimed=58_400, handler="shop.ledger.monthly_report", epoch="7311/16421")
    a_group(ledger, "reminders", claimed=61_206, handler="shop.ledger.remind", routes=True)
    ConsumerGroup.objects.filter(pk=search.pk).update(paused_at=now() - timedelta(days=92))
    a_lease(totals, 60_000, 60_500, worker.id, claimed_at=now() - timedelta(seconds=3))
    a_lease(
        totals,
        60_500,
        61_000,
        claimed_at=now() - timedelta(seconds=95),
        until=now() - timedelta(seconds=20),
        reclaims=1,
    )
    retried = a_failed(mail, 61_104, attempts=3, due_at=now() + timedelta(seconds=18), key="customer-4702")
    waits = a_waiting(mail, 61_190, "customer-4702")
    a_failed(mail, 61_120, status="running", attempts=2, until=now() + timedelta(seconds=25), key="customer-118")
    masked = a_dead(mail, 60_871, PAID, key="customer-77", failed_at=now() - timedelta(hours=5))
    for nth in range(3):
        gone = a_dead(
            search,
            9_120 + nth,
            {"order_id": nth, "email": "anna@example.dk"},
            exception="builtins.ImportError",
            traceback="ImportError: cannot import name 'index' from 'shop.search'",
        )
    calm = a_stream(CALM, 1, partition_size=1000)
    _fill(calm, 480)
    a_group(calm, "prices", claimed=481, handler="shop.catalogue.prices")
    return Streamed(ledger, calm, a_stream("newsletter"), totals, masked, gone, retried, waits)


def _fill(stream: StreamLog, entries: int) -> None:
    partitions.make_room(stream.pk, stream.partition_size, entries)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO pgbus_stream_{stream.pk} (payload) SELECT json_build_object('account', n %% 90, 'cents', n)"
            " FROM generate_series(1, %s) AS n",
            [entries],
        )
        cursor.execute(f"ANALYZE pgbus_stream_{stream.pk}")
