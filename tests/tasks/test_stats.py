"""Jobs in any state: pages that are complete, each job once, and a bounded look for what no index knows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgbus.tasks import stats
from tests.admin import rows

pytestmark = pytest.mark.django_db

MAKERS = (rows.a_message, rows.a_running, rows.a_delayed, rows.a_parked, rows.an_archived, rows.a_dead_letter)


def all_pages(**asked: Any) -> list[list[int]]:
    """Return the ids of page after page, to the end."""
    pages, before = [], stats.NEWEST_OF_ALL
    while True:
        page = stats.page(before=before, **asked)
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
    monkeypatch.setattr(stats, "REACH", reach)
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
    monkeypatch.setattr(stats, "REACH", 2)
    wanted = [job.pk for job in mixed[nth :: len(MAKERS)]]
    assert ids(states=[state], most=2) == sorted(wanted, reverse=True)
    assert {job.state for job in stats.page([state]).jobs} == {state}


def test_what_finished_is_told_apart() -> None:
    succeeded, discarded = rows.an_archived(), rows.an_archived(outcome="discarded")
    skipped = rows.an_archived(outcome="skipped")
    assert ids(states=["succeeded"]) == [succeeded.pk]
    assert ids(states=["discarded", "skipped"]) == [skipped.pk, discarded.pk]


def test_a_topic_is_found_too() -> None:
    rows.a_message()
    copy = rows.a_message(**rows.event(topic="orders.created"))
    assert ids(text="ORDERS.c") == [copy.pk]


def test_it_asks_twice_and_reads_no_payload(mixed: list[Any]) -> None:
    with CaptureQueriesContext(connection) as queries:
        stats.page(queue="odd")
    assert len(queries) == 2
    assert not any("payload" in query["sql"] for query in queries)
    with CaptureQueriesContext(connection) as queries:
        stats.page(["running"])
    assert len(queries) == 3


@pytest.mark.parametrize("make", MAKERS)
def test_one_job_is_found_wherever_it_is(make: Any) -> None:
    made = make(payload=rows.payload("hunter2"), errors=[rows.error(traceback="hunter2")])
    found = stats.job(made.pk)
    assert found is not None
    assert (found.id, found.queue, found.task, found.payload) == (made.pk, "default", rows.TASK, made.payload)
    assert "shop.rows.BrokenRow" in str(found.errors)
    assert "hunter2" not in repr(found)  # error trackers send it
    assert stats.job(made.pk + 1_000) is None


@pytest.mark.parametrize("make", MAKERS)
def test_a_list_says_of_a_job_what_its_own_page_says(make: Any) -> None:
    made = make(errors=[rows.error(traceback="hunter2")])
    (listed,), whole = stats.jobs([made.pk]), stats.job(made.pk)
    assert whole is not None
    shared = {field.name for field in fields(listed)} & {field.name for field in fields(whole)}
    differs = {name for name in shared if getattr(listed, name) != getattr(whole, name)}
    # Of one that has left the line the list says since when, its page when it began and ended; a list holds no keys but
    # those that are waited for.
    assert differs <= {"since", "constraints"}
    assert "hunter2" not in repr(listed)


def test_a_look_says_how_far_it_went() -> None:
    made = [rows.a_message().pk for _ in range(3)]
    assert stats.named("import", stats.OPEN, limit=9, reach=3).unseen is None
    look = stats.named("import", stats.OPEN, limit=9, reach=2)
    assert (look.ids, look.unseen) == (made[:0:-1], made[0])
    assert stats.named("a\x00", stats.OPEN, limit=9, reach=2) == stats.Look()


def test_a_job_that_left_its_state_meanwhile_is_in_no_list_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, stays = rows.a_message(), rows.a_message()
    read = stats.jobs

    def later(*asked: Any) -> list[stats.Job]:
        type(moved).objects.filter(pk=moved.pk).update(leased_until=rows.now(), worker=uuid4())
        return read(*asked)

    monkeypatch.setattr(stats, "jobs", later)
    page = stats.page(["ready"], most=2)
    assert [job.id for job in page.jobs] == [stays.pk]
