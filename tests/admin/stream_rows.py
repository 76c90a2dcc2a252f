"""Streams with entries, and rows of every table beside them, as the pages find them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connection

from django_pgbus import Stream
from django_pgbus.models import ConsumerGroup, Cursor, EntryException, RangeLease, StreamLog
from django_pgbus.streams import logs
from django_pgbus.streams.fence import FENCE
from django_pgbus.streams.stream import streams
from tests.admin.rows import TRACEBACK, now

HANDLER = "tests.admin.consumers.totals"
GONE_CONSUMER = "shop.consumers.renamed_last_week"


def a_stream(name: str = "ledger", entries: int = 0, **options: Any) -> StreamLog:
    """Return a stream with so many entries; one that `migrate` has made of what is declared makes room for it."""
    StreamLog.objects.filter(name=name).delete()
    logs.forget(name)
    with undeclared(name):
        stream = Stream(name, **options)
        stream.ensure()
        if entries:
            stream.append_many([{"n": nth} for nth in range(1, entries + 1)])
    return StreamLog.objects.get(name=name)


def append(stream: StreamLog, *payloads: Any) -> None:
    with undeclared(stream.name):
        Stream(stream.name).append_many(list(payloads))


@contextmanager
def undeclared(name: str) -> Iterator[None]:
    """Leave nothing declared behind: whoever migrates or flushes next would make it."""
    before = streams.pop(name, None)
    try:
        yield
    finally:
        streams.pop(name, None)
        if before is not None:
            streams[name] = before


def skip(stream: StreamLog, positions: int = 1) -> None:
    """Take positions that nobody will ever see, as a transaction that is rolled back does."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT nextval('pgbus_stream_{stream.pk}_position') FROM generate_series(1, {positions:d})")


def age(stream: StreamLog, by: timedelta, up_to: int = 1 << 40) -> None:
    """Let entries seem to have been appended so long ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE pgbus_stream_{stream.pk} SET appended_at = statement_timestamp() - %s WHERE position <= %s",
            [by, up_to],
        )


def epoch(stream: StreamLog) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || pg_relation_filenode(%s::regclass)",
            [f"pgbus_stream_{stream.pk}_position"],
        )
        return str(cursor.fetchone()[0])


def a_group(
    stream: StreamLog, name: str = "totals", *, claimed: int = 0, committed: int | None = None, **fields: Any
) -> ConsumerGroup:
    """Return a group that has a cursor."""
    of_cursor = {key: fields.pop(key) for key in ("fence", "epoch") if key in fields}
    group = ConsumerGroup.objects.create(**{"stream": stream, "name": name, "handler": HANDLER, **fields})
    place = {"claimed": claimed, "committed": claimed if committed is None else committed}
    Cursor.objects.create(**{"group": group, "fence": FENCE, "epoch": epoch(stream), **place, **of_cursor})
    return group


def a_lease(group: ConsumerGroup, low: int, high: int, worker: uuid.UUID | None = None, **fields: Any) -> RangeLease:
    lease = {"token": uuid.uuid4(), "worker": worker or uuid.uuid4(), "until": now() + timedelta(seconds=30)}
    return RangeLease.objects.create(**{"group": group, "low": low, "high": high, **lease, **fields})


def a_failed(group: ConsumerGroup, position: int, **fields: Any) -> EntryException:
    """Return an entry that failed twice and is tried again in a minute."""
    failed = {
        "attempts": 2,
        "due_at": now() + timedelta(minutes=1),
        "exception": "shop.rows.BrokenRow",
        "traceback": TRACEBACK,
        "failed_at": now() - timedelta(seconds=20),
    }
    return EntryException.objects.create(**{"group": group, "position": position, **failed, **fields})


def a_waiting(group: ConsumerGroup, position: int, key: str = "order-17") -> EntryException:
    """Return an entry that waits for an earlier one of its key."""
    return EntryException.objects.create(group=group, position=position, key=key)


def a_dead(group: ConsumerGroup, position: int, payload: Any = None, **fields: Any) -> EntryException:
    """Return a dead letter, which carries its entry."""
    body = {"order_id": 1043, "cents": 1999} if payload is None else payload
    died = {
        "status": "dead",
        "attempts": 4,
        "payload": json.dumps(body),
        "appended_at": now() - timedelta(hours=2),
    }
    return a_failed(group, position, **{**died, **fields})
