"""Read-only numbers of the workers, for people: who beats, who fell silent, who is deaf, who serves a queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final
from uuid import UUID

from django_pgbus.worker import stats_sql
from django_pgbus.worker.plan import Capsule, parse_queues

MOST_WORKERS: Final = 1_000


class Health(StrEnum):
    """How a worker process is, the worst that is true of it."""

    SILENT = "silent"  # no beat for a lease: dead, hanging, or cut off from the database
    DRAINING = "draining"  # was asked to stop; finishes what runs
    DEAF = "deaf"  # works, but only finds new jobs when it polls
    BEATING = "beating"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """One worker process now; `lease` and `silent_for` in seconds."""

    id: UUID
    supervisor: UUID | None
    name: str
    host: str
    pid: int
    version: str
    queues: str
    streams: str
    capacity: int
    running: int
    superseded: int
    state: str
    listening: bool | None
    lease: float
    started_at: datetime
    beat_at: datetime
    silent_for: float
    dispatcher: bool

    @property
    def health(self) -> Health:
        """Return the worst that is true of it."""
        if self.silent_for > self.lease:
            return Health.SILENT
        if self.state in {"draining", "stopping"}:
            return Health.DRAINING
        return Health.DEAF if self.listening is False else Health.BEATING

    @property
    def takes_jobs(self) -> bool:
        """Return whether it claims."""
        return self.health in {Health.BEATING, Health.DEAF}

    def serves(self, queue: str) -> bool:
        """Return whether it was started for this queue."""
        capsules = _capsules(self.queues)
        return capsules is None or any(capsule.serves(queue) for capsule in capsules)


def workers() -> list[WorkerStats]:
    """Return every worker process that is known, by name; one that fell silent is known for an hour."""
    return [WorkerStats(**row._asdict()) for row in stats_sql.WORKERS.rows(most=MOST_WORKERS)]


def serving(queue: str, among: Iterable[WorkerStats]) -> list[WorkerStats]:
    """Return the workers that would claim from a queue now."""
    return [worker for worker in among if worker.takes_jobs and worker.serves(queue)]


@lru_cache(maxsize=256)
def _capsules(queues: str) -> tuple[Capsule, ...] | None:
    if not queues:  # it follows streams only
        return ()
    try:
        return parse_queues(queues, threads=1)
    except ValueError:  # written by another version: better no warning than a wrong one
        return None
