"""The queues: what stands in each, and who serves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from django_pgbus.observability.mcp import inputs, words
from django_pgbus.observability.mcp.words import Refused
from django_pgbus.queues import stats
from django_pgbus.queues.stats import Count, QueueStats
from django_pgbus.worker import stats as worker_stats
from django_pgbus.worker.stats import WorkerStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """
    One queue.

    `oldest_ready_seconds` is how long its first ready job has waited; `next_due_seconds` is when the next
    delayed one is due, negative if it is overdue. `workers` would claim from it now.
    """

    name: str
    state: str
    ready: Count
    running: Count
    delayed: Count
    dead_letters: Count
    oldest_ready_seconds: float | None
    next_due_seconds: float | None
    paused_at: datetime | None
    paused_by: str
    workers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Queues by name; `more` says that there are others."""

    queues: list[Queue]
    more: bool


def pgbus_queues(
    text: Annotated[inputs.Text, Field(description="Part of the name; empty: all.")] = "", limit: inputs.Limit = 50
) -> Queues:
    """Tell every queue: how many jobs are ready, running, delayed and dead, how long the first waits, who serves it."""
    found = [queue for queue in stats.queues() if text.lower() in queue.name.lower()]
    workers = worker_stats.workers()
    return Queues(queues=[_queue(queue, workers) for queue in found[:limit]], more=len(found) > limit)


def pgbus_queue(
    name: Annotated[inputs.Text, Field(description="Its name. Queues of events begin with @.", min_length=1)],
) -> Queue:
    """Tell one queue: what stands in it, whether it is paused and by whom, and which workers serve it."""
    found = next((queue for queue in stats.queues() if queue.name == name), None)
    if found is None:
        raise Refused(
            "There is no queue of this name: nothing was ever enqueued there. pgbus_queues lists those there are."
        )
    return _queue(found, worker_stats.workers())


def _queue(queue: QueueStats, workers: Sequence[WorkerStats]) -> Queue:
    serving = worker_stats.serving(queue.name, workers)
    return Queue(
        name=words.name(queue.name),
        state=_state(queue, serving),
        ready=queue.ready,
        running=queue.running,
        delayed=queue.delayed,
        dead_letters=queue.dead,
        oldest_ready_seconds=words.rounded(queue.oldest_ready),
        next_due_seconds=words.rounded(queue.next_due),
        paused_at=words.utc(queue.paused_at),
        paused_by=words.name(queue.paused_by),
        workers=[words.name(worker.name) for worker in serving[: inputs.MOST_ROWS]],
    )


def _state(queue: QueueStats, serving: Sequence[WorkerStats]) -> str:
    if queue.paused:
        return "paused"
    if not serving:
        return "no worker serves it" if queue.ready or queue.delayed else "empty, no worker serves it"
    return "working" if queue.ready or queue.running else "idle"
