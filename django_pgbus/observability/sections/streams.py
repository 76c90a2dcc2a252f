"""The streams and their groups."""

from __future__ import annotations

from typing import Final

from django_pgbus.observability.families import Metric, Readings, Section
from django_pgbus.streams import stats
from django_pgbus.streams.states import GroupState, StreamState

STREAM: Final = ("stream",)
GROUP: Final = ("stream", "group")

HEAD: Final = Metric("pgbus_stream_head", "The last position of a stream that was handed out.", STREAM)
ENTRIES: Final = Metric("pgbus_stream_entries", "Entries that a stream keeps, estimated.", STREAM)
SIZE: Final = Metric("pgbus_stream_size_bytes", "Size of a stream's partitions with their indexes.", STREAM)
OLDEST: Final = Metric(
    "pgbus_stream_oldest_entry_age_seconds", "Age of the oldest entry that a stream keeps; 0 if it is empty.", STREAM
)
LAG: Final = Metric("pgbus_stream_group_lag_entries", "Positions of the stream that a group is not done with.", GROUP)
LAG_SECONDS: Final = Metric(
    "pgbus_stream_group_lag_seconds",
    "Age of the oldest entry that a group is not done with; 0 if there is none.",
    GROUP,
)
LEASES: Final = Metric("pgbus_stream_group_open_leases", "Ranges of a group that workers hold.", GROUP, bounded=True)
EXCEPTIONS: Final = Metric(
    "pgbus_stream_group_exceptions", "Entries of a group that failed, or wait for one that did.", GROUP, bounded=True
)
DEAD: Final = Metric("pgbus_stream_group_dead_letters", "Dead letters of a group.", GROUP, bounded=True)
PAUSED: Final = Metric("pgbus_stream_group_paused", "Whether nothing is claimed for a group.", GROUP)
REFUSING: Final = Metric(
    "pgbus_stream_group_refusing", "Whether a group refuses to work, because its cursor belongs to another log.", GROUP
)


def read(readings: Readings) -> None:
    """Read the first streams by name, and the first groups of each."""
    found = stats.overview(stats.MOST_STREAMS + 1)
    shown, others = found[: stats.MOST_STREAMS], found[stats.MOST_STREAMS :]
    readings.left_out += len(others) + sum(stream.more_groups for stream in shown)
    for stream in shown:
        _stream(readings, stream)
    for name, group in readings.first((stream.name, group) for stream in shown for group in stream.groups):
        _group(readings, group, name, group.name)


def _stream(readings: Readings, stream: StreamState) -> None:
    readings.set(HEAD, stream.head, stream.name)
    readings.set(ENTRIES, stream.entries, stream.name)
    readings.set(SIZE, stream.bytes, stream.name)
    readings.set(OLDEST, stream.oldest_seconds or 0.0, stream.name)


def _group(readings: Readings, group: GroupState, *names: str) -> None:
    readings.set(LAG, group.lag, *names)
    readings.set(LAG_SECONDS, group.lag_seconds or 0.0, *names)
    readings.set(LEASES, group.leases, *names)
    readings.set(EXCEPTIONS, group.ready + group.running, *names)
    readings.set(DEAD, group.dead, *names)
    readings.set(PAUSED, group.paused, *names)
    readings.set(REFUSING, group.refusal is not None, *names)


SECTION: Final = Section(
    name="streams",
    title="Streams",
    metrics=(HEAD, ENTRIES, SIZE, OLDEST, LAG, LAG_SECONDS, LEASES, EXCEPTIONS, DEAD, PAUSED, REFUSING),
    read=read,
)
