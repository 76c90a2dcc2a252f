"""What is sent and when: the mix of a shop's day, at a steady rate, each action at its own instant."""

from __future__ import annotations

import random
import struct
import threading
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
from typing import Final, NamedTuple, Self


class Kind(NamedTuple):
    """One kind of action: its share of the jobs, how many jobs it makes, and what runs of it there must be."""

    name: str
    share: float  # of the jobs, in percent
    jobs: int = 1
    parts: tuple[int, ...] = (1,)  # how often each part of one job runs
    latency: str = ""  # the series that its waiting belongs to


MEMBERS: Final = 20
KINDS: Final = (
    Kind("plain", 22, latency="start"),
    Kind("async", 13, latency="start"),
    Kind("transactional", 10, latency="start"),
    Kind("delayed", 8, latency="late"),
    Kind("unique", 5, latency="start"),
    Kind("unique, delayed", 2, latency="late"),
    Kind("limited", 8, latency="limited"),
    Kind("limited and unique", 4, latency="limited"),
    Kind("fails once", 2.4, parts=(2,)),
    Kind("dead letter", 0.2, parts=(2,)),
    Kind("undone", 0.4, parts=(0,)),  # its transaction is rolled back
    Kind("event", 9, jobs=3, parts=(1, 1, 1), latency="start"),
    Kind("stream entry", 10, parts=(1, 1), latency="stream"),
    Kind("batch", 0, jobs=MEMBERS, parts=(1,), latency="batch"),  # the share is what is left
)
RECORD: Final = struct.Struct("<qBBddd")


class Outcome(IntEnum):
    """What became of an action."""

    SENT = 0
    REFUSED = 1  # the key is held
    UNDONE = 2
    BROKEN = 3  # by an error that nobody expected


class Sent(NamedTuple):
    """The record of one action; instants are seconds since the epoch, by the clock that the database has too."""

    number: int
    kind: int
    outcome: int
    due: float  # when it was to be sent
    committed: float
    run_after: float  # 0: at once

    def packed(self) -> bytes:
        """Return it as it stands in the file."""
        return RECORD.pack(*self)

    @classmethod
    def unpacked(cls, raw: bytes) -> list[Self]:
        """Return the records of a whole number of them."""
        return [cls(*fields) for fields in RECORD.iter_unpack(raw)]


SHARE_OF_STREAM: Final = next(kind.share for kind in KINDS if kind.name == "stream entry") / 100


def shares() -> list[float]:
    """Return the share of each kind in the jobs, 100 in all."""
    known = [kind.share for kind in KINDS[:-1]]
    return [*known, 100 - sum(known)]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a producer does at its instant; `number` is that of its first job."""

    due: float  # seconds from the begin
    number: int
    kind: int
    chance: random.Random


class Schedule:
    """
    All actions of a run in the order of their instants; the same for the same seed, whoever takes them.

    The gaps are exponential, as those of customers who do not know of each other.
    """

    def __init__(self, *, rate: float, seconds: float, seed: int) -> None:
        self._chance = random.Random(seed)
        weights = [share / kind.jobs for share, kind in zip(shares(), KINDS, strict=True)]
        self._weights = list(accumulate(weights))
        self._actions = rate * sum(weights) / 100  # a second
        self._seconds = seconds
        self._due = 0.0
        self._number = 0
        self._lock = threading.Lock()

    def take(self) -> Action | None:
        """Return the next action, None when there is none any more."""
        with self._lock:
            self._due += self._chance.expovariate(self._actions)
            if self._due >= self._seconds:
                return None
            (kind,) = self._chance.choices(range(len(KINDS)), cum_weights=self._weights)
            action = Action(self._due, self._number, kind, random.Random(self._chance.getrandbits(32)))
            self._number += MEMBERS if KINDS[kind].name == "batch" else 1
            return action
