"""Tasks that do nothing but say that they started; one is limited."""

from __future__ import annotations

from typing import Any

from django_pgbus import limits_concurrency, task
from tests.benchmarks import counters


@task
def noop(**kwargs: Any) -> None:
    counters.hit()


@task
def stamp(number: int, **kwargs: Any) -> None:
    counters.stamp(number)


@task
def mark(number: int, **kwargs: Any) -> None:
    counters.hit()
    counters.mark(number)


@limits_concurrency(to=4, key=lambda key, **kwargs: key)
@task
def limited(key: str, **kwargs: Any) -> None:
    counters.hit()
