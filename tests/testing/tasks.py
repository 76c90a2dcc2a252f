"""Tasks that the testing helpers run."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone, translation

from django_pgbus import Snooze, task

log: list[Any] = []


@task
def note(value: Any, *, loud: bool = False) -> Any:
    log.append(value)
    return value


@task(queue_name="mail")
def mail(value: Any) -> None:
    log.append(value)


@task
def adds_group(name: str) -> int:
    return Group.objects.create(name=name).pk


@task
async def adds_group_async(name: str) -> int:
    return (await Group.objects.acreate(name=name)).pk


@task(max_attempts=2, backoff=lambda exception, result: 3600)
def fails_after_writing(name: str) -> None:
    Group.objects.create(name=name)
    raise ValueError(name)


@task(max_attempts=1)
def fails_in_sql() -> None:
    Group.objects.create(name="lost")
    Group.objects.create(name="lost")


@task(max_attempts=1)
def fails_in_raw_sql() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


@task(max_attempts=1)
def swallows_sql_failure() -> None:
    Group.objects.create(name="lost")
    with contextlib.suppress(IntegrityError):
        Group.objects.create(name="lost")


@task(max_attempts=1)
def fails_in_sql_elsewhere() -> None:
    Group.objects.using("other").create(name="lost")
    Group.objects.using("other").create(name="lost")


@task(transactional=True, max_attempts=1)
def transactional(name: str, fail: bool = False) -> None:
    Group.objects.create(name=name)
    if fail:
        raise ValueError(name)


@task(transactional=True, max_attempts=1)
def transactional_that_loses_the_database() -> None:
    raise OperationalError("the connection is gone")


@task
def durable(name: str) -> None:
    with transaction.atomic(durable=True):
        Group.objects.create(name=name)


@task
def chain(left: int) -> int:
    log.append(left)
    if left:
        chain.enqueue(left - 1)
    return left


@task
async def achain(left: int) -> int:
    log.append(left)
    if left:
        await achain.aenqueue(left - 1)
    return left


@task
def on_commit_enqueues(value: Any) -> None:
    transaction.on_commit(lambda: note.enqueue(value))


@task
def enqueues_itself() -> None:
    enqueues_itself.enqueue()


@task
def speaks_german() -> str:
    before = translation.get_language()
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    return str(before)


@task
async def speaks_german_async() -> str:
    translation.activate("de")
    await asyncio.sleep(0)
    return translation.get_language()


@task(max_attempts=2, backoff=lambda exception, result: timedelta(hours=1))
def fails_always() -> None:
    log.append("fails")
    raise LookupError("always")


@task
def snoozes_once() -> None:
    log.append("snoozes")
    if log.count("snoozes") == 1:
        raise Snooze(3600)


@task(max_attempts=1)
def exits() -> None:
    raise SystemExit(3)


@task(max_attempts=3)
def interrupted() -> None:
    raise KeyboardInterrupt


@task(takes_context=True)
def tells_attempt(context: Any) -> int:
    return context.attempt


@task(sensitive=("token",))
def login(user: str, token: str) -> None:
    log.append(user)


def backend_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@task
def tells_backend() -> int:
    return backend_pid()


@task
async def tells_backend_async() -> int:
    from asgiref.sync import sync_to_async

    return await sync_to_async(backend_pid)()
