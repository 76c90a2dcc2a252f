"""What a process adds up, and the rows it writes."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgbus.insights.histogram import BUCKETS, bucket
from django_pgbus.insights.recording import MOST, Tally, Verdict
from django_pgbus.models import RunCount
from tests.insights.rows import NUMBERS, a_delivery

pytestmark = pytest.mark.django_db


def written(*added):
    """Return the rows that these (delivery, verdict, seconds) are written as, by task."""
    tally = Tally()
    for one in added:
        tally.add(*one)
    tally.write()
    return {row.task: row for row in RunCount.objects.all()}


def test_each_verdict_has_its_column():
    rows = written(*((a_delivery(verdict.name), verdict, 0.1) for verdict in Verdict))
    assert len(rows) == len(NUMBERS)
    for verdict in Verdict:
        assert {name: getattr(rows[verdict.name], name) for name in NUMBERS} == {
            **dict.fromkeys(NUMBERS, 0),
            verdict.name.lower(): 1,
        }


def test_durations_are_counted_and_added_up():
    row = written(
        (a_delivery(waited=1.0), Verdict.SUCCEEDED, 0.003),
        (a_delivery(waited=2.0), Verdict.FAILED, 0.2),
        (a_delivery(waited=4000.0), Verdict.DEAD, 7.0),
        (a_delivery(waited=0.0), Verdict.SNOOZED, 0.2),
    )["t"]
    assert (row.run_seconds, row.wait_seconds, row.longest) == pytest.approx((7.403, 4003.0, 7.0))
    assert {n: number for n, number in enumerate(row.run) if number} == {0: 1, bucket(0.2): 2, bucket(7): 1}
    assert {n: number for n, number in enumerate(row.wait) if number} == {
        0: 1,
        bucket(1): 1,
        bucket(2): 1,
        BUCKETS - 1: 1,
    }
    assert row.resolution == "raw"


@pytest.mark.parametrize("verdict", [Verdict.SUPERSEDED, Verdict.HANDED_BACK])
def test_what_came_to_nothing_is_in_no_duration(verdict):
    row = written((a_delivery(waited=5.0), verdict, 9.0))["t"]
    assert (sum(row.run), sum(row.wait), row.run_seconds, row.wait_seconds, row.longest) == (0, 0, 0, 0, 0)


def test_what_did_not_run_is_counted_and_is_in_no_duration():
    row = written((a_delivery(waited=5.0), Verdict.DEAD, None))["t"]
    assert (row.dead, sum(row.run), sum(row.wait)) == (1, 0, 0)


@pytest.mark.parametrize("unknown", [{"waited": None}, {"started_at": 0.0}])
def test_a_wait_that_is_not_known_is_left_out(unknown):
    row = written((a_delivery(**unknown), Verdict.FAILED, 1.0))["t"]
    assert (sum(row.run), sum(row.wait)) == (1, 0)


def test_a_clock_that_was_set_back_makes_no_wait_negative():
    row = written((a_delivery(waited=-3.0), Verdict.SUCCEEDED, 1.0))["t"]
    assert (row.wait_seconds, row.wait[0]) == (0, 1)


def test_a_task_in_two_queues_and_a_handler_of_the_same_name_are_three_rows():
    tally = Tally()
    for delivery in (a_delivery(), a_delivery(queue="mail"), a_delivery(event=uuid.uuid4()), a_delivery()):
        tally.add(delivery, Verdict.SUCCEEDED, 0.1)
    assert tally.write() == 3
    assert set(RunCount.objects.values_list("queue", "event", "succeeded")) == {
        ("default", False, 2),
        ("mail", False, 1),
        ("default", True, 1),
    }


def test_what_is_beyond_the_most_is_counted_together():
    tally = Tally()
    for n in range(MOST + 7):
        tally.add(a_delivery(f"t{n}", queue=f"q{n}"), Verdict.SUCCEEDED, 0.1)
    for n in range(MOST + 7):
        tally.add(a_delivery(f"t{n}", queue=f"q{n}"), Verdict.FAILED, 0.1)
    assert tally.write() == MOST + 1
    other = RunCount.objects.get(task="")
    assert (other.queue, other.succeeded, other.failed) == ("", 7, 7)
    assert sum(RunCount.objects.values_list("succeeded", flat=True)) == MOST + 7
    tally.add(a_delivery("anew"), Verdict.SUCCEEDED, 0.1)
    assert len(tally) == 1, "a write makes room"


def test_names_come_back_as_they_are():
    names = ['with "quotes" and \\', "{a,b}", "NULL", "ünï ☃", "100%s", " "]
    assert set(written(*((a_delivery(name), Verdict.SUCCEEDED, 0.1) for name in names))) == set(names)


def test_nothing_counted_asks_nothing():
    with CaptureQueriesContext(connection) as asked:
        assert Tally().write() == 0
    assert not asked.captured_queries


def test_once_it_is_written_it_is_not_written_again():
    tally = Tally()
    tally.add(a_delivery(), Verdict.SUCCEEDED, 0.1)
    assert (tally.write(), tally.write(), len(tally)) == (1, 0, 0)
    assert RunCount.objects.get().succeeded == 1
