"""
The jobs of the partition: limited, unique, transactional, async, and plain ones that are deaf to what they are told.

What happens to a run is written down twice: in the database, for the books of the storm, and in a file of its host, which
can be written while the database is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import connection

from django_pgbus import TaskSuperseded, ensures_uniqueness, limits_concurrency, task
from tests.storm.tables import BEGAN, ENDED

TICK: Final = 0.02
PATIENCE: Final = 60.0  # seconds that a run waits for the network, to note its end
NOTES: Final = "the notes of a job"
LEDGER: Final = "INSERT INTO hosts_ledger (id) VALUES (%s::bigint)"

_mine = threading.local()


def soon(exception: BaseException, result: Any) -> float:
    return 0.2


def limit_key(limited: str, *args: Any) -> str:
    return limited


def unique_key(limited: str, only: str, *args: Any) -> str:
    return only


def say(what: str, result: Any) -> None:
    """Write into the file of this host."""
    seen = {"what": what, "id": int(result.id), "kind": result.task.name, "delivery": len(result.worker_ids)}
    line = json.dumps({**seen, "pid": os.getpid(), "at": time.time()})
    with Path(settings.HOSTS_FILE).open("a") as file:
        file.write(line + "\n")


def _note(statement: str, *values: Any, patience: float) -> Any:
    deadline = time.monotonic() + patience
    while True:
        try:
            if getattr(_mine, "connection", None) is None or _mine.connection.closed:
                known = connection.get_connection_params()
                names = ("dbname", "user", "host", "port")
                _mine.connection = psycopg.connect(
                    **{name: known[name] for name in names},
                    autocommit=True,
                    connect_timeout=2,
                    tcp_user_timeout=2000,
                    application_name=NOTES,
                )
            cursor = _mine.connection.execute(statement, values)
            return cursor.fetchone()[0] if cursor.description else None
        except psycopg.OperationalError:
            with contextlib.suppress(Exception):
                _mine.connection.close()
            _mine.connection = None
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _run(context: Any, limited: str | None, allowed: int | None, only: str | None, seconds: float) -> None:
    result = context.task_result
    run = _note(BEGAN, int(result.id), result.worker_ids[-1], os.getpid(), limited, allowed, only, patience=0.0)
    say("began", result)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(TICK)
    except TaskSuperseded:
        say("told", result)
        raise
    say("ended", result)
    _note(ENDED, run, patience=PATIENCE)


@limits_concurrency(to=1, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=20)
def one(context: Any, limited: str, seconds: float) -> None:
    _run(context, limited, 1, None, seconds)


@ensures_uniqueness(key=unique_key, strategy="while_executing")
@limits_concurrency(to=3, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=20)
def three_alone(context: Any, limited: str, only: str, seconds: float) -> None:
    _run(context, limited, 3, only, seconds)


@ensures_uniqueness(key=lambda only, *args: only, on_conflict="discard")
@task(takes_context=True, backoff=soon, max_attempts=20)
def unique(context: Any, only: str, seconds: float) -> None:
    _run(context, None, None, only, seconds)


@task(takes_context=True, backoff=soon, max_attempts=20)
def plain(context: Any, seconds: float) -> None:
    """Run to its end, whatever happens; what it returns is refused if somebody took over."""
    result = context.task_result
    say("began", result)
    time.sleep(seconds)
    say("ended", result)


@task(takes_context=True, backoff=soon, max_attempts=20)
async def calm(context: Any, seconds: float) -> None:
    result = context.task_result
    say("began", result)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        say("cancelled", result)
        raise
    say("ended", result)


@task(takes_context=True, transactional=True, backoff=soon, max_attempts=20)
def entered(context: Any, seconds: float) -> None:
    """Write one row, in the transaction that settles the job."""
    result = context.task_result
    with connection.cursor() as cursor:
        cursor.execute(LEDGER, [int(result.id)])
    say("began", result)
    time.sleep(seconds)
    say("ended", result)
