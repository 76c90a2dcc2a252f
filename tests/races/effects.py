"""Transactional tasks with an effect that can be counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_pgbus import task
from tests.sessions import execute

calls: list[Any] = []
on_call: list[Callable[[int], None]] = []  # done by each call after its effect, with the number of the call


@task(transactional=True, max_attempts=3, backoff=lambda exception, result: 0)
def effect(value: int) -> int:
    calls.append(value)
    execute("INSERT INTO pgbus_test_effects VALUES (%s)", [value])
    for step in on_call:
        step(len(calls))
    return value


@task(max_attempts=3, backoff=lambda exception, result: 0)
def loose_effect(value: int) -> None:
    calls.append(value)
    execute("INSERT INTO pgbus_test_effects VALUES (%s)", [value])
