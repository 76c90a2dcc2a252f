"""The worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django_pgbus.observability.mcp import inputs, words
from django_pgbus.worker import stats
from django_pgbus.worker.stats import Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """
    One worker process: `health` is `beating`, `deaf` (works, but hears no notifications), `draining` or `silent`.

    `running` jobs of `threads`; `superseded` runs lost their lease since it started. `last_beat_seconds` is how long ago
    it was heard of, `lease_seconds` after how long of silence it counts as dead.
    """

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    health: Health
    takes_jobs: bool
    dispatcher: bool
    queues: str
    streams: str
    running: int
    threads: int
    superseded: int
    started_at: datetime
    last_beat_seconds: float
    lease_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Worker processes by name; `more` says that there are others."""

    workers: list[Worker]
    more: bool


def pgbus_workers(limit: inputs.Limit = 50) -> Workers:
    """Tell every worker process of the last hour: whether it beats, what it serves and follows, how busy it is."""
    found = stats.workers()
    return Workers(
        workers=[
            Worker(
                id=one.id,
                name=words.name(one.name),
                host=words.name(one.host),
                pid=one.pid,
                version=one.version,
                health=one.health,
                takes_jobs=one.takes_jobs,
                dispatcher=one.dispatcher,
                queues=words.name(one.queues),
                streams=words.name(one.streams),
                running=one.running,
                threads=one.capacity,
                superseded=one.superseded,
                started_at=words.known_utc(one.started_at),
                last_beat_seconds=round(one.silent_for, 3),
                lease_seconds=one.lease,
            )
            for one in found[:limit]
        ],
        more=len(found) > limit,
    )
