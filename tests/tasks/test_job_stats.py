"""Pages of jobs by state: complete, each job once, and a bounded look for what no index knows."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgbus.tasks import job_stats
from tests.admin import rows

pytestmark = pytest.mark.django_db

MAKERS = (rows.a_message, rows.a_running, rows.a_delayed, rows.a_parked, rows.an_archived, rows.a_dead_letter)


def all_pages(**asked: Any) -> list[list[int]]:
    """Return the ids of page after page, to the end."""
    pages, before = [], job_stats.BEHIND_ALL
    while True:
        page = job_stats.jobs(before=before, **asked)
        pages.append([job.id for job in page.jobs])
        if page.next is None:
            return pages
        assert page.next < before, "a page that ends where it began never ends"
        before = page.next


def ids(**asked: Any) -> list[int]:
    return [id for page in all_pages(**asked) for id in page]


@pytest.fixture
def mixed() -> list[Any]:
    """Three jobs in each place, made in turns."""
    return [make(queue="odd" if nth % 2 else "even") for nth in range(3) for make in MAKERS]


@pytest.mark.parametrize("most", [1, 2, 5, 17, 18, 100])
@pytest.mark.parametrize("reach", [1, 2, 3, 10_000])
def test_every_job_is_told_once_however_far_a_page_looks(
    mixed: list[Any], monkeypatch: pytest.MonkeyPatch, most: int, reach: int
) -> None:
    monkeypatch.setattr(job_stats, "REACH", reach)
    everything = sorted((job.pk for job in mixed), reverse=True)
    assert ids(most=most) == everything
    odd = sorted((job.pk for job in mixed if job.queue == "odd"), reverse=True)
    assert ids(most=most, queue="odd") == odd
    assert ids(most=most, text="IMPORT_ORDER") == everything
    assert ids(most=most, text="nowhere") == []


@pytest.mark.parametrize(
    ("nth", "state"),
    list(enumerate(["ready", "running", "delayed", "parked", "succeeded", "dead"])),
)
def test_one_state(mixed: list[Any], monkeypatch: pytest.MonkeyPatch, nth: int, state: str) -> None:
    monkeypatch.setattr(job_stats, "REACH", 2)
    wanted = [job.pk for job in mixed[nth :: len(MAKERS)]]
    assert ids(states=[state], most=2) == sorted(wanted, reverse=True)
    assert {job.state for job in job_stats.jobs([state]).jobs} == {state}


def test_what_finished_is_told_apart() -> None:
    succeeded, discarded = rows.an_archived(), rows.an_archived(outcome="discarded")
    skipped = rows.an_archived(outcome="skipped")
    assert ids(states=["succeeded"]) == [succeeded.pk]
    assert ids(states=["discarded", "skipped"]) == [skipped.pk, discarded.pk]


def test_a_topic_is_found_too() -> None:
    rows.a_message()
    copy = rows.a_message(**rows.event(topic="orders.created"))
    assert ids(text="ORDERS.c") == [copy.pk]


def test_it_asks_once_and_reads_no_payload(mixed: list[Any]) -> None:
    with CaptureQueriesContext(connection) as queries:
        job_stats.jobs(queue="odd")
    (query,) = queries
    assert "payload" not in query["sql"]
    with CaptureQueriesContext(connection) as queries:
        job_stats.jobs(["running"])
    assert len(queries) == 2


@pytest.mark.parametrize("make", MAKERS)
def test_one_job_is_found_wherever_it_is(make: Any) -> None:
    made = make(payload=rows.payload("hunter2"), errors=[rows.error(traceback="hunter2")])
    found = job_stats.job(made.pk)
    assert found is not None
    assert (found.id, found.queue, found.task, found.payload) == (made.pk, "default", rows.TASK, made.payload)
    assert "shop.rows.BrokenRow" in str(found.errors)
    assert "hunter2" not in repr(found)  # error trackers send it
    assert job_stats.job(made.pk + 1_000) is None
