"""
What must not be found in the books, one function each: pure, and shown red in test_checks.py.

Each returns sentences, one for each violation, that name the jobs and the moments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Final

from tests.chaos import steps
from tests.chaos.causes import KILLS, LOSSES, STOPS, Causes
from tests.chaos.records import Ending, Move, Records, Run
from tests.chaos.resources import connections_leaked, memory_grown
from tests.chaos.samples import Samples

DIES: Final = frozenset({"always", "poison", "batch_dies"})  # kinds that must become dead letters
FEW: Final = 3  # attempts that they have


def lost(records: Records) -> Iterator[str]:
    """Yield each job that was sent and did not end, or ended twice."""
    for id, sent in records.sent.items():
        endings = records.endings.get(id, [])
        if not endings:
            yield f"#{id} ({sent.kind}) was sent, and is {_last(records.moves.get(id, []))}"
        elif len(endings) > 1:
            yield f"#{id} ({sent.kind}) ended {len(endings)} times: {endings}"


def rolled_back(records: Records) -> Iterator[str]:
    """Yield each job that is there though its enqueue was rolled back."""
    ran = {run.id for run in records.runs}
    for id in sorted(records.undone):
        if id in ran or id in records.endings or id in records.moves:
            yield f"#{id} was rolled back, and {'ran' if id in ran else 'is there'}: {_last(records.moves.get(id, []))}"


def stranded(records: Records) -> Iterator[str]:
    """Yield what still stands somewhere when all is quiet."""
    yield from records.left


def held(records: Records) -> Iterator[str]:
    """Yield slots and keys that somebody holds when all is quiet."""
    yield from records.held


def duplicated(records: Records) -> Iterator[str]:
    """Yield each run that followed another of its job, where nothing explains that the other was not the last."""
    causes = Causes(records.faults, records.runs)
    for id, runs in records.runs_of().items():
        moves = records.moves.get(id, [])
        for run, following in pairwise(runs):
            if run.delivery == following.delivery and run.delivery is not None:
                yield f"#{id} ({run.kind}) ran twice under delivery {run.delivery}: {_told(run)}, {_told(following)}"
            elif not explained(run, following, moves, causes):
                yield f"#{id} ({run.kind}) {_told(run)}, then again {_told(following)}; {_story(moves)}"


def explained(run: Run, following: Run, moves: list[Move], causes: Causes) -> bool:
    """Return whether it is clear why the run was not the last of its job."""
    if run.outcome in {"failed", "snoozed"}:
        return True
    if any(move.lapsed and run.delivery in {move.delivery, move.delivery - 1} for move in moves):
        return True  # why, is asked by `lapsed`
    names = KILLS | STOPS | (LOSSES if run.kind == "transactional" else frozenset())
    return causes.any(names, run.pid, run.began, following.began)


def over_the_limit(records: Records) -> Iterator[str]:
    """Yield each moment at which more runs of a limit were fenced in than allowed."""
    yield from records.over_the_limit


def two_holders(records: Records) -> Iterator[str]:
    """Yield each moment at which two runs of a uniqueness key were fenced in."""
    yield from records.two_holders


def two_alive(records: Records) -> Iterator[str]:
    """Yield each pair of jobs of one `until_executed` key that were there at once."""
    lives: dict[str, list[tuple[datetime, datetime | None, int]]] = defaultdict(list)
    for id, sent in records.sent.items():
        if sent.key is not None and (moves := records.moves.get(id)):
            ended = next((move.at for move in moves if move.place in {"archive", "dead"}), None)
            lives[sent.key].append((moves[0].at, ended, id))
    for key, of_key in lives.items():
        of_key.sort(key=lambda life: life[0])
        for (_, ended, id), (began, _, other) in pairwise(of_key):
            if ended is None or began < ended:
                yield f"{key}: #{other} was enqueued at {began}, #{id} was there until {ended}"


def effects(records: Records) -> Iterator[str]:
    """Yield each transactional job whose effect is not there exactly once."""
    for id, sent in records.sent.items():
        if sent.kind == "transactional" and records.endings.get(id) and records.effects[id] != 1:
            yield f"#{id} had its effect {records.effects[id]} times; {_story(records.moves.get(id, []))}"
    for id in records.effects.keys() - records.sent.keys():
        yield f"#{id} had an effect, and was never sent"


def wrong_endings(records: Records) -> Iterator[str]:
    """Yield each job that ended otherwise than it should: dead letters that should not be, and successes."""
    for id, sent in records.sent.items():
        for ending in records.endings.get(id, []):
            if sent.kind in DIES:
                if ending.place != "dead" or not FEW <= ending.attempts <= FEW + 1:
                    yield f"#{id} ({sent.kind}) should have died after {FEW} attempts: {_ended(ending)}"
            elif ending.place != "archive" or ending.how != "succeeded":
                yield f"#{id} ({sent.kind}) should have succeeded: {_ended(ending)}; {_story(records.moves.get(id, []))}"


def unearned(records: Records) -> Iterator[str]:
    """Yield each job that is archived as succeeded though no run of that delivery did, or while it still ran."""
    earned = {(run.id, run.delivery): run.ended for run in records.runs if run.outcome == "succeeded"}
    for id, sent in records.sent.items():
        archived = [move.at for move in records.moves.get(id, []) if move.place == "archive"]
        for ending in records.endings.get(id, []):
            ended = earned.get((id, ending.delivery))
            if ending.how == "succeeded" and (ended is None or any(at < ended for at in archived)):
                until = f"ended at {ended:%H:%M:%S.%f}" if ended else "did not run to its end"
                told = f"#{id} ({sent.kind}) succeeded under delivery {ending.delivery}, which {until}"
                yield f"{told}; {_story(records.moves.get(id, []))}"


def poisoned(records: Records) -> Iterator[str]:
    """Yield each job that ended its process more often than it has attempts, and one more."""
    for id, runs in records.runs_of().items():
        if runs[0].kind == "poison" and len(runs) > FEW + 1:
            yield f"#{id} ran {len(runs)} times: {_story(records.moves.get(id, []))}"


def unbalanced(records: Records) -> Iterator[str]:
    """Yield each batch that does not add up in the end, or was not called back once."""
    yield from records.batches


CHECKS: Final[dict[str, Callable[[Records], Iterator[str]]]] = {
    "lost": lost,
    "rolled-back": rolled_back,
    "stranded": stranded,
    "held": held,
    "duplicated": duplicated,
    "over-the-limit": over_the_limit,
    "two-holders": two_holders,
    "two-alive": two_alive,
    "effects": effects,
    "endings": wrong_endings,
    "unearned": unearned,
    "poison": poisoned,
    "batches": unbalanced,
    "deliveries": steps.deliveries,
    "attempts": steps.attempts,
    "counted": steps.counted,
    "lapsed": steps.lapsed,
    "paused": steps.paused,
}


def check(records: Records, samples: Samples, *, processes: int) -> dict[str, list[str]]:
    """Return for each check what is wrong."""
    wrong = {name: list(found(records)) for name, found in CHECKS.items()}
    wrong["batch-counts"] = samples.unbalanced
    wrong["connections"] = list(connections_leaked(samples, processes))
    wrong["memory"] = list(memory_grown(samples))
    return wrong


def _told(run: Run) -> str:
    end = f"{run.outcome} at {run.ended:%H:%M:%S.%f}" if run.ended else "no end"
    return f"delivery {run.delivery} of process {run.pid} from {run.began:%H:%M:%S.%f}, {end}"


def _ended(ending: Ending) -> str:
    return f"{ending.place}, {ending.how}, {ending.attempts} attempts, delivery {ending.delivery}"


def _last(moves: list[Move]) -> str:
    return f"{moves[-1].place} since {moves[-1].at}" if moves else "nowhere, and never was"


def _story(moves: list[Move]) -> str:
    """Return the last moves in short: place, delivery/attempts."""
    return " > ".join(
        f"{'leased' if move.leased else 'LAPSED' if move.lapsed else move.place}"
        f"{f' {move.reason}' if move.reason else ''} {move.delivery}/{move.attempts} {move.at:%M:%S.%f}"[:-3]
        for move in moves[-8:]
    )
