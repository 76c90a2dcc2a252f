"""
The groups of the stream `steps`. An entry says what its handler does: how long it takes, and whether it fails or kills.

They write down when they began and ended, as the tasks do; what stands in `once` is done in the first run only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

from django.db import connections

from django_pgbus import Stream, consume
from tests.processes.tasks import arecord, record, value_of

Stream("steps")


def at_once(exception: BaseException, entry: Any) -> float:
    return 0.0


def apart(name: str, event: str) -> None:
    """Write it down in a transaction of its own, whatever becomes of that of the handler."""

    def write() -> None:
        record(name, event)
        connections.close_all()

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def name_of(entry: Any) -> str:
    return f"{entry.payload['name']} {entry.payload['n']}"


def step(entry: Any) -> None:
    payload, name = entry.payload, name_of(entry)
    first = not value_of(name, "began")
    record(name, "began")
    if payload.get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if first or not payload.get("once"):
        deadline = time.monotonic() + payload.get("seconds", 0)
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(left if payload.get("stubborn") else min(left, 0.05))
    if payload.get("fails"):
        raise ValueError("it fails")
    record(name, "ended")


@consume("steps", group="entries", max_attempts=3, backoff=at_once)
def entries(entry: Any) -> None:
    step(entry)


@consume("steps", group="others", max_attempts=3, backoff=at_once)
def others(entry: Any) -> None:
    record(f"others {name_of(entry)}", "ran")


@consume("steps", group="batches", batch_size=10, max_attempts=3, backoff=at_once)
def batches(entries: Any) -> None:
    for entry in entries:
        step(entry)


@consume("steps", group="atomic", batch_size=10, transactional=True, max_attempts=3, backoff=at_once)
def atomic(entries: Any) -> None:
    for entry in entries:
        apart(name_of(entry), "began")
        record(name_of(entry), "effect")
        time.sleep(entry.payload.get("seconds", 0))


@consume("steps", group="asleep")
async def asleep(entry: Any) -> None:
    await arecord(name_of(entry), "began")
    await asyncio.sleep(entry.payload.get("seconds", 0))
    await arecord(name_of(entry), "ended")


@consume("steps", group="limited", timeout=0.5, max_attempts=2, backoff=at_once)
def limited(entry: Any) -> None:
    step(entry)
