"""The uniqueness keys; they are data of users, and never a label."""

from __future__ import annotations

from typing import Final

from django_pgbus.observability.families import Metric, Readings, Section
from django_pgbus.uniqueness import stats

HELD: Final = Metric("pgbus_uniqueness_keys_held", "Uniqueness keys that are held.", bounded=True)


def read(readings: Readings) -> None:
    """Read how many keys are held."""
    readings.set(HELD, stats.total(stats.REACH))


SECTION: Final = Section(name="uniqueness", title="Uniqueness", metrics=(HELD,), read=read)
