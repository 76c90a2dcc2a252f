"""Consumer groups for tests: a stream with entries, a group, and a worker that follows it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_pgbus import Stream
from django_pgbus.models import StreamLog
from django_pgbus.streams import groups, leases, logs
from django_pgbus.streams.consumers import Consumer, consume, consumers
from django_pgbus.streams.fence import Fence, check_session
from django_pgbus.streams.leases import Claim, GroupId, Range
from django_pgbus.streams.stream import streams
from tests.sessions import execute

LEASE = 30.0


@contextmanager
def nothing_declared() -> Iterator[None]:
    """Forget what is declared inside, and see nothing of what is declared outside."""
    before = dict(consumers), dict(streams)
    consumers.clear()
    streams.clear()
    try:
        yield
    finally:
        for registry, was in zip((consumers, streams), before, strict=True):
            registry.clear()
            registry.update(was)


def a_stream(name: str = "ledger", entries: int = 0, **options: Any) -> Stream:
    """Return a stream that is there, with so many entries: {"n": 1}, {"n": 2} ..."""
    stream = Stream(name, **options)
    _drop_what_flush_has_made(name, options.get("partition_size"))
    stream.ensure()
    if entries:
        stream.append_many([{"n": n + 1} for n in range(entries)])
    return stream


def _drop_what_flush_has_made(name: str, size: int | None) -> None:
    """Drop a log of this name that `flush` has made anew, since a module of other tests declares it."""
    for id, made in StreamLog.objects.filter(name=name, groups=None).values_list("id", "partition_size"):
        if made != (size or logs.PARTITION_SIZE) or not Stream(name).head():
            StreamLog.objects.filter(id=id).delete()
            logs.drop(id)
            logs.forget(name)


def a_group(func: Any = None, *, stream: str = "ledger", group: str = "totals", **options: Any) -> Consumer:
    """Declare a group, in this process and in the tables, and return its consumer."""
    consume(stream, group=group, **options)(func or nothing)
    groups.declare([consumers[stream, group]])
    return consumers[stream, group]


def nothing(entries: Any) -> None:
    """Handle entries without doing anything."""


class Claimer:
    """What a worker does to claim: looks, then claims; with a fence of its own."""

    def __init__(self, stream: str = "ledger", group: str = "totals", *, limit: int = 100) -> None:
        self.group: GroupId = groups.find(stream, group)
        self.system = check_session()
        self.fence = Fence()
        self.worker = uuid.uuid4()
        self.limit = limit
        self.claimed = 0
        self.done: uuid.UUID | None = None

    def look(self) -> Any:
        """Look, note what the snapshot proves, and return the row."""
        (row,) = groups.probe([self.group.id], self.system)
        self.fence.head = max(self.fence.head, row.head)
        self.fence.settled = max(self.fence.settled, row.settled_head)
        self.fence.prove(row.xmin, (row.pending_head, row.pending_xid))
        self.claimed = row.claimed
        leases.may_pass(self.group, self.fence)
        return row

    def claim(self, token: uuid.UUID | None = None) -> Claim:
        """Claim, without a look before."""
        found = leases.claim(
            self.group,
            self.fence,
            self.claimed,
            system=self.system,
            limit=self.limit,
            worker=self.worker,
            lease=LEASE,
            token=token or uuid.uuid4(),
            done=self.done,
        )
        self.done = None
        if found.claimed is not None:
            self.claimed = found.claimed
        return found

    def poll(self) -> list[int]:
        """Look and claim, and return the positions that were claimed; the range before counts as handled."""
        let_others_end()
        self.look()
        held = self.claim().range
        self.done = held and held.token
        return positions(held)


def let_others_end() -> None:
    """
    Wait for transactions of other tests on this server: what ran when a hole was seen delays its proof.

    Not for ever: they may wait for ours.
    """
    them = _others()
    deadline = time.monotonic() + 0.5
    while them & _others() and time.monotonic() < deadline:
        time.sleep(0.005)


def _others() -> set[Any]:
    return set(
        execute(
            """
            SELECT backend_xid::text FROM pg_stat_activity
            WHERE backend_xid IS NOT NULL
              AND (datname NOT IN (current_database(), 'postgres') OR backend_type = 'autovacuum worker')
            UNION ALL
            SELECT transaction::text FROM pg_prepared_xacts WHERE database <> current_database()
            """
        )
    )


def positions(held: Range | None) -> list[int]:
    """Return the positions of the entries of a range."""
    return [] if held is None else [row[0] for row in held.rows]
