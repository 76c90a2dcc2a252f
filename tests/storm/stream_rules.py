"""What must hold for the runs over a stream: pure functions of what was noted."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

LATE: Final = timedelta(seconds=1)  # what a killed process had sent is executed still

Kill = tuple[int, datetime, datetime]  # process, killed after, killed before


class Ran(NamedTuple):
    """A run that was noted."""

    position: int
    key: int
    pid: int
    began: datetime
    ended: datetime | None
    failed: bool


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


def together(runs: Iterable[Ran], kills: dict[int, list[Kill]]) -> list[str]:
    """
    Return each run that began while that of another entry of its key ran; one that was killed ran until then.

    A run is fenced out, and counts no longer, once its own entry has begun anew: whether that may be, `repeats` asks.
    """
    ordered = list(runs)
    again: dict[int, datetime] = {}
    until: list[datetime] = []
    for run in reversed(ordered):
        end = run.ended or min((after for _, after, before in kills[run.pid] if before >= run.began), default=run.began)
        until.append(min(end, again.get(run.position, end)))
        again[run.position] = run.began
    until_of: dict[int, tuple[datetime, Ran]] = {}
    wrong = []
    for run, end in zip(ordered, reversed(until), strict=True):
        if run.key in until_of and run.began < until_of[run.key][0]:
            wrong.append(f"{run} began beside {until_of[run.key][1]}")
        if run.key not in until_of or until_of[run.key][0] < end:
            until_of[run.key] = (end, run)
    return wrong
