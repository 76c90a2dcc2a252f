"""The streams: how long each log is, how far its groups are, and what holds them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from django_pgbus.observability.mcp import contents, inputs, stream_words, words
from django_pgbus.observability.mcp.words import Refused
from django_pgbus.queues.stats import Count
from django_pgbus.streams import stats
from django_pgbus.streams.consumers import consumer_of
from django_pgbus.streams.states import Failed, GroupState, LeaseState, StreamState
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Situation

MOST_OF_EACH: Final = 20  # leases and failed entries of one stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """
    One consumer group. It is done with entries up to `committed`, has claimed those up to `claimed`.

    `lag` counts positions to the head of the log; `lag_seconds` is the age of the oldest entry that is not done with.
    `holds` says what keeps it from going on, the lowest first; `followed` whether a running worker was started for it.
    """

    name: str
    handler: str
    standing: str
    lag: int
    lag_seconds: float | None
    claimed: int
    committed: int
    paused_at: datetime | None
    followed: bool
    in_order_of_a_key: bool
    routes_into_queues: bool
    leases: Count
    retrying: Count
    running: Count
    dead_letters: Count
    holds: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """
    One stream.

    `head` is the last position that was handed out, `oldest` the first that is kept; `entries` is an estimate.
    """

    name: str
    head: int
    oldest: int | None
    oldest_seconds: float | None
    entries: int
    bytes: int
    partitions: Count
    retention_seconds: float | None
    groups: list[Group]
    more_groups: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Streams by name; `more` says that there are others."""

    streams: list[Stream]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A range of positions, after `low` to `high`, that a worker has claimed; anybody may take a lapsed one."""

    group: str
    low: int
    high: int
    worker: str
    claimed_at: datetime
    until: datetime
    lapsed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedEntry:
    """
    An entry that failed, or waits for an earlier one of its key: `ready`, `running` or `dead`.

    `payload` and `traceback` are redacted unless they were asked for and the server allows it.
    """

    id: int
    group: str
    position: int
    status: str
    attempts: int
    due_at: datetime
    failed_at: datetime | None
    key: str
    exception: str
    payload: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDetails:
    """One stream with its open ranges, its failed entries (dead ones first), and for whom old entries are kept."""

    stream: Stream
    leases: list[Range]
    failed: list[FailedEntry]
    kept_for: list[str]
    redaction: str


def pgbus_streams(
    text: Annotated[inputs.Text, Field(description="Part of a name; empty: all.")] = "",
    limit: Annotated[int, Field(ge=1, le=stats.MOST_STREAMS, description="How many at most.")] = 20,
) -> Streams:
    """Tell the streams: head, entries and age of each log, and of each consumer group how far it lags and what holds it."""
    found = stats.overview(min(limit + 1, stats.MOST_STREAMS), text)
    situation = waiting.situation()
    return Streams(streams=[_stream(stream, situation) for stream in found[:limit]], more=len(found) > limit)


def pgbus_stream(
    name: Annotated[inputs.Text, Field(description="The name of a stream.", min_length=1)],
    *,
    include_payload: inputs.IncludePayload = False,
) -> StreamDetails:
    """Tell one stream: its groups, open ranges, failed entries, what holds each group, and what keeps old entries."""
    stream = stats.named(name)
    if stream is None:
        raise Refused("There is no stream of this name. pgbus_streams lists those there are.")
    situation = waiting.situation()
    names = {group.id: group for group in stream.groups}
    tell = contents.may_tell(include_payload)
    return StreamDetails(
        stream=_stream(stream, situation),
        leases=[_lease(lease, names, situation) for lease in stats.leases(names, MOST_OF_EACH)],
        failed=[
            _failed(stream, failed, names[failed.group], tell=tell) for failed in stats.exceptions(names, MOST_OF_EACH)
        ],
        kept_for=[
            f"Group {words.name(pin.group)} has not handled entries past their age: {pin.partitions:,} partitions with "
            f"about {pin.entries:,} entries are kept for it."
            for pin in stats.pins(stream, stats.partitions(stream))
        ],
        redaction=contents.why_redacted(include_payload),
    )


def _stream(stream: StreamState, situation: Situation) -> Stream:
    return Stream(
        name=words.name(stream.name),
        head=stream.head,
        oldest=stream.oldest,
        oldest_seconds=words.rounded(stream.oldest_seconds),
        entries=stream.entries,
        bytes=stream.bytes,
        partitions=stream.partitions,
        retention_seconds=stream.retention.total_seconds() if stream.retention else None,
        groups=[_group(stream, group, situation) for group in stream.groups],
        more_groups=stream.more_groups,
    )


def _group(stream: StreamState, group: GroupState, situation: Situation) -> Group:
    followed = stream_words.is_followed(stream, group, situation)
    return Group(
        name=words.name(group.name),
        handler=words.name(group.handler),
        standing=stream_words.standing(group, followed=followed),
        lag=group.lag,
        lag_seconds=words.rounded(group.lag_seconds),
        claimed=group.claimed,
        committed=group.committed,
        paused_at=words.utc(group.paused_at),
        followed=followed,
        in_order_of_a_key=group.keyed,
        routes_into_queues=group.routes,
        leases=group.leases,
        retrying=group.ready,
        running=group.running,
        dead_letters=group.dead,
        holds=stream_words.holds(group, situation),
    )


def _lease(lease: LeaseState, groups: dict[int, GroupState], situation: Situation) -> Range:
    return Range(
        group=words.name(groups[lease.group].name),
        low=lease.low,
        high=lease.high,
        worker=words.name(situation.name_of(lease.worker)),
        claimed_at=words.known_utc(lease.claimed_at),
        until=words.known_utc(lease.until),
        lapsed=lease.lapsed,
    )


def _failed(stream: StreamState, failed: Failed, group: GroupState, *, tell: bool) -> FailedEntry:
    payload, traceback = contents.REDACTED, contents.REDACTED if failed.traceback else ""
    if tell:
        entry = next(iter(stats.failed(stream.id, [failed.id], 1)), None)
        carried = None if entry is None else stats.content(stream.id, entry)
        payload, traceback = contents.of_entry(
            None if carried is None else carried.payload,
            failed.traceback if entry is None else entry.traceback,
            consumer=consumer_of(stream.name, group.name, group.handler),
        )
    return FailedEntry(
        id=failed.id,
        group=words.name(group.name),
        position=failed.position,
        status=failed.status,
        attempts=failed.attempts,
        due_at=words.known_utc(failed.due_at),
        failed_at=words.utc(failed.failed_at),
        key=words.name(failed.key or ""),
        exception=contents.exception_class(failed.exception),
        payload=payload,
        traceback=traceback,
    )
