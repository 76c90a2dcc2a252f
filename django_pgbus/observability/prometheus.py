"""
The numbers for Prometheus; needs the extra `prometheus`.

`exposition()` is what our own address answers. A project with an address of its own registers a collector there:
`registry.register(PgbusCollector())`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from django_pgbus.observability.families import Family, Histogram, Kind
from django_pgbus.observability.metrics import declared, scrape

UNITS = ("seconds", "bytes")


class PgbusCollector(Collector):
    """Reads the numbers when it is asked, all from the database: one process of many is enough to scrape."""

    def describe(self) -> Iterator[Exposed]:
        """Yield what there is, without asking the database: registering must not."""
        yield from map(_exposed, declared())

    def collect(self) -> Iterator[Exposed]:
        """Yield the numbers of now."""
        yield from map(_exposed, scrape())


def exposition(accept: str) -> tuple[bytes, str]:
    """Return the numbers in the format that an Accept header asks for, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PgbusCollector())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _exposed(family: Family) -> Exposed:
    metric = family.metric
    unit = next((unit for unit in UNITS if metric.name.endswith(f"_{unit}")), "")
    match metric.kind:
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=unit)
            for labels, found in family.histograms():
                histogram.add_metric(labels, _buckets(found), found.sum)
            return histogram
        case Kind.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in family.numbers():
                counter.add_metric(labels, value)
            return counter
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels, unit=unit)
            for labels, value in family.numbers():
                gauge.add_metric(labels, value)
            return gauge


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return them as Prometheus counts: each with all below it."""
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
