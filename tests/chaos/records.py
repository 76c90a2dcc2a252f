"""What was written down, read in one go, in the shape in which it is checked."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from tests.storm import batches, books
from tests.storm.books import Execute

LEFT: Final = {
    "in the line": "SELECT id, task FROM pgbus_messages",
    "delayed": "SELECT id, task FROM pgbus_delayed",
    "parked": "SELECT id, task || ', waits for ' || key FROM pgbus_blocked_executions",
}
HELD: Final = {
    "slot": "SELECT message_id, key FROM pgbus_semaphore_slots",
    "key": "SELECT message_id, key FROM pgbus_uniqueness_keys",
}


class Sent(NamedTuple):
    """A job whose enqueue was committed."""

    kind: str
    key: str | None = None
    batch: int | None = None


class Run(NamedTuple):
    """A run that was noted, and the delivery under which it ran (None: nobody saw its claim)."""

    id: int
    kind: str
    worker: Any
    pid: int
    began: datetime
    ended: datetime | None
    outcome: str | None
    delivery: int | None = None


class Move(NamedTuple):
    """A job as it stood after one of its moves; `lapsed`: it was leased before, and the lease was over."""

    id: int
    place: str
    delivery: int
    attempts: int
    leased: bool
    lapsed: bool
    suspect: bool
    worker: Any
    reason: str | None
    at: datetime
    queue: str = "default"


class Fault(NamedTuple):
    """What happened, to whom, at some time between two."""

    name: str
    pids: frozenset[int]
    after: datetime
    before: datetime
    detail: str = ""


class Ending(NamedTuple):
    """Where a job ended: in the archive with an outcome, or among the dead letters with a reason."""

    place: str
    how: str
    attempts: int
    delivery: int
    task: str


@dataclass(slots=True, kw_only=True)
class Records:
    """Everything that was seen."""

    sent: dict[int, Sent] = field(default_factory=dict)
    undone: set[int] = field(default_factory=set)  # enqueued in transactions that were rolled back
    runs: list[Run] = field(default_factory=list)
    moves: dict[int, list[Move]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    endings: dict[int, list[Ending]] = field(default_factory=dict)
    effects: Counter[int] = field(default_factory=Counter)
    left: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    over_the_limit: list[str] = field(default_factory=list)
    two_holders: list[str] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    pauses: list[tuple[str, datetime, datetime]] = field(default_factory=list)  # of a queue, from when until when
    full: int = 0  # limits that were reached
    of_batches: int = 0

    def runs_of(self) -> dict[int, list[Run]]:
        """Return the runs of each job in the order of their deliveries."""
        of: dict[int, list[Run]] = defaultdict(list)
        for run in self.runs:
            of[run.id].append(run)
        for runs in of.values():
            runs.sort(key=lambda run: (run.delivery or 0, run.began))
        return of

    def workload(self) -> dict[str, dict[str, int]]:
        """Return for each kind how many were sent, run, failed, archived and dead."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for id, sent in self.sent.items():
            found[sent.kind]["sent"] += 1
            for ending in self.endings.get(id, ()):
                found[sent.kind][ending.place] += 1
        for run in self.runs:
            kind = self.sent[run.id].kind if run.id in self.sent else run.kind
            found[kind]["runs"] += 1
            found[kind][run.outcome or "without an end"] += 1
        return {kind: dict(counts) for kind, counts in sorted(found.items())}

    def seen(self) -> dict[str, Any]:
        """Return figures that say whether anything was tried."""
        return {
            "moves": sum(map(len, self.moves.values())),
            "lapsed leases": sum(move.lapsed for moves in self.moves.values() for move in moves),
            "repeated runs": len(self.runs) - len({run.id for run in self.runs}),
            "limits that were reached": self.full,
            "batches": self.of_batches,
            "rolled back": len(self.undone),
        }


def read(execute: Execute, undone: Iterable[int] = ()) -> Records:
    """Return what is in the books of a run that is over."""
    moves: dict[int, list[Move]] = defaultdict(list)
    for row in execute(
        "SELECT id, place, delivery, attempts, leased, lapsed, suspect, worker, reason, at, queue"
        " FROM chaos_moves ORDER BY move"
    ):
        moves[row[0]].append(Move(*row))
    sent = {id: Sent(*rest) for id, *rest in execute("SELECT id, kind, key, batch_id FROM chaos_sent")}
    runs = [
        under_its_delivery(Run(*row), moves[row[0]])
        for row in execute("SELECT id, kind, worker, pid, began, ended, outcome FROM storm_runs ORDER BY began")
    ]
    endings: dict[int, list[Ending]] = defaultdict(list)
    for place, how, table in (("archive", "outcome", "pgbus_archive"), ("dead", "reason", "pgbus_dead_letters")):
        for id, *rest in execute(f"SELECT id, {how}, attempts, delivery, task FROM {table}"):
            endings[id].append(Ending(place, *rest))
    seen = books.read(execute)
    members = Counter(one.batch for one in sent.values() if one.batch is not None)
    return Records(
        sent=sent,
        undone=set(undone) - sent.keys(),
        runs=runs,
        moves=dict(moves),
        faults=[
            Fault(name, frozenset(pids), after, before, detail)
            for name, pids, after, before, detail in execute(
                "SELECT name, pids, after, before, detail FROM chaos_faults ORDER BY fault"
            )
        ],
        endings=dict(endings),
        effects=Counter(id for (id,) in execute("SELECT id FROM chaos_effects")),
        left=[f"#{id} is {where}: {what}" for where, text in LEFT.items() for id, what in execute(text)],
        held=[f"#{id} holds the {what} {key}" for what, text in HELD.items() for id, key in execute(text)],
        over_the_limit=seen.over_the_limit(),
        two_holders=seen.together(),
        batches=batches.wrong_at_the_end(execute, dict(members)),
        pauses=pauses(execute("SELECT queue, paused, at FROM chaos_pauses ORDER BY at")),
        full=seen.full(),
        of_batches=len(members),
    )


def under_its_delivery(run: Run, moves: list[Move]) -> Run:
    """Return the run with the delivery that its process had when it began."""
    claims = [move for move in moves if move.leased and move.worker == run.worker]
    nth = bisect_right([move.at for move in claims], run.began)
    return run._replace(delivery=claims[nth - 1].delivery if nth else None)


def pauses(rows: Iterable[tuple[str, bool, datetime]]) -> list[tuple[str, datetime, datetime]]:
    """Return (queue, from, until) of each pause that is over."""
    since: dict[str, datetime] = {}
    found = []
    for queue, paused, at in rows:
        if paused:
            since.setdefault(queue, at)
        elif queue in since:
            found.append((queue, since.pop(queue), at))
    return found
