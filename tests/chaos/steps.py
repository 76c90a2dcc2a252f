"""What each move of a job may do to its delivery number and its attempts (the table of transitions), and its lease."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Final

from tests.chaos.causes import KILLS, LOSSES, SILENCES, STOPS, Causes
from tests.chaos.records import Move, Records, Run

HEARD: Final = timedelta(seconds=2)  # a second, and one for a machine that others use
DEAF: Final = SILENCES | {"delay", "cut", "drop"}  # what was asked before the pause is answered after it


def _steps(records: Records) -> Iterator[tuple[Move, Move]]:
    for moves in records.moves.values():
        yield from pairwise(moves)


def deliveries(records: Records) -> Iterator[str]:
    """Yield each step at which a delivery number did something other than it should."""
    for before, after in _steps(records):
        risen = after.delivery - before.delivery
        if after.leased:
            allowed = {1}
            if before.leased:
                allowed = set()  # it was not in the line between
        elif before.leased and after.place == "line":
            allowed = {0, 1} if after.lapsed else {1}
        elif before.leased and after.place == "parked":
            allowed = {0, 1}
        else:
            allowed = {0}
        if risen not in allowed:
            yield f"#{after.id}: {_told(before)}, then {_told(after)}"


def attempts(records: Records) -> Iterator[str]:
    """Yield each step at which attempts were counted that were none, or forgotten."""
    for before, after in _steps(records):
        counted = after.attempts - before.attempts
        if after.leased:
            allowed = {1}
        elif not before.leased:
            allowed = {0}
        elif after.place == "line":
            allowed = {0, -1}
        elif after.place == "parked" or after.reason in {"snoozed", "owned", "skipped"}:
            allowed = {-1}
        elif after.place == "dead":
            allowed = {0, -1}  # the check comes first: it was claimed, and not run
        else:
            allowed = {0}
        if counted not in allowed or after.attempts < 0:
            yield f"#{after.id}: {_told(before)}, then {_told(after)}"


def counted(records: Records) -> Iterator[str]:
    """Yield each attempt that counts as failed and was no failed run, and each failed run that does not count."""
    causes = Causes(records.faults, records.runs)
    ran = {(run.id, run.delivery): run for run in records.runs}
    pids = {run.worker: run.pid for run in records.runs}
    for before, after in _steps(records):
        if not before.leased or before.id not in records.sent:
            continue  # what handlers of events do is counted elsewhere
        run = ran.get((before.id, before.delivery))
        if after.place == "delayed" and after.reason == "retry":
            if run is None and not _never_began(
                records.sent[after.id].kind, pids.get(before.worker), before, after, causes
            ):
                yield f"#{after.id}: delivery {before.delivery} failed without a run; {_told(before)}, {_told(after)}"
            elif run is not None and run.outcome in {"succeeded", "snoozed"} and not _may_fail(run, after, causes):
                yield f"#{after.id}: delivery {before.delivery} {run.outcome}, and counts as failed; {_told(after)}"
        elif (
            run is not None
            and run.outcome == "failed"
            and after.attempts < before.attempts
            and not after.lapsed
            and not causes.any(KILLS | STOPS | LOSSES, run.pid, run.began, after.at)
        ):
            yield f"#{after.id}: delivery {before.delivery} failed, and does not count; {_told(after)}"


def _never_began(kind: str, pid: int | None, claim: Move, after: Move, causes: Causes) -> bool:
    """Return whether it failed before it ran: its version does not know it, or its transaction could not begin."""
    if kind == "transactional":
        return pid is not None and causes.any(LOSSES | SILENCES, pid, claim.at, after.at)
    return kind == "old_new"


def _may_fail(run: Run, after: Move, causes: Causes) -> bool:
    """It was done, but its transaction was lost with its session."""
    return run.kind == "transactional" and causes.any(LOSSES | SILENCES, run.pid, run.began, after.at)


def lapsed(records: Records) -> Iterator[str]:
    """Yield each lease that lapsed though nothing happened to its process while it lasted."""
    causes = Causes(records.faults, records.runs)
    pids = {run.worker: run.pid for run in records.runs}
    names = KILLS | STOPS | LOSSES | SILENCES
    for before, after in _steps(records):
        if not after.lapsed or not before.leased or (pid := pids.get(before.worker)) is None:
            continue
        if not causes.any(names, pid, before.at - timedelta(seconds=1), after.at):
            happened = causes.told(pid, before.at, after.at)
            yield f"#{after.id}: {_told(before)}, then {_told(after)}; {happened}"


def paused(records: Records) -> Iterator[str]:
    """Yield each claim in a queue that had been paused for longer than anybody needs to hear of it."""
    causes = Causes(records.faults, records.runs)
    pids = {run.worker: run.pid for run in records.runs}
    if not records.pauses:
        return
    for moves in records.moves.values():
        for move in moves:
            if not move.leased:
                continue
            for queue, since, until in records.pauses:
                start = since + HEARD
                if queue == move.queue and start < move.at < until:
                    pid = pids.get(move.worker)
                    if pid is None or not causes.any(DEAF, pid, since, move.at):
                        happened = causes.told(pid, since, move.at) if pid else "a process that ran nothing"
                        yield f"#{move.id} was claimed in {queue}, paused at {since}: {_told(move)}; {happened}"


def _told(move: Move) -> str:
    where = "leased" if move.leased else "lapsed" if move.lapsed else move.place
    reason = f" ({move.reason})" if move.reason else ""
    return f"{where}{reason} at {move.at:%H:%M:%S.%f}, delivery {move.delivery}, attempts {move.attempts}"
