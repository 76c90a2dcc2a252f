"""What a user declares: at most N at once per key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, get_args

Key = Callable[..., str]
OnConflict = Literal["block", "discard", "raise"]

ON_CONFLICT: Final[tuple[str, ...]] = get_args(OnConflict)
DURATION: Final = timedelta(minutes=15)
MOST: Final = 10_000  # at once; above it, no limit serves as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """
    At most `to` jobs of a key at once.

    `key` is called with the arguments as the worker will see them and returns the key, once, at enqueue; None is one
    key for the task. `duration` (seconds or a timedelta, never shorter than a lease and a beat) is how long a running
    holder may be silent before its slot is given away. `on_conflict` says what becomes of a job that finds no slot:
    `block` parks it, `discard` drops it at enqueue, `raise` raises ConcurrencyLimitExceeded there.
    """

    to: int
    key: Key | None = None
    duration: float | timedelta = DURATION
    on_conflict: OnConflict = "block"

    @property
    def seconds(self) -> float:
        """Return the duration in seconds."""
        return self.duration.total_seconds() if isinstance(self.duration, timedelta) else float(self.duration)


def problem_of(limit: Limit) -> str | None:
    """Return what is wrong with a declaration, or None."""
    to: Any = limit.to
    key: Any = limit.key
    duration: Any = limit.duration
    if isinstance(to, bool) or not isinstance(to, int) or not 1 <= to <= MOST:
        return f"to is a whole number from 1 to {MOST:,}, not {to!r}"
    if key is not None and not callable(key):
        return f"key is a function of the task's arguments that returns a text, not {key!r}"
    if isinstance(duration, bool) or not isinstance(duration, (int, float, timedelta)):
        return f"duration is a number of seconds or a timedelta, not {duration!r}"
    if not 0 < limit.seconds < 1e9:
        return f"duration is above 0 seconds, not {limit.duration!r}"
    if limit.on_conflict not in ON_CONFLICT:
        return f"on_conflict is one of {', '.join(map(repr, ON_CONFLICT))}, not {limit.on_conflict!r}"
    return None
