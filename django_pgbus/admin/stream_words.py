"""Streams in words: how a group stands, and what keeps it from going on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.streams.states import GroupState, HeldByEntry, HeldByHole, HeldByLease, Hold, Refusal, StreamState
from django_pgbus.worker.waiting import Kind, Situation, Standing, Text

KIB: Final = 1024
UNITS: Final = (_("B"), _("kB"), _("MB"), _("GB"), _("TB"))
NAMED: Final = 3
SOON: Final = 30.0  # seconds in which a transaction ends that nobody needs to hear of

REFUSALS: Final[dict[Refusal, Text]] = {
    Refusal.FENCE: _("Its cursor was left by a version that settles positions by another rule."),
    Refusal.EPOCH: _(
        "Its cursor belongs to another log: the database was restored into another cluster, or the log was truncated "
        "and began anew."
    ),
    Refusal.HEAD: _("Its cursor is past the end of the log, which has lost entries: it may have been restored."),
}


def standing(stream: StreamState, group: GroupState, situation: Situation) -> Standing:
    """Return how a group stands."""
    if not group.begun:
        return Standing(kind=Kind.WAITING, state=_("not begun"), reason=_("A worker gives it a cursor when it starts."))
    if group.refusal is not None:
        return Standing(kind=Kind.LOST, state=_("refuses"), reason=refusal(group))
    if group.paused_at is not None:
        since = gettext("Paused %(time)s. What comes waits until somebody resumes it.")
        return Standing(kind=Kind.WAITING, state=_("paused"), reason=since % {"time": words.clock(group.paused_at)})
    if not _is_claimed(group) and not _is_followed(stream, group, situation):
        if group.lag:
            why = _("Entries wait, and no running worker consumes this group.")
            return Standing(kind=Kind.LOST, state=_("no worker"), reason=why)
        why = _("No running worker consumes this group: what comes waits.")
        return Standing(kind=Kind.WAITING, state=_("caught up, no worker"), reason=why)
    match group.holds:
        case (HeldByLease(lapsed=True), *_rest):
            return Standing(kind=Kind.WAITING, state=_("worker silent"), reason="")
        case (HeldByLease(), *_rest):
            return Standing(kind=Kind.RUNNING, state=_("working"), reason="")
        case (HeldByEntry(), *_rest):
            return Standing(kind=Kind.WAITING, state=_("held by an entry"), reason="")
        case (HeldByHole(proven=False), *_rest):
            return Standing(kind=Kind.WAITING, state=_("waits for a transaction"), reason="")
    if group.lag:
        return Standing(kind=Kind.RUNNING, state=_("behind"), reason="")
    return Standing(kind=Kind.READY, state=_("caught up"), reason="")


def attention(stream: StreamState, situation: Situation) -> Iterator[dict[str, str]]:
    """Return what a person has to know of a stream: by group, in a sentence, and the kind that colours it."""
    if not stream.has_log:
        yield {"kind": "lost", "text": gettext("Its log is not there: `migrate` makes it.")}
    for group in stream.groups:
        stands = standing(stream, group, situation)
        told = {"group": words.showable(group.name), "state": stands.state}
        if stands.kind is Kind.LOST or group.paused or not group.begun:
            yield {"kind": stands.kind.value, "text": gettext("Group %(group)s: %(state)s.") % told}
        elif any(isinstance(hold, HeldByHole) and not hold.proven for hold in group.holds) and (
            group.lag_seconds is None or group.lag_seconds > SOON
        ):
            yield {"kind": "waiting", "text": gettext("Group %(group)s waits for a transaction.") % told}
        if group.dead:
            text = ngettext(
                "Group %(group)s: %(number)s dead letter.",
                "Group %(group)s: %(number)s dead letters.",
                group.dead.number,
            )
            yield {"kind": "waiting", "text": text % {**told, "number": words.count(group.dead)}}
    if pinned := stream.pinned_by:
        text = ngettext(
            "Kept beyond its age for group %(names)s.", "Kept beyond its age for groups %(names)s.", len(pinned)
        )
        names = ", ".join(words.showable(group.name) for group in pinned[:NAMED]) + (
            " …" if len(pinned) > NAMED else ""
        )
        yield {"kind": "waiting", "text": text % {"names": names}}


def refusal(group: GroupState) -> str:
    """Return why a group refuses, and what to do about it; `repair` says the command."""
    why = REFUSALS[group.refusal] if group.refusal else ""
    stop = gettext("Stop its consumers and run:")  # xgettext does not look into f-strings
    return f"{why} {stop}"


def repair(stream: str, group: str) -> str:
    """Return the command that lets a cursor adopt the log."""
    return f"pgbus_doctor --repair-cursor {words.showable(stream)}/{words.showable(group)}"


def holds(group: GroupState, situation: Situation) -> list[str]:
    """Return what keeps a group from going on, the lowest first."""
    if group.refusal is not None or not group.begun:
        return []
    return [_held(hold, situation) for hold in group.holds]


def lag(group: GroupState | None) -> str:
    """Return by how many entries a group is behind."""
    if group is None:
        return ""
    return ngettext("%(number)s entry", "%(number)s entries", group.lag) % {"number": words.number(group.lag)}


def size(number: int) -> str:
    """Return a number of bytes in the unit that fits."""
    value, unit = float(number), 0
    while value >= KIB and unit < len(UNITS) - 1:
        value, unit = value / KIB, unit + 1
    return f"{words.number(round(value))}\u00a0{UNITS[unit]}"


def about(number: int) -> str:
    """Return an estimate, to three digits: it knows no more."""
    return gettext("about %(number)s") % {"number": rounded(number)} if number else "0"


def rounded(number: int) -> str:
    """Return a number to three digits."""
    return words.number(int(round(number, -max(0, len(str(number)) - 3))))


def _is_claimed(group: GroupState) -> bool:
    """Return whether some worker has a range of it, and beats."""
    return bool(group.leases) and not group.lapsed


def _is_followed(stream: StreamState, group: GroupState, situation: Situation) -> bool:
    """Return whether some worker that claims was started for it."""
    name = f", {stream.name}/{group.name}, "
    return any(worker.takes_jobs and name in f", {worker.streams}, " for worker in situation.workers)


def _held(hold: Hold, situation: Situation) -> str:
    match hold:
        case HeldByLease():
            text = gettext("Entries after %(low)s to %(high)s are with worker %(worker)s since %(time)s.")
            if hold.lapsed:
                text = gettext(
                    "Entries after %(low)s to %(high)s were with worker %(worker)s, whose lease ended %(until)s: the next "
                    "that claims takes them."
                )
            return text % {
                "low": words.number(hold.low),
                "high": words.number(hold.high),
                "worker": words.showable(situation.name_of(hold.worker)),
                "time": words.clock(hold.claimed_at),
                "until": words.clock(hold.until),
            }
        case HeldByEntry():
            return _held_by_entry(hold)
        case HeldByHole():
            return _held_by_hole(hold)


def _held_by_entry(hold: HeldByEntry) -> str:
    told = {"position": words.number(hold.position), "time": words.clock(hold.due_at)}
    if hold.running:
        return gettext("Entry %(position)s is being tried on its own.") % told
    if not hold.attempts:
        return gettext("Entry %(position)s waits for its turn.") % told
    text = gettext("Entry %(position)s has failed, and is tried again %(time)s.")
    if hold.due:
        text = gettext("Entry %(position)s has failed, and is to be tried again since %(time)s.")
    return text % told


def _held_by_hole(hold: HeldByHole) -> str:
    told = {"position": words.number(hold.position)}
    writer = hold.writer
    if hold.proven or writer is None:
        return gettext("Position %(position)s was rolled back: the next claim passes it.") % told
    if writer.gid:
        text = gettext(
            "Position %(position)s is not committed. The oldest transaction that may do so is prepared, %(name)s of "
            "database %(database)s%(age)s."
        )
        told |= {"name": words.showable(writer.gid)}
    else:
        text = gettext(
            "Position %(position)s is not committed. The oldest transaction that may do so is that of process %(pid)s in "
            "database %(database)s%(who)s%(age)s."
        )
        told |= {"pid": str(writer.pid), "who": ""}
        if name := writer.application or writer.person:
            told["who"] = gettext(" (%(name)s)") % {"name": words.showable(name)}
    age = "" if writer.seconds is None else gettext(", open for %(age)s") % {"age": words.age(writer.seconds)}
    return text % {**told, "database": words.showable(writer.database or ""), "age": age}
