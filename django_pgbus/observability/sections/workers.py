"""The workers, and which queues they serve."""

from __future__ import annotations

from typing import Final

from django_pgbus.observability.families import Metric, Readings, Section
from django_pgbus.queues import stats as queue_stats
from django_pgbus.worker import stats
from django_pgbus.worker.stats import Health, WorkerStats

HEALTH: Final = ("health",)

WORKERS: Final = Metric(
    "pgbus_workers",
    "Worker processes: beating, deaf (they only poll), draining (they stop), or silent (for a lease; known for an hour).",
    HEALTH,
)
THREADS: Final = Metric("pgbus_worker_threads", "Jobs that the worker processes can run at once.", HEALTH)
BUSY: Final = Metric("pgbus_worker_busy_threads", "Jobs that the worker processes ran when they last beat.", HEALTH)
SUPERSEDED: Final = Metric(
    "pgbus_worker_superseded_runs", "Runs that living workers have not ended although they lost their lease."
)
SILENCE: Final = Metric(
    "pgbus_worker_longest_silence_seconds",
    "How long ago the last beat of the quietest living worker was; 0 without any.",
)
DISPATCHER: Final = Metric(
    "pgbus_dispatcher_elected",
    "Whether a worker is elected that does the sweeps; without one nothing is purged or repaired.",
)
SERVING: Final = Metric("pgbus_queue_workers", "Worker processes that would claim from a queue now.", ("queue",))


def read(readings: Readings) -> None:
    """Read the workers, and the queues that are known."""
    workers = stats.workers()
    for health in Health:
        those = [worker for worker in workers if worker.health is health]
        readings.set(WORKERS, len(those), health.value)
        readings.set(THREADS, sum(worker.capacity for worker in those), health.value)
        readings.set(BUSY, sum(worker.running for worker in those), health.value)
    living = [worker for worker in workers if worker.health is not Health.SILENT]
    readings.set(SUPERSEDED, sum(worker.superseded for worker in living))
    readings.set(SILENCE, max((worker.silent_for for worker in living), default=0.0))
    readings.set(DISPATCHER, any(worker.dispatcher for worker in living))
    alike = _alike(workers)
    for queue in readings.first(queue_stats.names()):
        readings.set(SERVING, sum(number for one, number in alike if one.serves(queue)), queue)


def _alike(workers: list[WorkerStats]) -> list[tuple[WorkerStats, int]]:
    """Return one of those that take jobs of the same queues, and how many they are: most were started alike."""
    found: dict[str, list[WorkerStats]] = {}
    for worker in workers:
        if worker.takes_jobs:
            found.setdefault(worker.queues, []).append(worker)
    return [(those[0], len(those)) for those in found.values()]


SECTION: Final = Section(
    name="workers",
    title="Workers",
    metrics=(WORKERS, THREADS, BUSY, SUPERSEDED, SILENCE, DISPATCHER, SERVING),
    read=read,
)
