"""Every sweep of the dispatcher: name, interval in seconds, function; a full batch is followed by the next at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from django_pgbus.batches import sweeps as batches
from django_pgbus.idempotency import sweeps as idempotency
from django_pgbus.insights import sweeps as insights
from django_pgbus.queues import sweeps
from django_pgbus.streams import sweeps as streams
from django_pgbus.tasks import sweeps as tasks
from django_pgbus.worker import sql


class Sweep(NamedTuple):
    """One sweep; `batch` is how many it does at most, 0 for one that needs no second round."""

    name: str
    interval: float
    function: Callable[[], int]
    batch: int = 0


def forget_silent_workers() -> int:
    """Forget workers silent for an hour and return how many. Locks: workers (skipping)."""
    return sql.FORGET_SILENT.count(limit=sweeps.BATCH)


SWEEPS: Final = (
    Sweep("find levels", 60, sweeps.find_levels),
    Sweep("let go on what waits", 5, tasks.GoOn().sweep, tasks.BATCH),
    Sweep("finish batches", 5, tasks.BatchEnder().sweep),
    Sweep("free slots of jobs that are nowhere", 60, tasks.SlotReaper().reap),
    Sweep("free keys of jobs that are nowhere", 60, tasks.KeyReaper().reap),
    Sweep("free keys of batches that are nowhere", 60, tasks.free_batch_keys, tasks.KEYS),
    Sweep("forget unused semaphores", 300, tasks.SemaphoreForgetter().forget),
    Sweep("forget unused levels", 3600, sweeps.forget_levels, sweeps.BATCH),
    Sweep("purge archive", 60, sweeps.purge_archive, sweeps.BATCH),
    Sweep("purge batches", 60, batches.purge_batches, batches.BATCH),
    Sweep("purge counts of batches that are nowhere", 300, batches.purge_counts, batches.BATCH),
    Sweep("purge claims of events", 60, idempotency.purge_claims, idempotency.BATCH),
    Sweep("purge claims whose jobs are nowhere", 300, idempotency.purge_deserted, idempotency.BATCH),
    Sweep("sum counts of events", 60, idempotency.sum_counts, idempotency.ROWS),
    Sweep("purge counts of events", 300, idempotency.purge_counts, idempotency.BATCH),
    Sweep("sum counts of runs", 60, insights.sum_written, insights.BATCH),
    Sweep("sum minutes of runs", 300, insights.sum_minutes, insights.BATCH),
    Sweep("sum ten minutes of runs", 300, insights.sum_ten_minutes, insights.BATCH),
    Sweep("purge hours of runs", 300, insights.purge_hours, insights.BATCH),
    Sweep("purge totals of runs", 3600, insights.purge_totals, insights.BATCH),
    Sweep("make partitions ahead", 10, streams.make_partitions_ahead),
    Sweep("write how far groups are", 60, streams.roll_forward),
    Sweep("purge failed entries", 300, streams.purge_dead, streams.BATCH),
    Sweep("drop old partitions", 60, streams.drop_old_partitions),
    Sweep("trim short logs", 60, streams.trim_tail, streams.BATCH),
    Sweep("purge dead letters", 300, sweeps.purge_dead_letters, sweeps.BATCH),
    Sweep("forget silent workers", 300, forget_silent_workers, sweeps.BATCH),
)
