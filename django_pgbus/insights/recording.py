"""Adding up what runs came to, in the memory of a process, and writing the sums."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

from django.db import transaction

from django_pgbus.conf import database
from django_pgbus.insights import sql
from django_pgbus.insights.histogram import BOUNDS, BUCKETS
from django_pgbus.postgres.arrays import numbers, texts
from django_pgbus.queues.message import Delivery

MOST: Final = 500  # pairs of task and queue between two writes
PATIENCE: Final = "100ms"  # with whoever has locked the table
OTHER: Final = ("", "", False)  # what is beyond `MOST`

Pair = tuple[str, str, bool]  # queue, task, whether it is a handler of events


class Verdict(IntEnum):
    """What a run came to, as it is counted."""

    SUCCEEDED = 0
    FAILED = 1  # and is tried again
    DEAD = 2
    SNOOZED = 3
    SUPERSEDED = 4
    HANDED_BACK = 5


LAST_OF_A_RUN: Final = int(Verdict.SNOOZED)  # what comes after it came to nothing


class Count:
    """The sums of one pair."""

    __slots__ = ("longest", "numbers", "run", "run_seconds", "wait", "wait_seconds")

    def __init__(self) -> None:
        self.numbers = [0] * len(Verdict)
        self.run_seconds = self.wait_seconds = self.longest = 0.0
        self.run = [0] * BUCKETS
        self.wait = [0] * BUCKETS


class Tally:
    """
    The sums since the last write; used by one thread.

    Adding is on the path of every job, and costs about a microsecond: few calls, and no attribute of an enumeration.
    """

    def __init__(self) -> None:
        self._counts: dict[Pair, Count] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, delivery: Delivery, verdict: Verdict, ran_for: float | None) -> None:
        """Count a run, and unless it came to nothing how long it took and had waited; None is one that did not run."""
        pair = (delivery.level.queue, delivery.task, delivery.event is not None)
        count = self._counts.get(pair) or self._new(pair)
        count.numbers[verdict] += 1
        if ran_for is None or verdict > LAST_OF_A_RUN:
            return
        count.run_seconds += ran_for
        count.run[bisect_left(BOUNDS, ran_for)] += 1
        if ran_for > count.longest:
            count.longest = ran_for
        ready_at, started_at = delivery.ready_at, delivery.started_at
        if ready_at is not None and started_at:
            waited = started_at - ready_at if started_at > ready_at else 0.0
            count.wait_seconds += waited
            count.wait[bisect_left(BOUNDS, waited)] += 1

    def _new(self, pair: Pair) -> Count:
        if len(self._counts) >= MOST:
            pair = OTHER
        return self._counts.setdefault(pair, Count())

    def write(self) -> int:
        """
        Write the sums and begin anew; return of how many pairs. What cannot be written is kept.

        One whose COMMIT is not answered is not written again: rather too few for a few seconds than twice for ever.
        Locks: none.
        """
        if not self._counts:
            return 0
        with transaction.atomic(using=database()):
            sql.WAIT_AT_MOST.tuples(patience=PATIENCE)
            written = sql.COUNT.count(**_columns(self._counts))
            self._counts = {}
        return written


def _columns(counts: dict[Pair, Count]) -> dict[str, Any]:
    queues, tasks, events = zip(*counts, strict=True)
    rows: Sequence[Count] = list(counts.values())
    by_verdict = list(zip(*(row.numbers for row in rows), strict=True))
    return {
        "queues": texts(queues),
        "tasks": texts(tasks),
        "events": list(events),
        **{verdict.name.lower(): numbers(by_verdict[verdict]) for verdict in Verdict},
        "run_seconds": numbers([row.run_seconds for row in rows]),
        "wait_seconds": numbers([row.wait_seconds for row in rows]),
        "longest": numbers([row.longest for row in rows]),
        "runs": numbers([number for row in rows for number in row.run]),
        "waits": numbers([number for row in rows for number in row.wait]),
    }
