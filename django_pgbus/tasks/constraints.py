"""
What must hold while a task runs, as it travels with its message.

Computed once, at enqueue, from what is declared and from the arguments as the worker will see them; written as JSON beside
the payload and carried wherever the message goes. A task that declares nothing carries nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from django_pgbus.concurrency.policy import DURATION, Limit
from django_pgbus.concurrency.policy import ON_CONFLICT as ON_LIMIT_CONFLICT
from django_pgbus.concurrency.slots import Terms
from django_pgbus.exceptions import InvalidKey
from django_pgbus.postgres.keys import shown, stored, why_unusable
from django_pgbus.tasks.compat import AnyTask
from django_pgbus.tasks.lookup import find_task
from django_pgbus.uniqueness.policy import ON_CONFLICT as ON_UNIQUE_CONFLICT
from django_pgbus.uniqueness.policy import STRATEGIES, Unique


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundKey:
    """The uniqueness key of one task: `name` is what was chosen, where the key is stored as its hash."""

    key: str
    name: str
    strategy: str
    on_conflict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundLimit:
    """The limited key of one task; `to` and `duration` (seconds) as declared when it was enqueued."""

    key: str
    name: str
    to: int
    duration: float
    on_conflict: str

    @property
    def terms(self) -> Terms:
        """Return what was declared when it was enqueued."""
        return Terms(name=self.name, to=self.to, duration=self.duration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What one task carries."""

    unique: BoundKey | None = None
    limit: BoundLimit | None = None
    idempotent: bool = False  # a handler's copy of an event, of which one run counts

    @property
    def at_entrance(self) -> bool:
        """Return whether it needs something to be let in."""
        return self.unique is not None or self.limit is not None

    @property
    def while_executing(self) -> BoundKey | None:
        """Return the key that a delivery needs to run, if there is one."""
        return self.unique if self.unique and self.unique.strategy == "while_executing" else None

    @property
    def until_executed(self) -> BoundKey | None:
        """Return the key that is taken at enqueue, if there is one."""
        return self.unique if self.unique and self.unique.strategy == "until_executed" else None

    def text(self) -> str | None:
        """Return them as they are stored: None for a task that is not constrained."""
        parts = {
            name: {field: getattr(part, field) for field in part.__slots__}
            for name, part in (("unique", self.unique), ("limit", self.limit))
            if part is not None
        }
        if self.idempotent:
            parts["idempotent"] = True  # type: ignore[assignment]
        return json.dumps(parts) if parts else None


@lru_cache(maxsize=4096)
def read(text: str) -> Constraints:
    """
    Return what a message carries; raises ValueError for what no version of ours has written.

    Fields that are not known are passed over: during a rolling deploy a newer version may write more.
    """
    parts = json.loads(text)
    if not isinstance(parts, dict):
        raise ValueError("The stored constraints are no object.")
    unique, limit = parts.get("unique"), parts.get("limit")
    return Constraints(
        unique=_key_in(unique) if unique is not None else None,
        limit=_limit_in(limit) if limit is not None else None,
        idempotent=parts.get("idempotent") is True,
    )


def _key_in(part: Any) -> BoundKey:
    match part:
        case {"key": str(key), "name": str(name), "strategy": str(strategy), "on_conflict": str(on_conflict)}:
            if why_unusable(key) is None and strategy in STRATEGIES and on_conflict in ON_UNIQUE_CONFLICT:
                return BoundKey(key=key, name=name, strategy=strategy, on_conflict=on_conflict)
    raise ValueError("The stored uniqueness key cannot be read.")


def _limit_in(part: Any) -> BoundLimit:
    match part:
        case {"key": str(key), "name": str(name), "to": int(to), "duration": int() | float() as duration, **rest}:
            on_conflict = rest.get("on_conflict")
            if (
                why_unusable(key) is None
                and 1 <= to < 2**31
                and 0 < duration < 1e9
                and on_conflict in ON_LIMIT_CONFLICT
            ):
                return BoundLimit(key=key, name=name, to=to, duration=float(duration), on_conflict=str(on_conflict))
    raise ValueError("The stored limit cannot be read.")


def of(text: str | None) -> Constraints:
    """Return what a message carries, for one that may carry nothing."""
    return read(text) if text is not None else NONE


NONE = Constraints()


def readable(text: str | None) -> Constraints:
    """Return what a message carries, nothing if it was damaged by hand: the executor finds out, and fails the attempt."""
    try:
        return of(text)
    except Exception:
        return NONE


def declares_any(task: AnyTask) -> bool:
    """Return whether a task is unique or limited."""
    return getattr(task, "unique", None) is not None or getattr(task, "limit", None) is not None


def bind(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Constraints:
    """Return the constraints of one call, whose arguments are as read back; raises InvalidKey."""
    unique: Unique | None = getattr(task, "unique", None)
    limit: Limit | None = getattr(task, "limit", None)
    made = Constraints()
    if unique is not None:
        key = _key_of(task, "ensures_uniqueness", unique.key, args, kwargs)
        made = replace(
            made,
            unique=BoundKey(key=stored(key), name=shown(key), strategy=unique.strategy, on_conflict=unique.on_conflict),
        )
    if limit is not None:
        key = _key_of(task, "limits_concurrency", limit.key, args, kwargs)
        made = replace(
            made,
            limit=BoundLimit(
                key=stored(key),
                name=shown(key),
                to=limit.to,
                duration=limit.seconds,
                on_conflict=limit.on_conflict,
            ),
        )
    return made


def _key_of(
    task: AnyTask,
    decorator: Literal["ensures_uniqueness", "limits_concurrency"],
    function: Callable[..., str] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    if function is None:
        return task.module_path
    try:
        key = function(*args, **kwargs)
    except Exception as error:
        raise InvalidKey(
            f"The key of {decorator} on {task.module_path} could not be computed ({type(error).__name__}). "
            "It is called with the task's own arguments, as JSON gives them back."
        ) from error
    if problem := why_unusable(key):
        raise InvalidKey(
            f"The key that {decorator} on {task.module_path} computed {problem}. "
            f'Return a text that is not empty, as in key=lambda order_id: f"order-{{order_id}}".'
        )
    return key


UNREADABLE = Terms(name="", to=1, duration=DURATION.total_seconds())


def terms_of(path: str, constraints: str) -> Terms:
    """
    Return what this process's code declares for a parked task (semantics 4.8).

    Where the task cannot be imported here, what was declared when it was enqueued: it is let in, and its ImportError
    tells. Where it declares no limit any more, none. One that cannot be read is let in alone: it fails as an attempt,
    and stops nobody else.
    """
    try:
        carried = read(constraints)
    except Exception:  # damaged by hand
        return UNREADABLE
    return UNREADABLE if carried.limit is None else _declared_now(path, carried, carried.limit)


def _declared_now(path: str, carried: Constraints, limit: BoundLimit) -> Terms:
    try:
        task = find_task(path)
    except KeyboardInterrupt:
        raise
    except BaseException:  # importing runs code of the project, which may even exit
        return limit.terms
    declared: Limit | None = getattr(task, "limit", None)
    if declared is None:
        rest = replace(carried, limit=None).text()
        return Terms(name="", to=None, duration=0.0, constraints=rest or "{}")
    return Terms(name=limit.name, to=declared.to, duration=declared.seconds)


def as_declared_now(path: str, carried: Constraints) -> Constraints:
    """Return what a task that enters again is bound to: its keys as computed once, its limit as declared by now."""
    if carried.limit is None:
        return carried
    terms = _declared_now(path, carried, carried.limit)
    if terms.to is None:
        return replace(carried, limit=None)
    return replace(carried, limit=replace(carried.limit, to=terms.to, duration=terms.duration))
