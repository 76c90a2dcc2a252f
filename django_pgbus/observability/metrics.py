"""
The numbers for monitors, as plain families.

What they mean stands with them, in `sections/`; Prometheus, AppSignal and the tests read the same. A section that cannot be
read leaves out its own families and says so: the others stand, and so does the scrape.
"""

from __future__ import annotations

import time
from typing import Final

from django_pgbus import __version__, signals
from django_pgbus.observability.families import Family, Metric, Readings, Section
from django_pgbus.observability.look import Look, look
from django_pgbus.observability.sections import SECTIONS

BUILD_INFO: Final = Metric("pgbus_build_info", "Always 1; the version of django-pgbus that answers.", ("version",))
SECTION_UP: Final = Metric(
    "pgbus_scrape_section_up",
    "Whether a section of this scrape could be read; if not its metrics are left out.",
    ("section",),
)
SECTION_SECONDS: Final = Metric(
    "pgbus_scrape_section_seconds", "How long it took to read a section of this scrape.", ("section",)
)
LEFT_OUT: Final = Metric(
    "pgbus_series_left_out",
    "Queues, streams, groups or tasks (at least so many) that got no series: each section stops at 500.",
    ("section",),
)
LOWER_BOUNDS: Final = Metric(
    "pgbus_scrape_lower_bounds",
    "How many samples of a metric are lower bounds: their counting stopped, there are at least so many.",
    ("metric",),
)
OF_THE_SCRAPE: Final = (BUILD_INFO, SECTION_UP, SECTION_SECONDS, LEFT_OUT, LOWER_BOUNDS)


def scrape() -> list[Family]:
    """Return all families; never raises for the sake of a database that is away or slow."""
    about = Readings(OF_THE_SCRAPE)
    about.set(BUILD_INFO, 1, __version__)
    read: dict[str, list[Family]] = {}
    try:
        with look() as found:
            for section in SECTIONS:
                read[section.name] = _read(section, found, about)
    except Exception as error:  # it could not even begin, or its connection is gone: what was read before stands
        signals.scrape_failed.send_robust(scrape, section="", exception=error)
    for section in SECTIONS[len(read) :]:
        about.set(SECTION_UP, 0, section.name)
    return [*about.families(), *(family for families in read.values() for family in families)]


def declared() -> list[Family]:
    """Return all families without samples; asks nothing."""
    return [
        Family(metric) for metric in (*OF_THE_SCRAPE, *(metric for section in SECTIONS for metric in section.metrics))
    ]


def _read(section: Section, found: Look, about: Readings) -> list[Family]:
    began = time.perf_counter()
    readings = Readings(section.metrics)
    try:
        with found.part():
            section.read(readings)
    except Exception as error:
        signals.scrape_failed.send_robust(scrape, section=section.name, exception=error)
        about.set(SECTION_UP, 0, section.name)
        return []
    about.set(SECTION_UP, 1, section.name)
    about.set(SECTION_SECONDS, time.perf_counter() - began, section.name)
    about.set(LEFT_OUT, readings.left_out, section.name)
    for name, number in readings.lower_bounds.items():
        about.set(LOWER_BOUNDS, number, name)
    return readings.families()
