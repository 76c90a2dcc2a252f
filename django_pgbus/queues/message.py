"""What a worker holds: a delivery, and the part of the line it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID


class Level(NamedTuple):
    """A part of the line: workers look at their levels in order."""

    queue: str
    priority: int
    suspect: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Delivery:
    """
    One claim of a message by this process.

    `started`, `ended`, `superseded`, `discard`, `hand_back` (its process stops) and `not_picked_up` (it fails without
    having run) are written by the thread that learns of it; `confirmed_at` is the monotonic time before the last statement
    that set or renewed its lease was sent, and `lease` how many seconds of silence from then on mean that somebody else
    may run it. `ready_at` is since when it stood in the line, as a monotonic time of this process; None is not known.
    Its repr, which error trackers send with the frames of a traceback, holds no arguments.
    """

    position: int
    id: int
    level: Level
    delivery: int
    attempts: int
    task: str
    backend: str
    payload: str = field(repr=False)
    errors: str | None = field(repr=False)
    enqueued_at: datetime
    confirmed_at: float
    lease: float = float("inf")
    constraints: str | None = None  # what must hold while it runs, as the components of the task wrote it
    batch: int | None = None  # that counts it when it ends
    event: UUID | None = None  # that it is a handler's copy of, with its topic; neither for a task
    topic: str | None = None
    ready_at: float | None = None
    started: bool = False
    superseded: bool = False
    discard: bool = False
    hand_back: bool = False
    ended: bool = False
    not_picked_up: Exception | None = None
    started_at: float = 0.0

    @property
    def queue(self) -> str:
        """Return the name of its queue."""
        return self.level.queue

    def may_be_taken_over(self, now: float) -> bool:
        """Return whether it is superseded, or was not confirmed for a lease: it must not start any more."""
        return self.superseded or now - self.confirmed_at > self.lease
