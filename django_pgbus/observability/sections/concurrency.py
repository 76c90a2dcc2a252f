"""The limits and who waits for them; keys are data of users, and never a label."""

from __future__ import annotations

from typing import Final

from django_pgbus.concurrency import stats
from django_pgbus.observability.families import Metric, Readings, Section

BLOCKED: Final = Metric(
    "pgbus_concurrency_blocked_executions", "Jobs that are parked because their key is at its limit.", bounded=True
)
BLOCKED_OLDEST: Final = Metric(
    "pgbus_concurrency_blocked_oldest_age_seconds", "How long the first of these jobs is parked; 0 if none is."
)
SLOTS: Final = Metric("pgbus_concurrency_slots_held", "Slots of limits that are held.", bounded=True)
AT_LIMIT: Final = Metric("pgbus_concurrency_keys_at_limit", "Keys of limits all of whose slots are held.", bounded=True)
FOR_KEYS: Final = Metric(
    "pgbus_uniqueness_blocked_executions", "Jobs that are parked until a uniqueness key is free.", bounded=True
)
FOR_KEYS_OLDEST: Final = Metric(
    "pgbus_uniqueness_blocked_oldest_age_seconds", "How long the first of these jobs is parked; 0 if none is."
)


def read(readings: Readings) -> None:
    """Read what the Locks page shows of all keys together."""
    totals = stats.totals()
    readings.set(BLOCKED, totals.parked.number)
    readings.set(BLOCKED_OLDEST, totals.parked.oldest or 0.0)
    readings.set(SLOTS, totals.slots)
    readings.set(AT_LIMIT, totals.at_limit)
    readings.set(FOR_KEYS, totals.parked_for_keys.number)
    readings.set(FOR_KEYS_OLDEST, totals.parked_for_keys.oldest or 0.0)


SECTION: Final = Section(
    name="concurrency",
    title="Limits, and who is parked",
    metrics=(BLOCKED, BLOCKED_OLDEST, SLOTS, AT_LIMIT, FOR_KEYS, FOR_KEYS_OLDEST),
    read=read,
)
