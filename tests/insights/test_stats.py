"""The numbers for people: what they add up, from which rows, and how much they read."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgbus.insights import stats
from django_pgbus.insights.histogram import NONE
from django_pgbus.insights.stats import NOTHING, Runs, Window, by_queue, by_task, overall, rates, series, totals
from tests.insights.rows import a_row
from tests.sessions import execute

pytestmark = pytest.mark.django_db

EVERY = list(Window)
SPANS = ["raw", "minute", "ten_minutes", "hour"]


def runs(**fields):
    defaults = {"run": NONE, "wait": NONE}
    return Runs(**{**{name: getattr(NOTHING, name) for name in Runs.__slots__}, **defaults, **fields})


def test_a_window_is_so_many_whole_steps():
    assert [(window.seconds, window.step, window.seconds % window.step) for window in EVERY] == [
        (3600, 60, 0),
        (86_400, 600, 0),
        (604_800, 3600, 0),
    ]


def test_rates_and_averages_of_what_ran():
    found = runs(
        succeeded=6, failed=2, dead=1, snoozed=1, superseded=5, handed_back=5, run=(2, 2, *NONE[2:]), run_seconds=8.0
    )
    assert (found.number, found.failure_rate, found.run_average, found.wait_average) == (10, 0.3, 2.0, None)
    assert (NOTHING.number, NOTHING.failure_rate, NOTHING.run_average, NOTHING.run_percentile(0.5)) == (
        0,
        0.0,
        None,
        None,
    )


def test_no_percentile_is_above_the_longest():
    found = runs(longest=0.3, run=(*NONE[:6], 10, *NONE[7:]), wait=(*NONE[:6], 10, *NONE[7:]))
    assert found.run_percentile(0.99) == pytest.approx(0.25 + 0.05 * 0.99)
    assert found.wait_percentile(0.99) == pytest.approx(0.25 + 0.25 * 0.99)


@pytest.mark.parametrize("window", EVERY)
def test_where_nothing_ran_all_is_nothing(window):
    assert overall(window) == NOTHING
    assert (by_task(window), by_queue(window), totals(), rates()) == ([], [], [], {})
    points = series(window)
    assert len(points) == window.seconds // window.step
    assert {(p.succeeded, p.failed, p.dead, p.run_p95, p.wait_p95) for p in points} == {(0, 0, 0, None, None)}


@pytest.mark.parametrize("window", EVERY)
def test_a_window_holds_rows_of_all_resolutions_and_no_total(window):
    for resolution in [*SPANS, "total"]:
        a_row("10 seconds", resolution)
        a_row(f"{window.seconds + 10} seconds", resolution)
    found = overall(window)
    assert (found.succeeded, sum(found.run), sum(found.wait)) == (4, 4, 4)
    assert (found.run_seconds, found.wait_seconds, found.longest) == pytest.approx((0.08, 0.8, 0.02))


@pytest.mark.parametrize("window", EVERY)
def test_points_lie_side_by_side_and_end_now_and_add_up_to_the_whole(window):
    for n in range(12):
        a_row(f"{n * window.seconds / 11.5} seconds", SPANS[n % 4], failed=n, dead=1, run=n)
    points = series(window)
    assert len(points) == window.seconds // window.step
    step = timedelta(seconds=window.step)
    assert all(after.at - before.at == step for before, after in pairwise(points))
    assert points[-1].at <= execute("SELECT statement_timestamp()")[0][0] < points[-1].at + 2 * step
    assert (sum(p.failed for p in points), sum(p.dead for p in points)) == (
        overall(window).failed,
        overall(window).dead,
    )
    assert sum(p.dead for p in points) >= 11
    assert points[-1].dead == 1
    assert {p.run_p95 is None for p in points if p.dead} == {False}


def test_a_point_has_the_percentiles_of_its_own_runs():
    a_row("30 minutes", number=20, run=4, wait=9)
    a_row("20 minutes", number=20, run=0.2, wait=0.002)
    found = [(p.run_p95, p.wait_p95) for p in series(Window.HOUR) if p.succeeded]
    assert found == [pytest.approx((3.925, 9.75)), pytest.approx((0.195, 0.00475))]


def test_a_series_of_a_task_or_a_queue_or_both():
    for task in ("a", "b"):
        for queue in ("default", "mail"):
            a_row("5 minutes", task=task, queue=queue)
    numbers = [
        sum(p.succeeded for p in series(Window.HOUR, *wanted)) for wanted in [(), ("a",), ("", "mail"), ("a", "mail")]
    ]
    assert numbers == [4, 2, 2, 1]
    assert sum(p.succeeded for p in series(Window.HOUR, "no'such")) == 0


def test_what_is_grouped_may_be_of_a_task_or_a_queue_or_both():
    for task in ("a", "b"):
        for queue in ("default", "mail"):
            a_row("5 minutes", task=task, queue=queue)
    for wanted, tasks, queues in [
        ({}, 2, 2),
        ({"task": "a"}, 1, 2),
        ({"queue": "mail"}, 2, 1),
        ({"task": "a", "queue": "mail"}, 1, 1),
        ({"task": "no'such"}, 0, 0),
    ]:
        assert overall(Window.HOUR, **wanted).number == tasks * queues
        for order in stats.ORDERS:
            assert [runs.number for runs in by_task(Window.HOUR, order=order, **wanted)] == [queues] * tasks
        assert [runs.number for runs in by_queue(Window.HOUR, **wanted)] == [tasks] * queues


def test_by_task_all_queues_are_one_and_a_handler_of_events_is_another():
    a_row("5 minutes", task="a", queue="default")
    a_row("5 minutes", task="a", queue="mail", failed=2)
    a_row("5 minutes", task="a", queue="@events", event=True)
    a_row("5 minutes", task="b", queue="default")
    found = {(runs.task, runs.queue, runs.event): (runs.succeeded, runs.failed) for runs in by_task(Window.HOUR)}
    assert found == {("a", "", False): (1, 2), ("a", "", True): (1, 0), ("b", "", False): (1, 0)}


def test_by_queue_all_tasks_are_one():
    a_row("5 minutes", task="a", number=3)
    a_row("5 minutes", task="b", event=True)
    a_row("5 minutes", task="a", queue="mail")
    found = [(runs.task, runs.queue, runs.event, runs.succeeded) for runs in by_queue(Window.HOUR)]
    assert found == [("", "default", False, 4), ("", "mail", False, 1)]
    assert [runs.queue for runs in by_queue(Window.HOUR, most=1)] == ["default"]


def test_tasks_come_in_the_order_that_was_asked_for():
    a_row(task="often", number=100, run=0.001)
    a_row(task="long", number=10, run=20)
    a_row(task="slow", run=100)
    a_row(task="breaks", dead=3, failed=2, run=0.5)
    a_row(task="breaks more", failed=6, run=0.4)
    found = {order: [runs.task for runs in by_task(Window.HOUR, order=order)] for order in stats.ORDERS}
    assert found["run_seconds"][:2] == ["long", "slow"]
    assert found["slowest"] == ["slow", "long", "breaks", "breaks more", "often"]
    assert found["failures"][:2] == ["breaks more", "breaks"]
    assert found["number"][:2] == ["often", "long"]
    assert [runs.task for runs in by_task(Window.HOUR, most=2, order="slowest")] == ["slow", "long"]


def test_the_slowest_is_so_by_its_percentile_and_not_by_one_run():
    a_row(task="once", number=99, run=0.1)
    a_row(task="once", run=1000)
    a_row(task="always", number=99, run=4)
    assert [runs.task for runs in by_task(Window.HOUR, order="slowest")] == ["always", "once"]


def test_an_unknown_order_is_refused_before_it_is_asked():
    with CaptureQueriesContext(connection) as asked, pytest.raises(ValueError, match="'wait' is none of"):
        by_task(Window.HOUR, order="wait")
    assert not asked.captured_queries


def test_totals_are_what_is_summed_and_what_is_not_yet():
    a_row("100 days", "total", number=1000)
    a_row("1 minute", "minute", number=7)
    a_row("5 seconds", number=2)
    a_row("5 seconds", task="other", number=3)
    assert [(runs.task, runs.queue, runs.succeeded) for runs in totals()] == [
        ("t", "default", 1002),
        ("other", "default", 3),
    ]
    assert [runs.task for runs in totals(most=1)] == ["t"]


def test_a_rate_is_of_whole_minutes_and_of_what_came_to_something():
    a_row("10 seconds", number=30, succeeded=20, failed=4, dead=3, snoozed=3, superseded=50, handed_back=50)
    a_row("2 minutes", "minute", queue="mail", number=60)
    a_row("7 minutes", "minute", queue="mail", number=1000)
    found = rates(300)
    assert set(found) == {"default", "mail"}
    assert 30 / 360 <= found["default"] <= 30 / 300
    assert found["mail"] == pytest.approx(2 * found["default"])


ASKING = {
    "totals": totals,
    "overall": lambda: overall(Window.WEEK),
    "by_task": lambda: by_task(Window.WEEK),
    "slowest": lambda: by_task(Window.WEEK, order="slowest"),
    "by_queue": lambda: by_queue(Window.WEEK),
    "series": lambda: series(Window.WEEK),
    "rates": rates,
}


@pytest.mark.parametrize("name", ASKING)
def test_each_asks_once(name):
    for n in range(30):
        a_row(task=f"t{n}", queue=f"q{n}")
    with CaptureQueriesContext(connection) as asked:
        ASKING[name]()
    assert len(asked.captured_queries) == 1


def fill(tasks=20):
    """Write what eight days of so many tasks leave behind."""
    execute(
        """
        INSERT INTO pgbus_run_counts (resolution, bucket, queue, task, succeeded, run_seconds, wait_seconds, longest, run,
                                      wait)
        SELECT span.resolution, date_bin('1 minute', statement_timestamp(), 'epoch') - n * span.step,
               'default', 'app.tasks.number_' || t, 10, 1, 1, 1, array_fill(1::bigint, ARRAY[16]),
               array_fill(1::bigint, ARRAY[16])
        FROM (VALUES ('minute', interval '1 minute', 1, 120), ('ten_minutes', interval '10 minutes', 12, 156),
                     ('hour', interval '1 hour', 26, 192), ('total', interval '1 hour', 1, 1))
             AS span (resolution, step, low, high)
        CROSS JOIN LATERAL generate_series(span.low, span.high) AS n
        CROSS JOIN generate_series(1, %s) AS t
        """,
        [tasks],
    )
    execute("ANALYZE pgbus_run_counts")


def test_an_hour_reads_the_rows_of_an_hour():
    fill()
    text = stats.stats_sql.GROUPED.sql
    given = {"by_task": True, "by_queue": False, "order": "number", "most": 50, "window": "1 hour", "step": "1 minute"}
    given |= {"task": "", "queue": ""}
    (plan,) = execute(f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING off) {text}", given)[0][0]
    (scan,) = [node for node in nodes(plan["Plan"]) if node.get("Relation Name") == "pgbus_run_counts"]
    assert scan["Actual Rows"] <= 20 * 62
    assert scan.get("Rows Removed by Filter", 0) == 0
    assert scan["Node Type"] != "Seq Scan"


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)
