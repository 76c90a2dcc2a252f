"""What `stats.py` returns: how streams, their groups and what belongs to them stand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from django_pgbus.queues.stats import Count


class Refusal(StrEnum):
    """Why a group refuses to work."""

    FENCE = "fence"  # its cursor was left by another rule of what is settled
    EPOCH = "epoch"  # its cursor belongs to another cluster, or to another log
    HEAD = "head"  # its cursor is past the end of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The oldest transaction of the cluster that may write; `gid` of a prepared one, `seconds` where we may know."""

    pid: int | None
    gid: str
    database: str | None
    person: str | None
    application: str | None
    state: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldByLease:
    """The lowest open range (low, high]: what is above it is not committed before it ends."""

    low: int
    high: int
    worker: UUID
    claimed_at: datetime
    until: datetime
    lapsed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldByEntry:
    """The lowest entry that is not done with."""

    id: int
    position: int
    attempts: int
    due_at: datetime
    running: bool
    due: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldByHole:
    """A position that nobody sees: a transaction that may still commit it, or that rolled back."""

    position: int
    proven: bool  # no transaction can commit it any more: the next claim passes it
    writer: Writer | None  # the oldest that runs now, which may have it


Hold = HeldByLease | HeldByEntry | HeldByHole


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """
    One consumer group.

    Entries up to `committed` are done with, those up to `claimed` are in somebody's hands or failed. `lag` is in
    positions, which are entries but for those that were rolled back; `lag_seconds` is the age of the oldest entry that
    is not done with, and `waiting_seconds` of the oldest that nobody has claimed. `holds` say what keeps it from going
    on, the first of them what keeps `committed`.
    """

    id: int
    stream: int
    name: str
    handler: str
    keyed: bool
    routes: bool
    paused_at: datetime | None
    declared_at: datetime
    begun: bool
    claimed: int
    committed: int
    head: int
    lag_seconds: float | None
    waiting_seconds: float | None
    leases: Count
    lapsed: bool
    ready: Count
    running: Count
    dead: Count
    refusal: Refusal | None
    holds: tuple[Hold, ...]

    @property
    def lag(self) -> int:
        """Return how many positions of the log it has not done with."""
        return max(0, self.head - self.committed)

    @property
    def paused(self) -> bool:
        """Return whether nothing is claimed for it."""
        return self.paused_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """One stream. `entries` is an estimate; `oldest` is the first entry that is kept, `oldest_seconds` its age."""

    id: int
    name: str
    retention: timedelta | None
    drops_unhandled: bool
    created_at: datetime
    now: datetime
    has_log: bool
    head: int
    entries: int
    partitions: Count
    bytes: int
    oldest: int | None
    oldest_at: datetime | None
    oldest_seconds: float | None
    groups: tuple[GroupState, ...]
    more_groups: bool

    @property
    def worst(self) -> GroupState | None:
        """Return the group that lags most: by time, then by entries."""
        return max(self.groups, key=lambda group: (group.lag_seconds or 0.0, group.lag), default=None)

    @property
    def dead(self) -> Count:
        """Return how many dead letters its groups have."""
        return sum((group.dead for group in self.groups), Count(0))

    @property
    def pinned_by(self) -> tuple[GroupState, ...]:
        """Return the groups for whose sake entries past their age are kept, the last one first."""
        if self.retention is None or self.drops_unhandled:
            return ()
        age = self.retention.total_seconds()
        late = [group for group in self.groups if group.lag_seconds is not None and group.lag_seconds > age]
        return tuple(sorted(late, key=lambda group: group.committed))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """
    One partition of a log: positions from `lower` to before `upper`.

    `entries` is an estimate; `newest_seconds` is the age of its newest entry, None if it has none.
    """

    name: str
    lower: int | None
    upper: int | None
    bytes: int
    entries: int
    newest_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A group for whose sake retention keeps what is past its age: how much of it, in whole partitions."""

    group: str
    committed: int
    entries: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """A range (low, high] that a worker has claimed; whoever comes first takes a lapsed one."""

    id: int
    group: int
    low: int
    high: int
    worker: UUID
    claimed_at: datetime
    until: datetime
    reclaims: int
    lapsed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A failed entry, or one that waits for an earlier one of its key; of `traceback` only the end."""

    id: int
    group: int
    position: int
    status: str
    attempts: int
    due_at: datetime
    until: datetime | None
    failed_at: datetime | None
    key: str | None
    exception: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedEntry:
    """All of one failed entry but its payload."""

    id: int
    group_id: int
    group: str
    handler: str
    position: int
    status: str
    attempts: int
    due_at: datetime
    until: datetime | None
    failed_at: datetime | None
    created_at: datetime
    key: str | None
    exception: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What an entry carries; `payload` is None where neither the log nor the failed entry has it any more."""

    payload: str | None
    appended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """What needs a person: groups as "stream/group", and how many dead letters there are."""

    refusing: tuple[str, ...]
    paused: tuple[str, ...]
    dead: Count
