"""
The jobs of the storm: limited, unique, or both.

Each sleeps a little, and now and then fails, or asks to be run later.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from typing import Any, Final

import psycopg
from django.db import connection

from django_pgbus import Snooze, ensures_uniqueness, limits_concurrency, task
from tests.storm.tables import BEGAN, ENDED

PATIENCE: Final = 20.0  # seconds that a run waits for the database to come back, to note its end
FAILS: Final = 0.04
SNOOZES: Final = 0.02

_mine = threading.local()


def soon(exception: BaseException, result: Any) -> float:
    return 0.2


def limit_key(limited: str, *args: Any) -> str:
    return limited


def unique_key(limited: str, only: str, *args: Any) -> str:
    return only


def _run(context: Any, limited: str | None, allowed: int | None, only: str | None, seconds: float) -> None:
    result = context.task_result
    ours = (int(result.id), result.worker_ids[-1], os.getpid(), limited, allowed, only)
    run = _note(BEGAN, *ours, patience=0.0)
    time.sleep(seconds)
    _note(ENDED, run, patience=PATIENCE)
    if (chance := random.random()) < FAILS:
        raise ValueError("by chance")
    if chance < FAILS + SNOOZES:
        raise Snooze(0.1)


def _note(statement: str, *values: Any, patience: float) -> Any:
    """Write it down at once, whatever transaction the job is in."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if getattr(_mine, "connection", None) is None or _mine.connection.closed:
                names = ("dbname", "user", "password", "host", "port")
                known = connection.get_connection_params()
                _mine.connection = psycopg.connect(
                    **{name: known[name] for name in names if known.get(name)}, autocommit=True, connect_timeout=5
                )
            cursor = _mine.connection.execute(statement, values)
            return cursor.fetchone()[0] if cursor.description else None
        except psycopg.OperationalError:
            with contextlib.suppress(Exception):
                _mine.connection.close()
            _mine.connection = None
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


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
