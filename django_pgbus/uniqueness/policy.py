"""What a user declares: at most one job per key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Key = Callable[..., str]
Strategy = Literal["until_executed", "while_executing"]
OnConflict = Literal["reject", "discard", "log"]

STRATEGIES: Final[tuple[str, ...]] = get_args(Strategy)
ON_CONFLICT: Final[tuple[str, ...]] = get_args(OnConflict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """
    At most one job per key at a time.

    `key` is called with the arguments as the worker will see them and returns the key, once, at enqueue; None is one
    key for the task, which must take no arguments then. `strategy` says from when to when the key is held:
    `until_executed` from enqueue until the job is settled, `while_executing` while it runs. `on_conflict` says what
    becomes of the second: `reject` raises JobNotUnique (while_executing: it waits), `discard` drops it, `log` drops it
    and says so.
    """

    key: Key | None = None
    strategy: Strategy = "until_executed"
    on_conflict: OnConflict = "reject"


def problem_of(unique: Unique) -> str | None:
    """Return what is wrong with a declaration, or None."""
    key: Any = unique.key
    if key is not None and not callable(key):
        return f"key is a function of the task's arguments that returns a text, not {key!r}"
    return _not_among("strategy", unique.strategy, STRATEGIES) or _not_among(
        "on_conflict", unique.on_conflict, ON_CONFLICT
    )


def _not_among(name: str, value: Any, allowed: tuple[str, ...]) -> str | None:
    return None if value in allowed else f"{name} is one of {', '.join(map(repr, allowed))}, not {value!r}"
