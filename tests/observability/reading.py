"""A scrape, as tests ask it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django_pgbus.observability.families import Family, Histogram
from django_pgbus.observability.metrics import scrape

METRICS = "/pgbus/api/metrics"
TOKEN = "s3cret of the monitor"


class Scraped:
    """Families by name, and samples by their labels."""

    def __init__(self, families: Iterable[Family] | None = None) -> None:
        self.families = {one.metric.name: one for one in (scrape() if families is None else families)}

    def __contains__(self, name: str) -> bool:
        return name in self.families

    def of(self, name: str) -> dict[tuple[str, ...], Any]:
        """Return {labels: value} of a metric."""
        found = {sample.labels: sample.value for sample in self.families[name].samples}
        assert len(found) == len(self.families[name].samples), "two samples with the same labels"
        return found

    def value(self, name: str, *labels: str) -> Any:
        found = self.of(name)[labels]
        return found if isinstance(found, Histogram) else float(found)

    def up(self) -> dict[str, float]:
        return {labels[0]: value for labels, value in self.of("pgbus_scrape_section_up").items()}
