"""
The numbers for AppSignal, once a minute; needs the extra `appsignal`.

Call `register()` in every process that runs AppSignal. The numbers are those of the whole database, so one of these
processes is elected to send them: counters sent by two would be counted twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from django.db import connections, transaction

from django_pgbus.conf import database
from django_pgbus.observability.families import Family, Kind, Metric
from django_pgbus.observability.metrics import LEFT_OUT, scrape
from django_pgbus.observability.sections import database as tables
from django_pgbus.observability.sections import queues, workers
from django_pgbus.observability.sections.runs import RUNS
from django_pgbus.worker import sql
from django_pgbus.worker.stats import Health

NAME: Final = "pgbus"  # of the probe, and of the office
TERM: Final = "150 seconds"  # AppSignal asks each minute: whoever misses two is followed by another
FINISHED: Final = {"succeeded", "failed", "dead"}
WORKING: Final = {Health.BEATING.value, Health.DEAF.value}

SUMS: Final = {
    "pgbus_total_depth": queues.DEPTH,
    "pgbus_total_visible": queues.READY,
    "pgbus_dlq_depth": queues.DEAD,
    "pgbus_total_dead_tuples": tables.DEAD,
}

Tags = dict[str, str | int | float | bool]
Gauge = tuple[str, float, Tags]
Values = Sequence[tuple[tuple[str, ...], float]]
Gauges = Mapping[Metric, Values]
Counted = Mapping[tuple[Metric, tuple[str, ...]], float]


@dataclass(frozen=True, slots=True)
class State:
    """What a process remembers from one minute to the next: who it is; while it is elected, what it has sent, and when."""

    id: uuid.UUID = field(default_factory=uuid.uuid4)
    counted: Counted | None = None
    at: float = 0.0


def register() -> None:
    """Let AppSignal ask this process for the numbers each minute."""
    from appsignal import probes

    probes.register(NAME, probe)


def probe(state: State | None) -> State:
    """Send the numbers if this process is elected to; AppSignal keeps what is returned for the next minute."""
    state = state or State()
    try:
        return _send(scrape(), state) if _elected(state.id) else State(state.id)
    finally:
        connections[database()].close()  # in a thread of AppSignal's, which nobody tidies


def _elected(id: uuid.UUID) -> bool:
    with transaction.atomic(using=database()):
        return sql.RUN_FOR_OFFICE.row(office=NAME, worker=id, term=TERM) is not None


def _send(families: Sequence[Family], state: State) -> State:
    """Send the gauges, and by how much the counters rose; return how far they are."""
    from appsignal import increment_counter, set_gauge

    now, before = time.monotonic(), state.counted
    of_kind = {kind: {one.metric: one.numbers() for one in families if one.metric.kind is kind} for kind in Kind}
    gauges = of_kind[Kind.GAUGE]
    counted = {(metric, labels): value for metric, found in of_kind[Kind.COUNTER].items() for labels, value in found}
    rises = _rises(counted, before, all_are_seen=not any(value for _, value in gauges[LEFT_OUT])) if before else {}
    for metric, samples in gauges.items():
        for labels, value in samples:
            set_gauge(metric.name, value, _tags(metric, labels))
    for name, value, tags in (*_of_queues(gauges), *_sums(gauges)):
        set_gauge(name, value, tags)
    for (metric, labels), rise in rises.items():
        increment_counter(metric.name.removesuffix("_total"), rise, _tags(metric, labels))
    if before:
        finished = sum(rise for (metric, labels), rise in rises.items() if metric == RUNS and labels[-1] in FINISHED)
        set_gauge("pgbus_throughput_rate", finished / max(1.0, now - state.at), {})
    return State(state.id, {**(before or {}), **counted}, now)  # what could not be read now is sent with the next


def _rises(counted: Counted, before: Counted, *, all_are_seen: bool) -> Counted:
    """Return by how much counters rose. One that is new began at 0, unless it may have been left out before."""
    metrics = {metric for metric, _ in before} if all_are_seen else set()
    rises = {key: value - before.get(key, 0) for key, value in counted.items() if key in before or key[0] in metrics}
    return {key: rise for key, rise in rises.items() if rise > 0}


# --- what dashboards made for the Ruby gem ask for by other names -----------------------------------------


def _of_queues(gauges: Gauges) -> Iterator[Gauge]:
    for labels, value in gauges.get(queues.READY, ()):
        yield "pgbus_queue_visible_depth", value, _tags(queues.READY, labels)
    for labels, value in gauges.get(queues.OLDEST_READY, ()):
        yield "pgbus_queue_latency", value * 1000, _tags(queues.OLDEST_READY, labels)


def _sums(gauges: Gauges) -> Iterator[Gauge]:
    """Yield sums over what could be read: a section that could not is not nothing."""
    if queues.DEPTH in gauges:
        yield "pgbus_total_queues", len(gauges[queues.DEPTH]), {}
    for name, metric in SUMS.items():
        if metric in gauges:
            yield name, sum(value for _, value in gauges[metric]), {}
    if workers.WORKERS in gauges:
        working = sum(value for labels, value in gauges[workers.WORKERS] if labels[0] in WORKING)
        yield "pgbus_active_processes", working, {}


def _tags(metric: Metric, labels: tuple[str, ...]) -> Tags:
    return {**dict(zip(metric.labels, labels, strict=True))}
