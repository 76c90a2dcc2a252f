"""What a scrape is made of: metrics that are declared, and families of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, TypeVar

from django_pgbus.queues.stats import Count

T = TypeVar("T")

MOST_SERIES: Final = 500  # queues, groups or tasks that get series of their own


class Kind(StrEnum):
    """How a metric behaves."""

    GAUGE = "gauge"  # goes up and down
    COUNTER = "counter"  # only rises
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that is declared; the samples of a `bounded` one may stop at a bound (`queues.stats.Count`)."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Kind = Kind.GAUGE
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many fell into each bucket (not cumulative; the last is beyond all bounds), and their sum."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One value; `labels` stand in the order of the metric's."""

    labels: tuple[str, ...]
    value: float | Histogram


@dataclass(frozen=True, slots=True)
class Family:
    """A metric and its samples."""

    metric: Metric
    samples: Sequence[Sample] = ()

    def numbers(self) -> list[tuple[tuple[str, ...], float]]:
        """Return (labels, value) of the samples that are single numbers."""
        return [(one.labels, float(one.value)) for one in self.samples if not isinstance(one.value, Histogram)]

    def histograms(self) -> list[tuple[tuple[str, ...], Histogram]]:
        """Return (labels, histogram) of the others."""
        return [(one.labels, one.value) for one in self.samples if isinstance(one.value, Histogram)]


class Readings:
    """What one section has read."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._samples: dict[Metric, list[Sample]] = {metric: [] for metric in metrics}
        self.left_out = 0
        self.lower_bounds = {metric.name: 0 for metric in self._samples if metric.bounded}

    def set(self, metric: Metric, value: float | Count | Histogram, *labels: str) -> None:
        """Add a sample of a metric of this section."""
        if isinstance(value, Count):
            self.lower_bounds[metric.name] += value.more
            value = value.number
        self._samples[metric].append(Sample(labels, value))

    def first(self, found: Iterable[T]) -> list[T]:
        """Return as many as get series of their own, and count the others."""
        rest = iter(found)
        shown = list(islice(rest, MOST_SERIES))
        self.left_out += sum(1 for _ in rest)
        return shown

    def families(self) -> list[Family]:
        """Return them by metric, as declared."""
        return [Family(metric, samples) for metric, samples in self._samples.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Metrics that are read together, and fail together."""

    name: str
    title: str
    metrics: tuple[Metric, ...]
    read: Callable[[Readings], None]
