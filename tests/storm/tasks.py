"""
The jobs of the storm: limited, unique, or both.

Each sleeps a little, and now and then fails, or asks to be run later.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any, Final

from django_pgbus import Snooze, ensures_uniqueness, limits_concurrency, task
from tests.storm.notes import note
from tests.storm.tables import BEGAN, ENDED

FAILS: Final = 0.04
SNOOZES: Final = 0.02


def soon(exception: BaseException, result: Any) -> float:
    return 0.2


def limit_key(limited: str, *args: Any) -> str:
    return limited


def unique_key(limited: str, only: str, *args: Any) -> str:
    return only


def _run(context: Any, limited: str | None, allowed: int | None, only: str | None, seconds: float) -> None:
    result = context.task_result
    ours = (int(result.id), result.worker_ids[-1], os.getpid(), limited, allowed, only)
    run = note(BEGAN, *ours, patience=0.0)
    time.sleep(seconds)
    note(ENDED, run)
    if (chance := random.random()) < FAILS:
        raise ValueError("by chance")
    if chance < FAILS + SNOOZES:
        raise Snooze(0.1)


@limits_concurrency(to=1, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=20)
def one(context: Any, limited: str, seconds: float) -> None:
    _run(context, limited, 1, None, seconds)


@limits_concurrency(to=2, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=20)
def two(context: Any, limited: str, seconds: float) -> None:
    _run(context, limited, 2, None, seconds)


@ensures_uniqueness(key=unique_key, strategy="while_executing")
@limits_concurrency(to=3, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=20)
def three_alone(context: Any, limited: str, only: str, seconds: float) -> None:
    _run(context, limited, 3, only, seconds)


@ensures_uniqueness(key=unique_key, strategy="while_executing")
@limits_concurrency(to=4, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=20)
def four_alone(context: Any, limited: str, only: str, seconds: float) -> None:
    _run(context, limited, 4, only, seconds)


@ensures_uniqueness(key=lambda only, *args: only, on_conflict="discard")
@task(takes_context=True, backoff=soon, max_attempts=20)
def unique(context: Any, only: str, seconds: float) -> None:
    _run(context, None, None, only, seconds)


@task
def batch_finished(batch: dict[str, Any]) -> None: ...


@task
def batch_succeeded(batch: dict[str, Any]) -> None: ...


@task
def batch_failed(batch: dict[str, Any]) -> None: ...
