"""The tasks of the soak. Each writes down that it began, and then takes a few milliseconds as if it asked a service."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from asgiref.sync import sync_to_async

from django_pgbus import ensures_uniqueness, limits_concurrency, task
from tests.chaos.soaked.tables import ran, sell

CALLBACK = 1  # the part that the end of a batch is


def soon(exception: BaseException, result: Any) -> float:
    return 1.0


def key_of(number: int, key: str, seconds: float) -> str:
    return key


def gateway_of(number: int, key: str, seconds: float) -> str:
    return f"gateway {key[-1]}"


@task
def plain(number: int, seconds: float) -> None:
    ran(number)
    time.sleep(seconds)


@task
async def aplain(number: int, seconds: float) -> None:
    await sync_to_async(ran)(number)
    await asyncio.sleep(seconds)


@task(transactional=True)
def transactional(number: int, article: int) -> None:
    """Leave both rows in the transaction that settles it."""
    ran(number)
    sell(article)


@ensures_uniqueness(key=key_of)
@task
def unique(number: int, key: str, seconds: float) -> None:
    ran(number)
    time.sleep(seconds)


@limits_concurrency(to=2, key=key_of)
@task
def limited(number: int, key: str, seconds: float) -> None:
    ran(number)
    time.sleep(seconds)


@ensures_uniqueness(key=key_of, strategy="while_executing")
@limits_concurrency(to=3, key=gateway_of)
@task
def limited_unique(number: int, key: str, seconds: float) -> None:
    ran(number)
    time.sleep(seconds)


@task(takes_context=True, max_attempts=3, backoff=soon)
def fails_once(context: Any, number: int, seconds: float) -> None:
    ran(number)
    time.sleep(seconds)
    if context.attempt == 1:
        raise ConnectionError("The service is away.")


@task(max_attempts=2, backoff=soon)
def never_succeeds(number: int, seconds: float) -> None:
    ran(number)
    time.sleep(seconds)
    raise ValueError("There is no such article.")


@task
def member(number: int, seconds: float) -> None:
    ran(number)
    time.sleep(seconds)


@task
def batch_ended(batch: dict[str, Any]) -> None:
    ran(batch["properties"]["number"], CALLBACK)
