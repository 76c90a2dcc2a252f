"""The batches."""

from __future__ import annotations

from typing import Final

from django_pgbus.batches import stats
from django_pgbus.observability.families import Metric, Readings, Section

OPEN: Final = Metric("pgbus_batches_open", "Batches that are not finished.", bounded=True)
OLDEST: Final = Metric(
    "pgbus_batches_oldest_open_age_seconds", "How long the first of the unfinished batches is open; 0 if there is none."
)


def read(readings: Readings) -> None:
    """Read what is not finished."""
    unfinished = stats.unfinished()
    readings.set(OPEN, unfinished.number)
    readings.set(OLDEST, unfinished.oldest or 0.0)


SECTION: Final = Section(name="batches", title="Batches", metrics=(OPEN, OLDEST), read=read)
