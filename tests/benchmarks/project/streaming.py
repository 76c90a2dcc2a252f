"""Appending to the stream of the benchmark, and reading it without a worker."""

from __future__ import annotations

import random
import statistics
import threading
import time
import uuid
from typing import Any

from django.db import connection, connections, transaction

from django_pgbus.postgres.own_connection import PIN_PLANS, own_connection
from django_pgbus.streams import groups, leases, partitions
from django_pgbus.streams.consumers import consumers
from django_pgbus.streams.fence import Fence, check_session
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.project import driver
from tests.benchmarks.project.followed.streams import log

assert driver  # has set Django up
LIMIT = 1000


def declare() -> int:
    """Make the stream and the group, and return how many groups there are."""
    return groups.declare(consumers.values())


def append(seconds: float, rate: float, batch: int) -> dict[str, float]:
    """Append by the batch for so long, at a rate (0: as fast as it goes); return how many and how long it took."""
    began = nxt = time.perf_counter()
    count = 0
    late = 0.0
    while (now := time.perf_counter()) - began < seconds:
        if rate:
            if now < nxt:
                time.sleep(nxt - now)
            late = max(late, now - nxt)
            nxt += batch / rate
        log.append_many([{**ARGUMENTS, "n": count + n} for n in range(batch)])
        count += batch
    return {"count": count, "seconds": time.perf_counter() - began, "late": late}


def append_each(seconds: float, gap: float) -> dict[str, float]:
    """Append one by one, with a pause; return how many."""
    began = time.perf_counter()
    count = 0
    while time.perf_counter() - began < seconds:
        log.append(ARGUMENTS)
        count += 1
        time.sleep(gap)
    return {"count": count}


def overlap(seconds: float, producers: int, shortest: float, longest: float) -> dict[str, float]:
    """Let so many producers hold transactions, back to back, each with one entry appended as it begins; return how many."""
    counts = [0] * producers

    def produce(number: int) -> None:
        chance = random.Random(number)
        ends = time.perf_counter() + seconds
        try:
            while time.perf_counter() < ends:
                with transaction.atomic():
                    log.append(ARGUMENTS)
                    time.sleep(chance.uniform(shortest, longest))
                counts[number] += 1
        finally:
            connections.close_all()

    threads = [threading.Thread(target=produce, args=[number]) for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"count": sum(counts)}


def claims(entries: int) -> dict[str, float]:
    """
    Return entries a second that are claimed and freed, and that are read by ranges of positions alone.

    The two take turns, a thousand entries each, on one connection as a worker has it; first the log is filled, and all of it
    claimed once. Each rate is that of the turn in the middle: a pause of the machine is in one turn, not in the figure.
    """
    declare()
    for start in range(0, entries, 10_000):
        log.append_many([{**ARGUMENTS, "n": start + n} for n in range(min(10_000, entries - start))])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")
    own = own_connection("benchmark")
    own.connect()
    try:
        PIN_PLANS.tuples()
        with own.cursor() as cursor:
            cursor.execute("SET synchronous_commit = off")
        _claims(entries)  # The session meets each partition for the first time.
        groups.rewind("bench", "bench", 0)
        return _claims(entries)
    finally:
        own.close()


def _claims(entries: int) -> dict[str, float]:
    system, worker = check_session(), uuid.uuid4()
    group = groups.find("bench", "bench")
    (row,) = groups.probe([group.id], system)
    fence, claimed, done = Fence(head=row.head), 0, None
    found = 0
    claiming, reading = [], []
    while found < entries:
        low = claimed
        began = time.perf_counter()
        token = uuid.uuid4()
        claim = leases.claim(
            group,
            fence,
            claimed,
            system=system,
            limit=LIMIT,
            worker=worker,
            lease=30,
            token=token,
            done=done,
        )
        took = time.perf_counter() - began
        done = token
        if claim.range is None or claim.claimed is None:  # A hole: an append that found no partition takes a position.
            (row,) = groups.probe([group.id], system)
            claimed = row.claimed
            fence.prove(row.xmin, (row.pending_head, row.pending_xid))
            leases.may_pass(group, fence)
            continue
        claimed = claim.claimed
        found += len(claim.range.rows)
        claiming.append(len(claim.range.rows) / took)
        began = time.perf_counter()
        rows = leases.sql.READ_RANGE.of(group.stream).tuples(low=low, high=claim.range.high, limit=LIMIT)
        reading.append(len(rows) / (time.perf_counter() - began))
    parts: list[Any] = partitions.attached(group.stream)
    return {
        "claim_rate": statistics.median(claiming),
        "bare_rate": statistics.median(reading),
        "partitions": len(parts),
    }
