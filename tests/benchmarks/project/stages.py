"""
When a job passed each station of a worker, for `profile_latency.py`.

An app of the project where `BENCH_STAGES` is set. Each station writes one line "station seconds number" to a file of its
process; what is heard names no job.
"""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any

from django.apps import AppConfig

from tests.benchmarks.counters import RUN


class Stages(AppConfig):
    """Watches from the start: what a process makes of its parts keeps their methods."""

    name = "tests.benchmarks.project"
    label = "stages"

    def ready(self) -> None:
        """Put the stations in."""
        watch()


_file: dict[int, int] = {}


def note(station: str, number: int = -1, at: float | None = None) -> None:
    """Write down that a station was passed at this time (None: now)."""
    now, me = time.time() if at is None else at, os.getpid()
    if me not in _file:
        _file[me] = os.open(RUN / f"{me}.stages", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_file[me], f"{station} {now!r} {number}\n".encode())


def numbers(deliveries: list[Any]) -> list[int]:
    """Return the numbers of timed jobs among these."""
    arguments = (json.loads(delivery.payload)["args"] for delivery in deliveries)
    return [args[0] for args in arguments if args]


def watch() -> None:
    """Let the stations write."""
    from django_pgbus.queues.line import Line
    from django_pgbus.worker.capsule import Capsule
    from django_pgbus.worker.consumer import Consumer

    hear, read, claim, run = Consumer.hear, Consumer._read_notes, Line.claim, Capsule._run

    @functools.wraps(hear)
    def heard(self: Any, notes: list[Any]) -> None:
        if any(isinstance(one, list) and one[:1] == ["ready"] for one in notes):
            note("heard")
        hear(self, notes)

    @functools.wraps(read)
    def woken(self: Any) -> None:
        if self._notes:
            note("woken")
        read(self)

    @functools.wraps(claim)
    def claimed(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        began = time.time()
        deliveries = claim(self, *args, **kwargs)
        for number in numbers(deliveries):
            note("asked", number, began)
            note("claimed", number)
        return deliveries

    @functools.wraps(run)
    def taken(self: Any, delivery: Any) -> None:
        for number in numbers([delivery]):
            note("taken", number)
        run(self, delivery)

    for owner, name, replaced in (
        (Consumer, "hear", heard),
        (Consumer, "_read_notes", woken),
        (Line, "claim", claimed),
        (Capsule, "_run", taken),
    ):
        setattr(owner, name, replaced)
