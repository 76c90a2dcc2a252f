"""Order within a key: who is ahead with it, in an open range below or with an entry that is not done with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from django_pgbus.streams import sql
from django_pgbus.streams.leases import GroupId


@dataclass(slots=True)
class Blocked:
    """Keys that somebody is ahead with: by an entry that is not done with (it may take long), or by an open range."""

    by_exception: set[str] = field(default_factory=set)
    by_range: set[str] = field(default_factory=set)

    def __contains__(self, key: object) -> bool:
        return key in self.by_exception or key in self.by_range


def hold(group: GroupId, lease: int, keys: Iterable[str]) -> None:
    """Enter the keys of a range, in the transaction that has just claimed it."""
    sql.HOLD_KEYS.count(group=group.id, lease=lease, keys=sorted(set(keys)))


def blocked(group: GroupId, low: int, keys: Iterable[str]) -> Blocked:
    """Return which of these keys somebody is ahead with, seen from a range that begins after `low`."""
    found = Blocked()
    if wanted := sorted(set(keys)):
        for key, by_exception in sql.BLOCKED_KEYS.tuples(group=group.id, low=low, keys=wanted):
            (found.by_exception if by_exception else found.by_range).add(key)
    return found
