"""Tasks of the tests: workers, and what they read back, find them here by path."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from django_pgbus import task
from django_pgbus.tasks.compat import Task


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task(takes_context=True, sensitive=("token", "extras"))
def login(context: Any, user: str, token: str, *codes: str, remember: bool = False, **extras: Any) -> None:
    raise ValueError(f"refused: {token!r}")


def slower_each_time(exception: BaseException, task_result: Any) -> float:
    return 10.0 * task_result.attempts


@task(
    queue_name="imports",
    priority=7,
    max_attempts=8,
    backoff=slower_each_time,
    timeout=timedelta(minutes=5),
    transactional=True,
    sensitive=["token"],
)
def import_order(order_id: int, token: str = "") -> int:
    return order_id


@task(backoff=lambda exception, task_result: 1)
async def aadd(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


class Shop:
    @task
    def close(day: str) -> str:  # noqa: N805
        return day


def _function_of_another_name() -> None: ...


another_name: Task = task(_function_of_another_name)


@task
def replaced() -> str:
    return "first"


replaced_first = replaced


@task
def replaced() -> str:
    return "second"


def not_a_task() -> None: ...


@task(max_attempts=1)
def echo(value: Any) -> Any:
    return {"x": {1}} if value == "set" else value


@task(max_attempts=1, sensitive=("token",))
def fails_with(user: str, token: str) -> None:
    raise ValueError(f"refused: {token!r} of {user}")
