"""The claims on events, and what was counted of events that were not handled."""

from __future__ import annotations

from typing import Final

from django_pgbus.idempotency import stats
from django_pgbus.observability.families import Kind, Metric, Readings, Section

CLAIMS: Final = Metric(
    "pgbus_event_claims",
    "Claims of idempotent handlers: running, silent (their run was not heard of), or completed and remembered.",
    ("state",),
    bounded=True,
)
SKIPPED: Final = Metric(
    "pgbus_events_skipped_total",
    "Deliveries of events that were skipped as duplicates, by reason.",
    ("reason",),
    Kind.COUNTER,
    bounded=True,
)
UNROUTED: Final = Metric(
    "pgbus_events_unrouted",
    "Events that met no handler, of the topics seen within ARCHIVE_RETENTION. Falls when a topic is forgotten.",
    bounded=True,
)


def read(readings: Readings) -> None:
    """Read the claims and the counts."""
    counts = stats.counts()
    for state in ("running", "silent", "completed"):
        readings.set(CLAIMS, getattr(counts, state), state)
    for skipped in stats.skipped():
        readings.set(SKIPPED, skipped.number, skipped.reason)
    readings.set(UNROUTED, stats.unrouted_total())


SECTION: Final = Section(
    name="idempotency", title="Claims, and events not handled", metrics=(CLAIMS, SKIPPED, UNROUTED), read=read
)
