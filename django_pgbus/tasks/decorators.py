"""
`ensures_uniqueness` and `limits_concurrency`, above or below `@task`.

    @ensures_uniqueness(key=lambda order_id: f"import-order-{order_id}")
    @limits_concurrency(to=4, key=lambda order_id: "gateway")
    @task
    def import_order(order_id): ...

Below it they leave a note on the function, which the task reads when it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from django_pgbus.concurrency.policy import DURATION, Limit
from django_pgbus.concurrency.policy import Key as LimitKey
from django_pgbus.concurrency.policy import OnConflict as LimitOnConflict
from django_pgbus.tasks.compat import InvalidTask, Task
from django_pgbus.tasks.policy import NOTES, checked_limit, checked_unique
from django_pgbus.tasks.task import PgbusTask
from django_pgbus.uniqueness.policy import Key, OnConflict, Strategy, Unique

T = TypeVar("T", bound=Callable[..., Any])

DECORATORS: Final = {"unique": "ensures_uniqueness", "limit": "limits_concurrency"}


def ensures_uniqueness(
    *bare: Any,
    key: Key | None = None,
    strategy: Strategy = "until_executed",
    on_conflict: OnConflict = "reject",
) -> Callable[[T], T]:
    """
    Let at most one job per key be there; see `Unique` for what the options mean.

    Raises InvalidTask where it is declared: without a `key`, a task that takes arguments would be one job for all.
    """
    _refuse(bare, "ensures_uniqueness(key=...)")
    declared = Unique(key=key, strategy=strategy, on_conflict=on_conflict)
    checked_unique(declared)
    return lambda target: _declared(target, "unique", declared)


def limits_concurrency(
    *bare: Any,
    to: int = 0,
    key: LimitKey | None = None,
    duration: float | timedelta = DURATION,
    on_conflict: LimitOnConflict = "block",
) -> Callable[[T], T]:
    """
    Let at most `to` jobs of a key run at once; see `Limit` for what the options mean.

    Raises InvalidTask where it is declared. A task has at most one limit.
    """
    _refuse(bare, "limits_concurrency(to=...)")
    declared = Limit(to=to, key=key, duration=duration, on_conflict=on_conflict)
    checked_limit(declared)
    return lambda target: _declared(target, "limit", declared)


def _refuse(bare: tuple[Any, ...], instead: str) -> None:
    if bare:
        raise InvalidTask(f"It takes its options by name: write @{instead} above the task or its function.")


def _declared(target: Any, option: str, declared: Any) -> Any:
    if isinstance(target, Task):
        if getattr(target, option, None) is not None:
            raise _twice(target.func, option)
        if isinstance(target, PgbusTask):
            return replace(target, **{option: declared})
        plain = {field.name: getattr(target, field.name) for field in fields(target)}
        return PgbusTask(**plain, **{option: declared})
    if not callable(target):
        raise InvalidTask(f"{DECORATORS[option]} decorates a task or its function, not {target!r}.")
    notes = dict(getattr(target, NOTES, {}))
    if option in notes:
        raise _twice(target, option)
    setattr(target, NOTES, notes | {option: declared})
    return target


def _twice(function: Any, option: str) -> InvalidTask:
    return InvalidTask(f"{DECORATORS[option]} is declared twice for {function.__name__}(); a task has at most one.")
