"""Streams for tests, declared for one test only, and what one looks at in their logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_pgbus import Stream
from django_pgbus.models import ConsumerGroup, Cursor, StreamLog
from django_pgbus.streams import logs, partitions, stream
from tests.sessions import execute


@pytest.fixture
def declared(db: None) -> Iterator[dict[str, stream.Declared]]:
    """Let no stream be declared, or be there, but what the test declares."""
    before = dict(stream.streams)
    stream.streams.clear()
    StreamLog.objects.all().delete()
    logs.drop_left_behind()
    yield stream.streams
    stream.streams.clear()
    stream.streams.update(before)
    logs.forget()


def made(name: str = "ledger", **options: Any) -> Stream:
    """Return a stream that is there."""
    found = Stream(name, **options)
    found.ensure()
    return found


def numbers(log: Stream) -> list[int]:
    """Return which partitions are attached."""
    return [found.number for found in partitions.attached(log.id())]


def tables(log: Stream | None = None) -> list[str]:
    """Return the tables of a log, or of all."""
    of = r"\d+" if log is None else str(log.id())
    return [
        name
        for (name,) in execute(
            "SELECT relname FROM pg_class WHERE relname ~ %s AND relkind IN ('r', 'p') ORDER BY relname",
            [rf"^pgbus_stream_{of}(_p\d+)?$"],
        )
    ]


def payloads(log: Stream, after: int = 0) -> list[Any]:
    return [entry.payload for entry in log.read(after, 10_000)]


def age(log: Stream, seconds: float, upto: int = 1 << 40) -> None:
    """Let entries look as if they had been appended so long before."""
    execute(
        f"UPDATE pgbus_stream_{log.id()} SET appended_at = appended_at - make_interval(secs => %s) WHERE position <= %s",
        [seconds, upto],
    )


def group(log: Stream, name: str = "readers", committed: int | None = 0) -> ConsumerGroup:
    """Make a group; with a cursor, unless `committed` is None."""
    row = ConsumerGroup.objects.create(stream=StreamLog.objects.get(name=log.name), name=name, handler="h")
    if committed is not None:
        Cursor.objects.create(group=row, claimed=committed, committed=committed, fence=1, epoch="e")
    return row
