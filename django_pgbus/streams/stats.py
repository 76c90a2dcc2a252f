"""
Read-only numbers of the streams, for people: admin, metrics and MCP all read these.

How far a group is comes from one snapshot, and is what it would be if everything that is known were written down. Rows
are counted to `LIMIT`, and say so beyond; what is in a log is estimated. Each function asks a fixed number of times,
whatever there is, and `overview` and `stream` once more for each stream: a log is a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django_pgbus.queues.stats import LIMIT, Count
from django_pgbus.streams import stats_sql
from django_pgbus.streams.fence import FENCE
from django_pgbus.streams.log_statement import log_table
from django_pgbus.streams.states import (
    Alarms,
    Content,
    Failed,
    FailedEntry,
    GroupState,
    HeldByEntry,
    HeldByHole,
    HeldByLease,
    Hold,
    LeaseState,
    PartitionState,
    Pin,
    Refusal,
    StreamState,
    Writer,
)

MOST_STREAMS: Final = 50
MOST_GROUPS: Final = 200
MOST_PARTITIONS: Final = 1_000
MOST_LISTED: Final = 50
OF_EACH: Final = 20  # groups of a stream, where all streams are looked at
SOME: Final = 1_000  # and how far their failed entries are counted then
STATUSES: Final = ("dead", "running", "ready")


def alarms() -> Alarms:
    """Return what needs a person, of all streams; asks once."""
    rows = stats_sql.ALARMS.rows(fence=FENCE, most=MOST_GROUPS, limit=SOME)
    return Alarms(
        refusing=tuple(f"{row.stream}/{row.group}" for row in rows if row.refuses),
        paused=tuple(f"{row.stream}/{row.group}" for row in rows if row.is_paused),
        dead=sum((_count(row.dead, SOME) for row in rows), Count(0)),
    )


def overview(limit: int = MOST_STREAMS, text: str = "") -> list[StreamState]:
    """Return the first streams by name, with as many of their groups as help to choose one."""
    rows = stats_sql.STREAMS.rows(text=text.lower(), id=None, most=limit, partitions=MOST_PARTITIONS)
    return _streams(rows, OF_EACH, SOME)


def stream(id: int, group: str | None = None) -> StreamState | None:
    """Return one stream with its groups, or with one of them."""
    rows = stats_sql.STREAMS.rows(text="", id=id, most=1, partitions=MOST_PARTITIONS)
    return next(iter(_streams(rows, MOST_GROUPS, LIMIT, group)), None)


def named(name: str) -> StreamState | None:
    """Return the stream of a name with its groups, None if there is none."""
    row = stats_sql.NAMED.row(name=name)
    return None if row is None else stream(row.id)


def partitions(stream: StreamState, limit: int = MOST_PARTITIONS) -> list[PartitionState]:
    """Return the first partitions of a stream, those of the oldest entries first."""
    rows = stats_sql.PARTITIONS.rows(stream=stream.id, most=limit)
    bounds = [(row.lower, row.upper) for row in rows if row.lower is not None and row.upper is not None]
    ages: dict[int, float] = {}
    if stream.has_log:
        lowers, uppers = [lower for lower, _ in bounds], [upper for _, upper in bounds]
        found = stats_sql.NEWEST.of(stream.id).tuples(lowers=lowers, uppers=uppers)
        ages = dict(found)
    return [
        PartitionState(
            name=row.name,
            lower=row.lower,
            upper=row.upper,
            bytes=row.bytes or 0,
            entries=_entries(stream, row),
            newest_seconds=ages.get(row.lower),
        )
        for row in rows
    ]


def pins(stream: StreamState, among: Sequence[PartitionState]) -> list[Pin]:
    """Return which groups keep partitions from being dropped that are past their age, the last one first."""
    age = stream.retention.total_seconds() if stream.retention else 0.0
    found = []
    for group in stream.pinned_by:
        kept = [
            part
            for part in among
            if part.upper is not None
            and part.upper - 1 > group.committed
            and part.newest_seconds is not None
            and part.newest_seconds > age
        ]
        entries = sum(min(part.entries, (part.upper or 1) - 1 - group.committed) for part in kept)
        found.append(Pin(group=group.name, committed=group.committed, entries=entries, partitions=len(kept)))
    return found


def leases(groups: Iterable[int], limit: int = MOST_LISTED) -> list[LeaseState]:
    """Return the open ranges of some groups, the lowest of each first."""
    rows = stats_sql.LEASES.rows(groups=list(groups), most=limit)
    return [
        LeaseState(
            id=row.id,
            group=row.group_id,
            low=row.low,
            high=row.high,
            worker=row.worker,
            claimed_at=row.claimed_at,
            until=row.until,
            reclaims=row.reclaims,
            lapsed=row.lapsed,
        )
        for row in rows
    ]


def exceptions(groups: Iterable[int], limit: int = MOST_LISTED, statuses: Sequence[str] = STATUSES) -> list[Failed]:
    """Return the failed entries of some groups: first those that are dead, then by when they are due."""
    rows = stats_sql.EXCEPTIONS.rows(groups=list(groups), statuses=list(statuses), most=limit)
    return [
        Failed(
            id=row.id,
            group=row.group_id,
            position=row.position,
            status=row.status,
            attempts=row.attempts,
            due_at=row.due_at,
            until=row.until,
            failed_at=row.failed_at,
            key=row.key,
            exception=row.exception,
            traceback=row.traceback,
        )
        for row in rows
    ]


def failed(stream: int, ids: Iterable[int], limit: int = LIMIT) -> list[FailedEntry]:
    """Return those of these failed entries that are still there, of one stream."""
    rows = stats_sql.CHOSEN.rows(stream=stream, ids=list(ids), most=limit)
    return [FailedEntry(**row._asdict()) for row in rows]


def content(stream: int, entry: FailedEntry) -> Content:
    """Return what a failed entry carries."""
    row = stats_sql.CONTENT.of(stream).row(id=entry.id, position=entry.position)
    return Content(payload=None, appended_at=None) if row is None else Content(**row._asdict())


def dead_ids(group: int, seen: datetime, limit: int = LIMIT) -> list[int]:
    """Return the dead letters of a group that had died by then, at most `limit`."""
    return [row.id for row in stats_sql.DEAD.rows(group=group, seen=seen, most=limit)]


def handled_again(stream: StreamState, group: GroupState, position: int, limit: int = LIMIT) -> Count:
    """
    Return how many entries stand between a position and the end of what a group has claimed.

    Beyond `limit` it is an estimate, and says so: of the positions that are kept.
    """
    counted = stats_sql.COUNT_ENTRIES.of(stream.id).row(after=position, to=group.claimed, limit=limit).number
    if counted <= limit:
        return Count(counted)
    return Count(max(counted, group.claimed - max(position, (stream.oldest or 1) - 1)), more=True)


def _streams(rows: Sequence[Any], each: int, limit: int, name: str | None = None) -> list[StreamState]:
    """Return the states of some streams, with at most `each` of their groups."""
    ids = [row.id for row in rows]
    # In this order: whatever is not visible in the log when it is looked at last, and was handed out before the first of
    # these, belongs to a writer that is seen in between, or was rolled back.
    found = stats_sql.GROUPS.rows(streams=ids, name=name, each=each + 1, limit=limit)
    writer = stats_sql.OLDEST_WRITER.row()
    oldest_writer = None if writer is None else Writer(**writer._asdict())
    of: dict[int, list[Any]] = {id: [] for id in ids}
    for group in found:
        of[group.stream_id].append(group)
    behind = _behind({row.id: of[row.id][:each] for row in rows if row.has_log})
    return [_stream(row, of[row.id], each, limit, oldest_writer, behind.get(row.id, {})) for row in rows]


def _behind(groups: dict[int, list[Any]]) -> dict[int, dict[int, Any]]:
    """Return the first entry of each log, and the first after each place of a group, by stream and place; asks once."""
    found: dict[int, dict[int, Any]] = {stream: {} for stream in groups}
    if not found:
        return found
    asked = [
        (log_table(stream), place)
        for stream, shown in groups.items()
        for place in sorted({0, *(group.committed for group in shown), *(group.claimed for group in shown)})
    ]
    logs, places = zip(*asked, strict=True)
    by_log = {log_table(stream): entries for stream, entries in found.items()}
    for entry in stats_sql.NEXT.of_each(list(groups)).rows(logs=list(logs), after=list(places)):
        by_log[entry.log][entry.after] = entry
    return found


def _stream(
    row: Any, found: Sequence[Any], each: int, limit: int, writer: Writer | None, behind: dict[int, Any]
) -> StreamState:
    shown = found[:each]
    oldest = behind.get(0)
    kept = 0 if oldest is None else min(row.entries, max(0, row.head - oldest.position + 1))
    return StreamState(
        id=row.id,
        name=row.name,
        retention=row.retention,
        drops_unhandled=row.drops_unhandled,
        created_at=row.created_at,
        now=row.now,
        has_log=row.has_log,
        head=row.head,
        entries=kept,
        partitions=Count(min(row.partitions, MOST_PARTITIONS), row.partitions > MOST_PARTITIONS),
        bytes=row.bytes,
        oldest=oldest.position if oldest else None,
        oldest_at=oldest.appended_at if oldest else None,
        oldest_seconds=oldest.seconds if oldest else None,
        groups=tuple(_group(group, behind, limit, writer) for group in shown),
        more_groups=len(found) > each,
    )


def _group(row: Any, behind: dict[int, Any], limit: int, writer: Writer | None) -> GroupState:
    oldest, waiting = behind.get(row.committed), behind.get(row.claimed)
    lapsed = row.lease_low is not None and row.lease_lapsed
    state = GroupState(
        id=row.id,
        stream=row.stream_id,
        name=row.name,
        handler=row.handler,
        keyed=row.keyed,
        routes=row.routes,
        paused_at=row.paused_at,
        declared_at=row.declared_at,
        begun=row.has_cursor,
        claimed=row.claimed,
        committed=row.committed,
        head=row.head,
        lag_seconds=oldest.seconds if oldest else None,
        waiting_seconds=waiting.seconds if waiting else None,
        leases=_count(row.leases, limit),
        lapsed=lapsed,
        ready=_count(row.ready, limit),
        running=_count(row.running, limit),
        dead=_count(row.dead, limit),
        refusal=_refusal(row),
        holds=(),
    )
    return replace(state, holds=tuple(_holds(row, waiting, writer)))


def _holds(row: Any, waiting: Any, writer: Writer | None) -> list[Hold]:
    """Return what keeps a group from going on, what is lowest first."""
    held: list[tuple[int, Hold]] = []
    if row.lease_low is not None and not row.routes:
        lease = HeldByLease(
            low=row.lease_low,
            high=row.lease_high,
            worker=row.lease_worker,
            claimed_at=row.lease_claimed_at,
            until=row.lease_until,
            lapsed=row.lease_lapsed,
        )
        held.append((row.lease_low, lease))
    if row.failed_position is not None and not row.routes:
        entry = HeldByEntry(
            id=row.failed_id,
            position=row.failed_position,
            attempts=row.failed_attempts,
            due_at=row.failed_due_at,
            running=row.failed_status == "running",
            due=row.failed_is_due,
        )
        held.append((row.failed_position - 1, entry))
    next_position = row.claimed + 1
    if row.has_cursor and row.claimed < row.head and (waiting is None or waiting.position > next_position):
        held.append((row.claimed, HeldByHole(position=next_position, proven=row.is_proven, writer=writer)))
    return [hold for _, hold in sorted(held, key=lambda pair: pair[0])]


def _refusal(row: Any) -> Refusal | None:
    if not row.has_cursor:
        return None
    if row.fence != FENCE:
        return Refusal.FENCE
    if not row.same_epoch:
        return Refusal.EPOCH
    return Refusal.HEAD if row.head < row.claimed else None


def _entries(stream: StreamState, row: Any) -> int:
    """Return about how many entries a partition has: what was analyzed, but no more than it has positions in use."""
    if row.lower is None or row.upper is None or stream.oldest is None:
        return max(0, int(row.analyzed))
    positions: int = max(0, min(row.upper, stream.head + 1) - max(row.lower, stream.oldest))
    is_full = row.upper <= stream.head
    return min(int(row.analyzed), positions) if is_full and row.analyzed >= 0 else positions


def _count(number: int, limit: int) -> Count:
    """Return a count of rows of which one more than `limit` were looked for."""
    return Count(min(number, limit), number > limit)
