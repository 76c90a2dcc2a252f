"""Tasks that tests run."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import defaultdict
from typing import Any

from django_pgbus import Snooze, task

calls: list[Any] = []
gates: dict[str, threading.Event] = defaultdict(threading.Event)
reached: dict[str, threading.Event] = defaultdict(threading.Event)


@task
def noop(*args: Any, **kwargs: Any) -> None:
    return None


@task
def note(value: Any) -> Any:
    calls.append(value)
    return value


@task
async def anote(value: Any) -> Any:
    await asyncio.sleep(0)
    calls.append(value)
    return value


@task(max_attempts=3, backoff=lambda exception, result: 0)
def fails(message: str = "no") -> None:
    calls.append(message)
    raise ValueError(message)


@task(max_attempts=1)
def exits(code: int) -> None:
    raise SystemExit(code)


@task(takes_context=True, max_attempts=3, backoff=lambda exception, result: 0)
def fails_once(context: Any) -> int:
    if context.attempt == 1:
        raise ValueError("first")
    return context.attempt


@task(max_attempts=2)
def snoozes(seconds: float) -> None:
    calls.append("snooze")
    raise Snooze(seconds)


@task
def waits(gate: str) -> str:
    """Run until the test opens the gate; only where test and worker share a process."""
    reached[gate].set()
    gates[gate].wait(30)
    calls.append(gate)
    return gate


@task
async def awaits(seconds: float) -> None:
    reached["awaits"].set()
    await asyncio.sleep(seconds)


@task(timeout=0.2, max_attempts=1)
def loops_for_ever() -> None:
    while True:
        time.sleep(0.01)


@task(timeout=5, max_attempts=1)
def hurried() -> None:
    return None


@task(timeout=0.1, max_attempts=1)
async def sleeps_for_ever() -> None:
    await asyncio.sleep(60)


@task
def chain(links: int) -> None:
    """Enqueue the next one, as a job may."""
    if links:
        chain.enqueue(links - 1)


@task
def dies() -> None:
    os._exit(9)


@task(sensitive=("token",), max_attempts=1)
def login(user: str, token: str) -> None:
    raise ValueError(f"bad token {token}")
