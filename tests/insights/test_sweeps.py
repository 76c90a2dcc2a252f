"""Rows become fewer, and nothing of what they say is lost or counted twice."""

from __future__ import annotations

import random

import pytest

from django_pgbus.insights import sweeps
from django_pgbus.insights.recording import Verdict
from django_pgbus.insights.stats import totals
from django_pgbus.models import RunCount
from tests.insights.rows import NUMBERS, a_row, in_spans, in_totals, rows, write
from tests.sessions import execute

pytestmark = pytest.mark.django_db

SUMS = [sweeps.sum_written, sweeps.sum_minutes, sweeps.sum_ten_minutes]
FROM = {sweeps.sum_written: "raw", sweeps.sum_minutes: "minute", sweeps.sum_ten_minutes: "ten_minutes"}
TO = {sweeps.sum_written: "minute", sweeps.sum_minutes: "ten_minutes", sweeps.sum_ten_minutes: "hour"}
SPANS = {"minute": 60, "ten_minutes": 600, "hour": 3600}


def scattered(resolution, number=200, seed=1, days=9):
    """Write rows of five pairs over many days."""
    rng = random.Random(seed)
    for _ in range(number):
        a_row(
            f"{rng.uniform(0, days * 86_400)} seconds",
            resolution,
            task=rng.choice(["a", "b"]),
            queue=rng.choice(["default", "mail"]),
            event=rng.random() < 0.1,
            run=rng.choice([0.001, 0.3, 8, 4000]),
            wait=rng.choice([0.001, 0.3, 8, 4000]),
            number=rng.randrange(1, 9),
            **{name: rng.randrange(5) for name in NUMBERS},
        )


@pytest.mark.parametrize("sweep", SUMS, ids=lambda sweep: sweep.__name__)
@pytest.mark.parametrize("limit", [7, sweeps.BATCH])
def test_the_sums_are_the_same_before_and_after(sweep, limit, monkeypatch):
    monkeypatch.setattr(sweeps, "BATCH", limit)
    scattered(FROM[sweep])
    spans, all_time = in_spans(), in_totals()
    while (number := sweep()) == limit:
        assert (in_spans(), in_totals()) == (spans, all_time if sweep is sweeps.sum_written else in_totals())
    assert number < limit
    assert in_spans() == spans
    if sweep is sweeps.sum_written:
        assert in_totals() == all_time
    assert rows(TO[sweep])


@pytest.mark.parametrize("sweep", SUMS, ids=lambda sweep: sweep.__name__)
def test_a_row_begins_with_its_span_and_holds_what_ran_in_it(sweep):
    scattered(FROM[sweep])
    spans = execute(
        "SELECT bucket, floor(extract(epoch FROM bucket)), sum(succeeded) FROM pgbus_run_counts"
        " WHERE resolution = %s GROUP BY bucket",
        [FROM[sweep]],
    )
    sweep()
    length = SPANS[TO[sweep]]
    expected = {}
    left = set(execute("SELECT bucket FROM pgbus_run_counts WHERE resolution = %s", [FROM[sweep]]))
    for at, seconds, succeeded in spans:
        if (at,) not in left:
            begin = int(seconds) // length * length
            expected[begin] = expected.get(begin, 0) + succeeded
    found = execute(
        "SELECT extract(epoch FROM bucket)::int, sum(succeeded) FROM pgbus_run_counts WHERE resolution = %s GROUP BY 1",
        [TO[sweep]],
    )
    assert dict(found) == expected


def test_one_row_of_each_span_and_pair_is_left():
    scattered("raw", days=1)
    sweeps.sum_written()
    (most,) = execute(
        "SELECT max(number) FROM (SELECT count(*) AS number FROM pgbus_run_counts WHERE resolution IN ('minute', 'total')"
        " GROUP BY resolution, queue, task, event, CASE resolution WHEN 'minute' THEN bucket END) AS kind"
    )
    assert most == (1,)


@pytest.mark.parametrize(
    ("sweep", "younger", "older"),
    [
        (sweeps.sum_written, "0 seconds", "1 minute"),
        (sweeps.sum_minutes, "2 hours", "2 hours 11 minutes"),
        (sweeps.sum_ten_minutes, "26 hours", "27 hours 1 minute"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_only_spans_that_are_over_for_long_enough(sweep, younger, older):
    a_row(younger, FROM[sweep])
    assert (sweep(), rows(FROM[sweep])) == (0, 1)
    a_row(older, FROM[sweep])
    assert (sweep(), rows(FROM[sweep]), rows(TO[sweep])) == (1, 1, 1)


@pytest.mark.parametrize(
    ("sweep", "resolution", "younger", "older"),
    [
        (sweeps.purge_hours, "hour", "191 hours", "193 hours"),
        (sweeps.purge_totals, "total", "365 days", "367 days"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_is_old_is_forgotten_and_nothing_else(sweep, resolution, younger, older, monkeypatch):
    monkeypatch.setattr(sweeps, "BATCH", 2)
    for one in ("raw", "minute", "ten_minutes", "hour", "total"):
        a_row(younger, one)
        if one != resolution:
            a_row(older, one)
    for _ in range(3):
        a_row(older, resolution)
    assert [sweep(), sweep(), sweep()] == [2, 1, 0]
    assert RunCount.objects.count() == 9
    assert rows(resolution) == 1


def test_totals_are_one_row_for_each_pair_and_say_when_it_was_last_counted():
    for ago in ("3 hours", "2 hours", "1 hour"):
        a_row(ago)
    assert sweeps.sum_written() == 3
    a_row("30 minutes")
    (last,) = RunCount.objects.filter(resolution="raw").values_list("bucket", flat=True)
    assert sweeps.sum_written() == 1
    total = RunCount.objects.get(resolution="total")
    assert (total.succeeded, total.bucket) == (4, last)


def test_totals_of_others_are_left_alone():
    a_row("1 hour", "total", task="other")
    (before,) = RunCount.objects.values_list("pk", flat=True)
    a_row("1 hour")
    sweeps.sum_written()
    assert RunCount.objects.filter(pk=before, task="other").exists()
    assert rows("total") == 2


def test_whatever_runs_in_between_totals_never_go_down():
    """A scrape of the metrics reads them at any time: a number that goes down is a restart to who reads it."""
    rng, expected, last = random.Random(3), 0, {}
    for _ in range(150):
        match rng.randrange(4):
            case 0:
                expected += write("a", "b")
            case 1:
                expected += write("a", verdict=Verdict.FAILED, ran_for=3.0)
            case 2:
                # Time goes by.
                execute(
                    "UPDATE pgbus_run_counts SET bucket = bucket - %s::interval WHERE resolution <> 'total'",
                    [rng.choice(["1 minute", "3 hours", "2 days"])],
                )
            case _:
                rng.choice([*SUMS, sweeps.purge_hours, sweeps.purge_totals])()
        now = {(runs.task, runs.queue): runs for runs in totals()}
        for pair, before in last.items():
            for name in (*NUMBERS, "longest", "run", "wait"):
                assert getattr(now[pair], name) >= getattr(before, name), name
            assert now[pair].run_seconds >= before.run_seconds - 1e-6
        assert sum(runs.number for runs in now.values()) == expected
        last = now
    assert expected > 20
