"""The look of `pgbus_doctor` at streams, and the one thing it puts right: a cursor that belongs to another log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django_pgbus.exceptions import StreamDoesNotExist
from django_pgbus.streams import groups, logs, logs_sql, partitions, stats
from django_pgbus.streams import sql as streams_sql
from django_pgbus.streams.consumers import consumers
from django_pgbus.streams.states import GroupState, HeldByEntry, HeldByHole, HeldByLease, Hold, StreamState, Writer
from django_pgbus.streams.stream import streams
from django_pgbus.tasks.discovery import autodiscover
from django_pgbus.worker import doctor_sql as sql
from django_pgbus.worker.findings import Finding, Grade

MOST: Final = 200  # streams
LATE: Final = 300.0  # seconds that an entry may wait
OLD: Final = 60.0  # seconds that a transaction may hold a position


def look() -> Iterator[Finding]:
    """Look at what keeps groups from getting on, and logs from staying short."""
    autodiscover(announce=False)  # what cannot be imported stands in the system checks
    known = stats.overview(MOST)
    found = [
        *_logs(known),
        *_partitions(),
        *_refused(known),
        *_groups(known),
        *_never_followed(known),
        *_never_declared(),
        *_pinned(known),
    ]
    yield from found
    if not any(finding.grade is Grade.FAIL for finding in found):
        count = sum(len(stream.groups) for stream in known)
        worst = max((group for stream in known for group in stream.groups), key=lambda group: group.lag, default=None)
        behind = f", at most {worst.lag:,} positions behind" if worst is not None else ""
        yield Finding(Grade.OK, "streams", f"{len(known)} streams, {count} groups{behind}")


def _logs(known: list[StreamState]) -> Iterator[Finding]:
    there = {stream.name for stream in known}
    if len(known) < MOST:
        for name in sorted(set(streams) - there):
            yield Finding(
                Grade.FAIL,
                "streams",
                f"{name} is declared, and not in the database: appending to it fails",
                "Run migrate, or call its ensure().",
                name,
            )
    for name, faults in logs.faults().items():
        for text in faults:
            yield Finding(
                Grade.FAIL,
                "streams",
                text.removesuffix("."),
                "Put it back. Until then the groups of this stream claim nothing.",
                name,
            )


def _partitions() -> Iterator[Finding]:
    for row in logs_sql.AHEAD.rows():
        wanted = range((row.head + 1) // row.partition_size, row.head // row.partition_size + partitions.AHEAD + 1)
        missing = sorted(set(wanted) - set(row.numbers))
        if missing:
            yield Finding(
                Grade.WARN,
                "streams",
                f"pgbus_stream_{row.id} lacks {len(missing)} of its next partitions, the first from "
                f"{missing[0] * row.partition_size:,}: an append that comes to it makes it",
                "A running worker makes them ahead, every ten seconds. Is one running, and does somebody hold the table?",
                f"pgbus_stream_{row.id}",
            )


def _refused(known: list[StreamState]) -> Iterator[Finding]:
    names = {group.id: f"{stream.name}/{group.name}" for stream in known for group in stream.groups if group.begun}
    system = str(streams_sql.SESSION.row().system)
    for row in groups.probe(list(names), system):
        if reason := groups.why_refused(names[row.id], row):
            problem, _, remedy = reason.partition(". ")
            yield Finding(Grade.FAIL, "streams", f"{names[row.id]} refuses to work: {problem}", remedy, names[row.id])


def _groups(known: list[StreamState]) -> Iterator[Finding]:
    followed = _followed()
    for stream in known:
        if stream.more_groups:
            yield Finding(
                Grade.OK,
                "streams",
                f"{stream.name} has more than {len(stream.groups)} groups; the others are not looked at",
            )
        for group in stream.groups:
            name = f"{stream.name}/{group.name}"
            if (stream.name, group.name) not in consumers:
                yield Finding(
                    Grade.WARN,
                    "streams",
                    f"{name} is there, and this code does not declare it",
                    "Another deployable may. If none does, delete the group, since retention keeps what it has not handled: "
                    f"ConsumerGroup.objects.get(stream__name={stream.name!r}, name={group.name!r}).delete()",
                    name,
                )
            elif group.paused:
                yield Finding(
                    Grade.WARN,
                    "streams",
                    f"{name} is paused, {group.lag:,} positions behind",
                    "Resume it on the page Streams of the admin.",
                    name,
                )
            elif group.lag and group.refusal is None and name not in followed:
                yield Finding(
                    Grade.FAIL,
                    "streams",
                    f"{name} is {group.lag:,} positions behind, and no living worker follows it",
                    f"Start one: manage.py runworker --streams {name}",
                    name,
                )
            elif group.refusal is None:
                yield from _late(name, group)


def _never_followed(known: list[StreamState]) -> Iterator[Finding]:
    """Find the groups of this code that have no row: a worker writes it when it first follows them."""
    there = {stream.name for stream in known}
    pairs = sorted(pair for pair in consumers if pair[0] in there)
    if not pairs:
        return
    stored, followed = groups.stored(pairs), _followed()
    for pair in pairs:
        name = "/".join(pair)
        if pair not in stored and name not in followed:
            yield Finding(
                Grade.WARN,
                "streams",
                f"{name} is declared, and no worker has ever followed it",
                f"Start one: manage.py runworker --streams {name}",
                name,
            )


def _never_declared() -> Iterator[Finding]:
    """Find streams that are read and that nobody declares: `migrate` and workers make those too, so a typo is empty."""
    for name, declared in sorted(streams.items()):
        readers = ", ".join(consumer.name for _, consumer in sorted(consumers.items()) if consumer.stream == name)
        if readers and not declared.by_hand:
            yield Finding(
                Grade.WARN,
                "streams",
                f'{name} is read by {readers}, and no Stream("{name}") is in this code',
                "Put the name right, or declare it in a module streams or handlers. Another deployable may declare it.",
                name,
            )


def _followed() -> set[str]:
    return {name for worker in sql.LIVING_WORKERS.rows() for name in _followed_by(worker)}


def _followed_by(worker: Any) -> list[str]:
    return [name.strip() for name in worker.streams.split(",")]


def _late(name: str, group: GroupState) -> Iterator[Finding]:
    hold = next(iter(group.holds), None)
    writer = hold.writer if isinstance(hold, HeldByHole) and not hold.proven else None
    if isinstance(hold, HeldByHole) and writer is not None and (writer.seconds or 0.0) > OLD:
        yield Finding(
            Grade.WARN,
            "streams",
            f"{name} waits for position {hold.position:,}: the oldest transaction that may have it is {_named(writer)}, "
            f"{writer.seconds:.0f} s old",
            "COMMIT PREPARED or ROLLBACK PREPARED it." if writer.gid else "End it. What appends should append late.",
            name,
        )
    elif (group.lag_seconds or 0.0) > LATE:
        yield Finding(
            Grade.WARN,
            "streams",
            f"{name} is {group.lag:,} positions behind, the oldest entry waits for {group.lag_seconds:.0f} s"
            + (f": {_held_by(hold)}" if hold is not None else ""),
            "Give it more processes, or see what its handler does.",
            name,
        )


def _named(writer: Writer) -> str:
    if writer.gid:
        return f"the prepared transaction {writer.gid!r} of the database {writer.database!r}"
    said = [word for word in (writer.application, writer.person, writer.state) if word]
    return f"that of process {writer.pid} of the database {writer.database!r} ({', '.join(said)})"


def _held_by(hold: Hold) -> str:
    match hold:
        case HeldByLease(low=low, high=high, lapsed=True):
            return f"{low + 1:,} to {high:,} were claimed by a worker that has fallen silent"
        case HeldByLease(low=low, high=high, worker=worker):
            return f"{low + 1:,} to {high:,} are being handled by worker {worker}"
        case HeldByEntry(position=position, attempts=attempts):
            return f"the entry at {position:,} has failed {attempts} times, and is to be tried again"
        case HeldByHole(position=position):
            return f"position {position:,} is missing"
    raise AssertionError("unreachable")


def _pinned(known: list[StreamState]) -> Iterator[Finding]:
    for stream in known:
        for group in stream.pinned_by:
            yield Finding(
                Grade.WARN,
                "streams",
                f"{stream.name} keeps entries that are past its retention since {group.name} has not handled them",
                "Let a worker follow that group, delete it, or let retention override it on the page of the stream.",
                f"{stream.name}/{group.name}",
            )


# --- putting right ------------------------------------------------------------------------------------


class CannotRepair(Exception):
    """A cursor is not repaired; the message says why."""


def repair_cursor(name: str, *, force: bool = False) -> str:
    """
    Let a group that refuses to work adopt the log as it is, and return what was done, as a sentence. Raises CannotRepair.

    Not while a living worker follows it, or a range of it is leased, unless it is forced: such a process may know of the
    other log what does not hold in this one, and take it for a proof before it looks again.
    """
    stream, slash, group = name.partition("/")
    if not (stream and slash and group):
        raise CannotRepair(f"{name!r} is no group of a stream; write ledger/totals.")
    try:
        found = groups.find(stream, group)
    except StreamDoesNotExist as error:
        raise CannotRepair(str(error)) from error
    reason = _why_refused(name, found.id)
    if reason is None:
        return f"{name} does not refuse to work: there is nothing to repair."
    if not force:
        _must_be_alone(name, found.id)
    claimed, committed = groups.repair(stream, group)
    still = _why_refused(name, found.id)
    return (
        f"{name} has adopted the log as it is, and goes on after {claimed:,}. What comes up to {committed:,} counts as done "
        f"with, as before.{f' It refuses still: {still}' if still else ''}"
    )


def _must_be_alone(name: str, group: int) -> None:
    stop = (
        "Stop it first: it may know of the other log what does not hold in this one. Where it is gone already, wait for a "
        "lease, or give --force."
    )
    if followers := [worker.name for worker in sql.LIVING_WORKERS.rows() if name in _followed_by(worker)]:
        raise CannotRepair(f"{name} is followed by {', '.join(followers)}. {stop}")
    if held := sql.HELD_RANGES.rows(group=group):
        raise CannotRepair(f"The worker {held[0].worker} holds a range of {name} that has not lapsed. {stop}")


def _why_refused(name: str, group: int) -> str | None:
    rows = groups.probe([group], str(streams_sql.SESSION.row().system))
    if not rows:
        raise CannotRepair(f"{name} has no cursor. A worker makes it when it starts.")
    return groups.why_refused(name, rows[0])
