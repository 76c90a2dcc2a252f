"""
The jobs of the chaos, one for each kind of work.

Each notes when it began and ended, and how, on a connection of its own that leads past the proxy.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
import uuid
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection

from django_pgbus import Snooze, ensures_uniqueness, limits_concurrency, task
from tests.chaos.tables import BEGAN, ENDED
from tests.storm.notes import note
from tests.storm.tasks import limit_key, soon, unique_key

MOST: Final = 40  # attempts of what must not become a dead letter: the kills are many
FEW: Final = 3  # attempts of what must


class Expected(Exception):
    """The job fails as it was told to."""


class Run:
    """A run that notes its beginning and its end."""

    def __init__(self, kind: str, context: Any, limited: str | None, allowed: int | None, only: str | None) -> None:
        result = context.task_result
        self.token, self.id, self.kind = uuid.uuid4(), int(result.id), kind
        self.attempt = context.attempt
        self._rest = (result.worker_ids[-1], os.getpid(), kind, self.attempt, limited, allowed, only)

    def begin(self) -> Run:
        note(BEGAN, self.token, self.id, *self._rest)
        return self

    def end(self, outcome: str = "succeeded") -> None:
        note(ENDED, outcome, self.token)


def _run(
    kind: str,
    context: Any,
    seconds: float,
    limited: str | None = None,
    allowed: int | None = None,
    only: str | None = None,
    fails: float = 0.03,
) -> None:
    run = Run(kind, context, limited, allowed, only).begin()
    _sleep(seconds)
    if (chance := random.random()) < fails:
        run.end("failed")
        raise Expected
    if chance < fails * 1.5:
        run.end("snoozed")
        raise Snooze(0.1)
    run.end()


def _sleep(seconds: float) -> None:
    """Sleep in short pieces, so that a superseded run can be told."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))


@task(takes_context=True, backoff=soon, max_attempts=MOST)
def plain(context: Any, seconds: float) -> None:
    _run("plain", context, seconds, fails=0.0)


@task(takes_context=True, backoff=soon, max_attempts=MOST)
def delayed(context: Any, seconds: float) -> None:
    _run("delayed", context, seconds, fails=0.0)


@task(takes_context=True, backoff=soon, max_attempts=MOST)
def slow(context: Any, seconds: float) -> None:
    _run("slow", context, seconds, fails=0.0)


@task(takes_context=True, backoff=soon, max_attempts=MOST)
async def awaits(context: Any, seconds: float) -> None:
    run = Run("async", context, None, None, None)
    await sync_to_async(run.begin)()
    await asyncio.sleep(seconds)
    await sync_to_async(run.end)()


@limits_concurrency(to=1, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=MOST)
def one(context: Any, limited: str, seconds: float) -> None:
    _run("limited", context, seconds, limited, 1)


@limits_concurrency(to=2, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=MOST)
def two(context: Any, limited: str, seconds: float) -> None:
    _run("limited", context, seconds, limited, 2)


@limits_concurrency(to=3, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=MOST)
def three(context: Any, limited: str, seconds: float) -> None:
    _run("limited", context, seconds, limited, 3)


@ensures_uniqueness(key=lambda only, *args: only, on_conflict="discard")
@task(takes_context=True, backoff=soon, max_attempts=MOST)
def once(context: Any, only: str, seconds: float) -> None:
    _run("unique", context, seconds, only=only)


@ensures_uniqueness(key=lambda only, *args: only, strategy="while_executing")
@task(takes_context=True, backoff=soon, max_attempts=MOST)
def alone(context: Any, only: str, seconds: float) -> None:
    _run("alone", context, seconds, only=only)


@ensures_uniqueness(key=unique_key, strategy="while_executing")
@limits_concurrency(to=2, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=MOST)
def two_alone(context: Any, limited: str, only: str, seconds: float) -> None:
    _run("limited_unique", context, seconds, limited, 2, only)


@ensures_uniqueness(key=unique_key, on_conflict="discard")
@limits_concurrency(to=1, key=limit_key)
@task(takes_context=True, backoff=soon, max_attempts=MOST)
def one_once(context: Any, limited: str, only: str, seconds: float) -> None:
    _run("limited_once", context, seconds, limited, 1, only)


@task(takes_context=True, backoff=soon, max_attempts=MOST, transactional=True)
def transactional(context: Any, seconds: float) -> None:
    """Leave one row, in the transaction that settles it."""
    run = Run("transactional", context, None, None, None).begin()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO chaos_effects (id, pid) VALUES (%s::bigint, %s::int)", [run.id, os.getpid()])
    time.sleep(seconds)
    if random.random() < 0.05:
        run.end("failed")
        raise Expected
    run.end()


@task(takes_context=True, backoff=soon, max_attempts=MOST)
def failing(context: Any, times: int, seconds: float) -> None:
    """Fail so many times, then succeed."""
    run = Run("failing", context, None, None, None).begin()
    time.sleep(seconds)
    if run.attempt <= times:
        run.end("failed")
        raise Expected
    run.end()


@task(takes_context=True, backoff=soon, max_attempts=FEW)
def always(context: Any, seconds: float) -> None:
    """Fail until it is a dead letter."""
    run = Run("always", context, None, None, None).begin()
    time.sleep(seconds)
    run.end("failed")
    raise Expected


@task(takes_context=True, backoff=soon, max_attempts=MOST)
def snoozing(context: Any, seconds: float) -> None:
    run = Run("snoozing", context, None, None, None).begin()
    time.sleep(seconds)
    if random.random() < 0.5:
        run.end("snoozed")
        raise Snooze(0.2)
    run.end()


@task(takes_context=True, backoff=soon, max_attempts=FEW)
def poison(context: Any, how: str) -> None:
    """End its process with it, always."""
    Run("poison", context, None, None, None).begin()
    if how == "exit":
        os._exit(17)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@task(takes_context=True, backoff=soon, max_attempts=MOST)
def in_batch(context: Any, seconds: float) -> None:
    _run("batch", context, seconds)


@task(takes_context=True, backoff=soon, max_attempts=FEW)
def in_batch_dies(context: Any, seconds: float) -> None:
    run = Run("batch_dies", context, None, None, None).begin()
    time.sleep(seconds)
    run.end("failed")
    raise Expected


# A rolling deploy: the version before does not know `new`, the version after has lost `old`.
VERSION: Final = getattr(settings, "CHAOS_VERSION", "both")

if VERSION != "after":

    @task(takes_context=True, backoff=soon, max_attempts=MOST)
    def old(context: Any, seconds: float) -> None:
        _run("old_new", context, seconds, fails=0.0)


if VERSION != "before":

    @task(takes_context=True, backoff=soon, max_attempts=MOST)
    def new(context: Any, seconds: float) -> None:
        _run("old_new", context, seconds, fails=0.0)
