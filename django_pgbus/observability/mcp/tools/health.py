"""Whether everything works."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django_pgbus.observability.mcp import words
from django_pgbus.queues.stats import Count
from django_pgbus.worker.stats import Health as WorkerHealth
from django_pgbus.worker.verdict import Status, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The verdict, why it is not OK, and the numbers it was made of; what could not be looked at is null."""

    status: Status
    reasons: list[str]
    checked_at: datetime
    queues: int | None
    ready: Count | None
    running: Count | None
    delayed: Count | None
    parked: Count | None
    dead_letters: Count | None
    oldest_ready_seconds: float | None
    paused_queues: list[str] | None
    workers: int | None
    silent_workers: int | None
    oldest_transaction_seconds: float | None


def pgbus_health() -> Health:
    """
    Say whether everything works: OK, DEGRADED or STALLED, with the reasons in words.

    STALLED: work waits and nobody can be expected to do it. DEGRADED: it is done, but something needs a person.
    """
    found = verdict()
    totals, workers = found.totals, found.workers
    return Health(
        status=found.status,
        reasons=[words.text_of(reason) for reason in found.reasons],
        checked_at=datetime.now(UTC),
        queues=None if found.queues is None else len(found.queues),
        ready=totals.ready if totals else None,
        running=totals.running if totals else None,
        delayed=totals.delayed if totals else None,
        parked=found.parked,
        dead_letters=totals.dead if totals else None,
        oldest_ready_seconds=words.rounded(totals.oldest_ready) if totals else None,
        paused_queues=[words.name(name) for name in totals.paused] if totals else None,
        workers=None if workers is None else sum(worker.takes_jobs for worker in workers),
        silent_workers=None if workers is None else sum(worker.health is WorkerHealth.SILENT for worker in workers),
        oldest_transaction_seconds=words.rounded(found.oldest_transaction),
    )
