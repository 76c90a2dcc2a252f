"""The copies of events."""

from __future__ import annotations

from typing import Final

from django_pgbus.events import stats
from django_pgbus.observability.families import Metric, Readings, Section

COPIES: Final = Metric(
    "pgbus_event_copies",
    "Handlers' copies of events that are ready, running, delayed or dead.",
    ("state",),
    bounded=True,
)


def read(readings: Readings) -> None:
    """Read where the copies are."""
    counts = stats.counts()
    for state in ("ready", "running", "delayed", "dead"):
        readings.set(COPIES, getattr(counts, state), state)


SECTION: Final = Section(name="events", title="Events", metrics=(COPIES,), read=read)
