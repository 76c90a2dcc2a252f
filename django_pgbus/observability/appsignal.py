"""
The numbers for AppSignal, once a minute; needs the extra `appsignal`.

Call `register()` in every process that runs AppSignal. The numbers are those of the whole database, so one of these
processes is elected to send them: counters sent by two would be counted twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from django.db import connections, transaction

from django_pgbus.conf import database
from django_pgbus.observability.families import Family, Kind, Metric
from django_pgbus.observability.metrics import scrape
from django_pgbus.observability.sections import database as tables
from django_pgbus.observability.sections import queues, workers
from django_pgbus.worker import sql
from django_pgbus.worker.stats import Health

NAME: Final = "pgbus"  # of the probe, and of the office
TERM: Final = "150 seconds"  # AppSignal asks each minute: whoever misses two is followed by another
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
    """What a process remembers from one minute to the next: who it is, and what it has sent while it is elected."""

    id: uuid.UUID = field(default_factory=uuid.uuid4)
    counted: Counted | None = None


def register() -> None:
    """Let AppSignal ask this process for the numbers each minute."""
    from appsignal import probes

    probes.register(NAME, probe)


def probe(state: State | None) -> State:
    """Send the numbers if this process is elected to; AppSignal keeps what is returned for the next minute."""
    state = state or State()
    try:
        if _elected(state.id):
            return replace(state, counted=_send(scrape(), state.counted))
        return replace(state, counted=None)
    finally:
        connections[database()].close()  # in a thread of AppSignal's, which nobody tidies


def _elected(id: uuid.UUID) -> bool:
    with transaction.atomic(using=database()):
        return sql.RUN_FOR_OFFICE.row(office=NAME, worker=id, term=TERM) is not None


def _send(families: Sequence[Family], before: Counted | None) -> Counted:
    """Send the gauges, and by how much the counters rose; return how far they are."""
    from appsignal import increment_counter, set_gauge

    of_kind = {kind: {one.metric: one.numbers() for one in families if one.metric.kind is kind} for kind in Kind}
    gauges = of_kind[Kind.GAUGE]
    for metric, samples in gauges.items():
        for labels, value in samples:
            set_gauge(metric.name, value, _tags(metric, labels))
    for name, value, tags in (*_of_queues(gauges), *_sums(gauges)):
        set_gauge(name, value, tags)
    counted = {(metric, labels): value for metric, found in of_kind[Kind.COUNTER].items() for labels, value in found}
    for (metric, labels), value in counted.items():
        rise = value - (before or {}).get((metric, labels), 0)
        if before is not None and rise > 0:  # what was counted before somebody looked is nobody's minute
            increment_counter(metric.name.removesuffix("_total"), rise, _tags(metric, labels))
    return {**(before or {}), **counted}  # what could not be read now is sent with the next


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
