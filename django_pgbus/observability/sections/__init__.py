"""The sections of a scrape, one for each component that has numbers."""

from __future__ import annotations

from typing import Final

from django_pgbus.observability.families import Section
from django_pgbus.observability.sections import (
    batches,
    concurrency,
    database,
    events,
    idempotency,
    queues,
    runs,
    streams,
    uniqueness,
    workers,
)

SECTIONS: Final[tuple[Section, ...]] = (
    queues.SECTION,
    concurrency.SECTION,
    uniqueness.SECTION,
    events.SECTION,
    idempotency.SECTION,
    streams.SECTION,
    batches.SECTION,
    runs.SECTION,
    workers.SECTION,
    database.SECTION,
)
