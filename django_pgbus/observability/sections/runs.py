"""What ran, since the beginning: counted by the workers, read from the database, so that one scrape sees all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from django_pgbus.insights import stats
from django_pgbus.insights.stats import BOUNDS, Runs
from django_pgbus.observability import families
from django_pgbus.observability.families import Histogram, Kind, Metric, Readings, Section

TASK: Final = ("task", "queue")
OUTCOMES: Final = ("succeeded", "failed", "dead", "snoozed", "superseded", "handed_back")

RUNS: Final = Metric(
    "pgbus_runs_total",
    "Runs of a task, or of a handler of events, by what they came to: succeeded, failed (tried again), dead (the last "
    "attempt), snoozed, superseded (lost its lease), handed_back (the process stopped).",
    (*TASK, "outcome"),
    Kind.COUNTER,
)
RUN_SECONDS: Final = Metric("pgbus_run_seconds", "How long runs took that came to something.", TASK, Kind.HISTOGRAM)
WAIT_SECONDS: Final = Metric(
    "pgbus_wait_seconds", "How long jobs stood in the line before these runs began.", TASK, Kind.HISTOGRAM
)


def read(readings: Readings) -> None:
    """Read the busiest tasks."""
    for alike in readings.first(_by_labels(stats.totals(2 * families.MOST_SERIES))):
        task, queue = alike[0].task, alike[0].queue
        for outcome in OUTCOMES:
            readings.set(RUNS, sum(getattr(runs, outcome) for runs in alike), task, queue, outcome)
        readings.set(
            RUN_SECONDS, _histogram((runs.run for runs in alike), sum(runs.run_seconds for runs in alike)), task, queue
        )
        readings.set(
            WAIT_SECONDS,
            _histogram((runs.wait for runs in alike), sum(runs.wait_seconds for runs in alike)),
            task,
            queue,
        )


def _by_labels(found: Iterable[Runs]) -> list[list[Runs]]:
    """Return together what has the same labels: two samples of the same would spoil the whole scrape."""
    alike: dict[tuple[str, str], list[Runs]] = {}
    for runs in found:
        alike.setdefault((runs.task, runs.queue), []).append(runs)
    return list(alike.values())


def _histogram(counts: Iterable[Sequence[int]], seconds: float) -> Histogram:
    # Floats that a sweep adds up in another order may come out lower in their last digits: that would look as if counting
    # had begun again.
    return Histogram(BOUNDS, [sum(bucket) for bucket in zip(*counts, strict=True)], round(seconds, 3))


SECTION: Final = Section(name="runs", title="Runs", metrics=(RUNS, RUN_SECONDS, WAIT_SECONDS), read=read)
