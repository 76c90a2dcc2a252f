"""What must hold for the runs over a stream: pure functions of what was noted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

LATE: Final = timedelta(seconds=1)  # what a killed process had sent is executed still

Kill = tuple[int, datetime, datetime]  # process, killed after, killed before


class Claimed(NamedTuple):
    """A lease as it stood after a claim or its end; of a failed entry nobody notes who claims it: `pid` is None."""

    lease: object
    low: int
    high: int
    pid: int | None
    is_held: bool
    at: datetime


class Tenure(NamedTuple):
    """Who held these positions, from when until when."""

    low: int
    high: int
    pid: int | None
    began: datetime
    ended: datetime | None


class Ran(NamedTuple):
    """A run that was noted."""

    position: int
    key: int
    pid: int
    began: datetime
    ended: datetime | None
    failed: bool

    def __str__(self) -> str:
        how = "failed" if self.failed else f"ended {self.ended:%H:%M:%S.%f}" if self.ended else "no end"
        return f"Ran(position={self.position}, key={self.key}, pid={self.pid} at {self.began}, {how})"


def done_at(
    ends: Sequence[tuple[int, int, datetime]], alone: Iterable[tuple[int, bool, datetime]]
) -> Callable[[int], datetime | None]:
    """Return what tells when a position was done with: by the end of its range, or of the entry on its own."""
    own: dict[int, datetime | None] = {}
    for position, ended, at in alone:
        own[position] = at if ended else None
    highs = [high for high, _, _ in ends]

    def at(position: int) -> datetime | None:
        if position in own:
            return own[position]
        nth = bisect_left(highs, position)
        if nth < len(ends) and ends[nth][1] < position:
            return ends[nth][2]
        return None

    return at


def again_after(
    group: str, runs: Iterable[Ran], done: Callable[[int], datetime | None], kills: dict[int, list[Kill]]
) -> list[str]:
    """Return each run that began when its position was done with; what a process sent before its kill may be late."""
    return [
        f"{group}: {run} after {at}"
        for run in runs
        if (at := done(run.position)) is not None
        and run.began > at
        and not any(before <= run.began <= before + LATE for _, _, before in kills[run.pid])
    ]


def repeats(group: str, runs: Iterable[Ran], kills: dict[int, list[Kill]]) -> tuple[int, list[str]]:
    """Return how many runs of one position followed another one, and those that no kill or failure explains."""
    of: dict[int, list[Ran]] = defaultdict(list)
    for run in runs:
        of[run.position].append(run)
    again, unexplained = 0, []
    for mine in of.values():
        again += len(mine) - 1
        for run, following in pairwise(mine):
            killed = any(before + LATE >= run.began and after <= following.began for _, after, before in kills[run.pid])
            if not run.failed and not killed:
                unexplained.append(f"{group}: {run} was not killed, and is followed by {following}")
    return again, unexplained


def out_of_order(runs: Iterable[Ran], stubborn: set[int]) -> list[str]:
    """Return each entry that began for the first time before the one before it, of its key, had succeeded or died."""
    first: dict[int, Ran] = {}
    through: dict[int, datetime] = {}
    for run in runs:
        first.setdefault(run.position, run)
        if run.position in stubborn:
            through[run.position] = run.ended or run.began
        elif run.ended and not run.failed:
            through.setdefault(run.position, run.ended)
    wrong = []
    last: dict[int, int] = {}
    for position in sorted(first):
        run = first[position]
        before = last.get(run.key)
        if before is not None and not (before in through and through[before] <= run.began):
            wrong.append(
                f"{position} of key {run.key} began at {run.began}, {before} was through {through.get(before)}"
            )
        last[run.key] = position
    return wrong


def tenures(claims: Iterable[Claimed]) -> list[Tenure]:
    """Return who held what and when; the claims of each lease come in their order."""
    found: list[Tenure] = []
    current: dict[object, Claimed] = {}
    for claim in claims:
        if (before := current.pop(claim.lease, None)) is not None:
            found.append(Tenure(before.low, before.high, before.pid, before.at, claim.at))
        if claim.is_held:
            current[claim.lease] = claim
    return found + [Tenure(one.low, one.high, one.pid, one.at, None) for one in current.values()]


def together(runs: Iterable[Ran], kills: dict[int, list[Kill]], held: Iterable[Tenure]) -> list[str]:
    """
    Return each run that began while another of its key was fenced in, and each whose process never held its entry.

    A run is fenced in until its end, the kill of its process, or the moment at which its process held its entry no more.
    """
    ordered = list(runs)
    tenure = _tenure_of(ordered, held)
    until_of: dict[int, tuple[datetime, Ran]] = {}
    wrong = []
    for run in ordered:
        if (mine := tenure(run)) is None:
            wrong.append(f"{run} began, and its process never held that entry")
            continue
        lost = mine.ended or datetime.max.replace(tzinfo=run.began.tzinfo)
        killed = min((after for _, after, before in kills[run.pid] if before >= run.began), default=None)
        end = min(lost, run.ended or killed or (lost if mine.ended else run.began))
        if end <= run.began:
            continue  # It was fenced out before it began.
        if run.key in until_of and run.began < until_of[run.key][0]:
            wrong.append(f"{run} began beside {until_of[run.key][1]}, which had its lease until {until_of[run.key][0]}")
        if run.key not in until_of or until_of[run.key][0] < end:
            until_of[run.key] = (end, run)
    return wrong


def _tenure_of(runs: Sequence[Ran], held: Iterable[Tenure]) -> Callable[[Ran], Tenure | None]:
    """
    Return what tells under which tenure a run began: the last one of its process that covers its position.

    Nobody notes who claims an entry on its own. If two processes ran one meanwhile, one that had it in a range before is
    fenced out: it stood still, and goes on with what it has lost.
    """
    positions = sorted({run.position for run in runs})
    covering: dict[int, list[Tenure]] = defaultdict(list)
    for one in sorted(held, key=lambda one: one.began):
        for position in positions[bisect_right(positions, one.low) : bisect_right(positions, one.high)]:
            covering[position].append(one)
    found = [[one for one in covering[run.position] if _may_be_of(one, run)] for run in runs]
    ran_alone: dict[Tenure, set[int]] = defaultdict(set)
    for run, mine in zip(runs, found, strict=True):
        if mine and mine[-1].pid is None:
            ran_alone[mine[-1]].add(run.pid)

    def tenure(run: Ran) -> Tenure | None:
        mine = [one for one in covering[run.position] if _may_be_of(one, run)]
        own = [one for one in mine if one.pid is not None]
        if own and mine[-1].pid is None and len(ran_alone[mine[-1]]) > 1:
            return own[-1]
        return mine[-1] if mine else None

    return tenure


def _may_be_of(tenure: Tenure, run: Ran) -> bool:
    return tenure.pid in {None, run.pid} and tenure.began <= run.began


def claimed_twice(ranges: Iterable[tuple[str, int, int]]) -> list[str]:
    """Return each pair of ranges of a group that were claimed both and have entries in common."""
    return [
        f"{group}: both {low + 1} to {high} and {below + 1} to {above} were claimed"
        for (group, low, high), (other, below, above) in pairwise(sorted(ranges))
        if group == other and below < high
    ]
