"""What a transition is given and what it says, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django_pgbus.queues.message import Delivery
from django_pgbus.tasks.constraints import NONE, Constraints


# Not frozen, as Success below.
@dataclass(slots=True, kw_only=True)
class NewWork:
    """What is asked for: `payload` is the encoded arguments, `due` a moment or the time from now."""

    task: str
    payload: str = field(repr=False)
    queue: str
    priority: int = 0
    backend: str = "default"
    due: datetime | timedelta | None = None
    constraints: Constraints = NONE
    batch: int | None = None  # that it is a member of
    id: int | None = None  # that it was given before it is stored


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The id a task keeps for life, and when it got it by the database's clock."""

    id: int
    enqueued_at: datetime


# Not frozen: one is made for each job, and freezing it takes longer than making it.
@dataclass(slots=True, kw_only=True)
class Success:
    """A run that returned: `result` encoded, `ran_for` and `ended` in seconds of the monotonic clock."""

    delivery: Delivery
    result: str = field(repr=False)
    ran_for: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOff:
    """A run that failed and is tried again, or asked to be run later (`reason` is retry or snoozed)."""

    delivery: Delivery
    delay: float
    reason: str
    error: str | None
    ran_for: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """A task that is not tried again; `not_run` when the claim counted an attempt that never began."""

    delivery: Delivery
    reason: str
    error: str | None
    ran_for: float
    ended: float
    not_run: bool = False


@dataclass(slots=True, kw_only=True)
class HeldMessage:
    """What a supervisor knows of a message that a process of it held."""

    id: int
    delivery: int
    started: bool = False
    suspect: bool = False
    running: bool | None = None  # when the process ended; None where nobody knows
    started_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldElsewhere:
    """A task that was not let in: `holder` is the id of the job or batch that holds its key, None if it was gone."""

    key: str
    holder: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached:
    """A task that was not let in: as many as allowed hold a slot of its key or wait for one."""

    key: str
    to: int


Entered = Enqueued | HeldElsewhere | LimitReached


@dataclass(slots=True, kw_only=True)
class PickedUp:
    """
    Which deliveries may run.

    The others are parked, dropped for good, not ours any more, or to be asked for again; or they are of an event, and
    skipped since another delivery does it, or put off since an earlier one may still run.
    """

    taken: list[Delivery] = field(default_factory=list)
    parked: list[Delivery] = field(default_factory=list)
    dropped: list[Delivery] = field(default_factory=list)
    lost: list[Delivery] = field(default_factory=list)
    contested: list[Delivery] = field(default_factory=list)
    skipped: list[Delivery] = field(default_factory=list)
    waiting: list[Delivery] = field(default_factory=list)

    @property
    def gone(self) -> list[Delivery]:
        """Return those that are not this process's any more."""
        return [*self.parked, *self.dropped, *self.lost, *self.skipped, *self.waiting]

    def add(self, more: PickedUp) -> None:
        """Take over what another pick-up came to."""
        for name in self.__slots__:
            getattr(self, name).extend(getattr(more, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """
    Which dead letters are on their way again, and why others stay: {id: what they would need}.

    `members` are those that a batch, {id: batch}, has counted as failed and does not count again.
    """

    ids: list[int]
    refused: dict[int, Entered]
    members: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Which tasks were settled, which are running and only marked, and which had left before."""

    settled: frozenset[int]
    marked: frozenset[int]
    gone: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """Which tasks are in the line now, which are parked and ask for what they need, and which had no time to wait for."""

    in_line: frozenset[int]
    parked: frozenset[int]
    left: frozenset[int]
