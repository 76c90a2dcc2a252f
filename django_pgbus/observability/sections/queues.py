"""The queues."""

from __future__ import annotations

from typing import Final

from django_pgbus.observability.families import Metric, Readings, Section
from django_pgbus.queues import stats
from django_pgbus.queues.stats import Count, Delays

QUEUE: Final = ("queue",)

DEPTH: Final = Metric(
    "pgbus_queue_depth",
    "Jobs of a queue that are ready, running or delayed; parked ones are counted with the limits.",
    QUEUE,
    bounded=True,
)
READY: Final = Metric("pgbus_queue_ready", "Jobs of a queue that a worker may claim now.", QUEUE, bounded=True)
RUNNING: Final = Metric("pgbus_queue_running", "Jobs of a queue that are leased to a worker.", QUEUE, bounded=True)
DELAYED: Final = Metric("pgbus_queue_delayed", "Jobs of a queue that wait for their time.", QUEUE, bounded=True)
RETRYING: Final = Metric(
    "pgbus_queue_retrying", "Delayed jobs of a queue that failed and wait for their next attempt.", QUEUE, bounded=True
)
DUE: Final = Metric(
    "pgbus_queue_due",
    "Delayed jobs of a queue whose time has come; workers move them within a second.",
    QUEUE,
    bounded=True,
)
DEAD: Final = Metric("pgbus_queue_dead_letters", "Dead letters of a queue.", QUEUE, bounded=True)
OLDEST_READY: Final = Metric(
    "pgbus_queue_oldest_claimable_age_seconds",
    "How long the oldest ready job of a queue has been ready; 0 if there is none. One that was delayed counts from then on.",
    QUEUE,
)
OLDEST_DUE: Final = Metric(
    "pgbus_queue_oldest_due_age_seconds",
    "How long the first delayed job of a queue is due and not moved; 0 if none is.",
    QUEUE,
)
PAUSED: Final = Metric("pgbus_queue_paused", "Whether nothing is claimed from a queue.", QUEUE)

NONE: Final = Delays(due=Count(0), retrying=Count(0))


def read(readings: Readings) -> None:
    """Read the queues, in the order of their names."""
    listed = stats.queues()
    delays = stats.delays()
    for queue in readings.first(listed):
        of_queue = delays.get(queue.name, NONE)
        readings.set(DEPTH, queue.ready + queue.running + queue.delayed, queue.name)
        readings.set(READY, queue.ready, queue.name)
        readings.set(RUNNING, queue.running, queue.name)
        readings.set(DELAYED, queue.delayed, queue.name)
        readings.set(RETRYING, of_queue.retrying, queue.name)
        readings.set(DUE, of_queue.due, queue.name)
        readings.set(DEAD, queue.dead, queue.name)
        readings.set(OLDEST_READY, queue.oldest_ready or 0.0, queue.name)
        readings.set(OLDEST_DUE, max(0.0, -(queue.next_due or 0.0)), queue.name)
        readings.set(PAUSED, queue.paused, queue.name)


SECTION: Final = Section(
    name="queues",
    title="Queues",
    metrics=(DEPTH, READY, RUNNING, DELAYED, RETRYING, DUE, DEAD, OLDEST_READY, OLDEST_DUE, PAUSED),
    read=read,
)
