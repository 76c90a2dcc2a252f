"""How a consumer group stands, and what keeps it from going on."""

from __future__ import annotations

from typing import Final

from django_pgbus.observability.mcp import words
from django_pgbus.streams.states import GroupState, HeldByEntry, HeldByHole, HeldByLease, Hold, Refusal, StreamState
from django_pgbus.worker.waiting import Situation

REFUSALS: Final[dict[Refusal, str]] = {
    Refusal.FENCE: "Its cursor was left by a version that settles positions by another rule.",
    Refusal.EPOCH: "Its cursor belongs to another log: the database was restored elsewhere, or the log began anew.",
    Refusal.HEAD: "Its cursor is past the end of the log, which has lost entries: it may have been restored.",
}


def standing(group: GroupState, *, followed: bool) -> str:
    """Return how a group stands, in a few words."""
    if not group.begun:
        return "not begun: a worker gives it a cursor when it starts"
    if group.refusal is not None:
        return "refuses to work"
    if group.paused:
        return "paused"
    if not followed and not (group.leases and not group.lapsed):
        return "no worker follows it" if group.lag else "caught up, no worker follows it"
    match group.holds:
        case (HeldByLease(lapsed=True), *_rest):
            return "its worker fell silent"
        case (HeldByLease(), *_rest):
            return "working"
        case (HeldByEntry(), *_rest):
            return "held by an entry that failed"
        case (HeldByHole(proven=False), *_rest):
            return "waits for a transaction"
    return "behind" if group.lag else "caught up"


def holds(group: GroupState, situation: Situation) -> list[str]:
    """Return what keeps a group from going on, the lowest first."""
    if group.refusal is not None:
        return [
            f"{REFUSALS[group.refusal]} Stop its workers and run: manage.py pgbus_doctor --repair-cursor STREAM/GROUP"
        ]
    return [words.text_of(_held(hold, situation)) for hold in group.holds] if group.begun else []


def _held(hold: Hold, situation: Situation) -> str:
    match hold:
        case HeldByLease(low=low, high=high):
            worker, since = situation.name_of(hold.worker), words.told(hold.claimed_at)
            if hold.lapsed:
                ended = words.told(hold.until)
                return (
                    f"Entries after {low} to {high} were with worker {worker}, whose lease ended at {ended}: the next that "
                    "claims takes them."
                )
            return f"Entries after {low} to {high} are with worker {worker} since {since}."
        case HeldByEntry(position=position):
            if hold.running:
                return f"Entry {position} is being tried on its own."
            if not hold.attempts:
                return f"Entry {position} waits for its turn."
            when = f"{'since' if hold.due else 'at'} {words.told(hold.due_at)}"
            return f"Entry {position} has failed, and is due again {when}."
        case HeldByHole():
            return _held_by_hole(hold)


def _held_by_hole(hold: HeldByHole) -> str:
    writer = hold.writer
    if hold.proven or writer is None:
        return f"Position {hold.position} was rolled back: the next claim passes it."
    age = "" if writer.seconds is None else f", open for {words.age(writer.seconds)}"
    if writer.gid:
        who = f"is prepared, {writer.gid} of database {writer.database}"
    else:
        name = writer.application or writer.person
        who = f"is that of process {writer.pid} in database {writer.database}{f' ({name})' if name else ''}"
    return f"Position {hold.position} is not committed. The oldest transaction that may do so {who}{age}."


def is_followed(stream: StreamState, group: GroupState, situation: Situation) -> bool:
    """Return whether some worker that claims was started for it."""
    name = f", {stream.name}/{group.name}, "
    return any(worker.takes_jobs and name in f", {worker.streams}, " for worker in situation.workers)
