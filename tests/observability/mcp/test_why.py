"""Why a job waits, who is in its way, and what a person may press: for every place and every reason."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps

from django_pgbus.models import DeadLetter, Message, UniquenessKey
from django_pgbus.observability.mcp import presses
from django_pgbus.tasks import lifecycle
from tests.admin import rows
from tests.line import COMMITTED
from tests.observability.mcp.asking import ask
from tests.sessions import sessions

pytestmark = COMMITTED


def why(job: Any) -> Any:
    told = ask("pgbus_why", id=job.pk)
    return {**told, "answer": " ".join(told["answer"]), "may_press": [one["action"] for one in told["may_press"]]}


# --- in line -------------------------------------------------------------------------------------------


def test_ready_and_the_next() -> None:
    rows.a_worker()
    told = why(rows.a_message())
    assert "The next free worker takes it when its turn comes." in told["answer"]
    assert "It is the next of its queue." in told["answer"]
    assert (told["waits"], told["ahead"], told["next_attempt"], told["max_attempts"]) == (
        True,
        {"number": 0, "more": False},
        1,
        5,
    )
    assert told["may_press"] == ["Discard"]


def test_ready_behind_others() -> None:
    rows.a_worker()
    for _ in range(3):
        rows.a_message()
    assert "Before it, 3 jobs of its queue will be taken." in why(rows.a_message())["answer"]
    rows.a_message(priority=9, queue="other")
    assert "Before it, 1 job of its queue will be taken." in why(rows.a_message(queue="other"))["answer"]


@pytest.mark.proves("whatever-waits-says-why")
def test_a_paused_queue() -> None:
    rows.a_worker()
    lifecycle.pause_queue("default", by="anna")
    told = why(rows.a_message())
    assert told["standing"] == "queue paused"
    assert "Queue default is paused: no worker takes anything from it until it is resumed." in told["answer"]
    assert "was paused by anna at" in told["answer"]
    assert told["may_press"] == ["Resume", "Discard"]


@pytest.mark.proves("whatever-waits-says-why")
def test_no_worker() -> None:
    assert "No worker is running." in why(rows.a_message())["answer"]
    rows.a_worker(queues="mail: 4")
    told = why(rows.a_message())
    assert "No running worker serves queue default." in told["answer"]
    assert "Start a worker: manage.py runworker --queues default" in told["answer"]


def test_a_suspect_and_a_retry_in_line() -> None:
    rows.a_worker()
    told = why(rows.a_message(suspect=True, attempts=2))
    assert "alone: the process that ran it before ended or fell silent" in told["answer"]
    assert "The next run is attempt 3 of 5." in told["answer"]


def test_running() -> None:
    worker = rows.a_worker()
    told = why(rows.a_running(worker.id))
    assert "It runs on shop-1." in told["answer"]
    assert "Its lease lasts, unless it is renewed, until" in told["answer"]
    assert "This is attempt 1 of 5." in told["answer"]
    assert (told["waits"], told["worker"], told["may_press"]) == (
        False,
        "shop-1",
        ["Hand back", "Discard"],
    )
    assert why(rows.a_running(worker.id, discard_requested=True))["may_press"] == ["Discard"]


def test_a_worker_that_fell_silent() -> None:
    rows.a_worker()
    told = why(rows.a_running(leased_until=rows.now() - timedelta(minutes=2)))
    assert told["standing"] == "worker silent"
    assert "fell silent. The job goes back into the line and runs again." in told["answer"]
    assert "Its lease ended" in told["answer"]


def test_a_worker_that_fell_silent_and_nobody_else_who_would_run_it() -> None:
    told = why(rows.a_running(leased_until=rows.now() - timedelta(minutes=2)))
    assert "no other serves queue default. The job runs again as soon as one does." in told["answer"]
    assert "Start a worker: manage.py runworker" in told["answer"]


def test_what_is_to_be_discarded_does_not_run_again_when_its_worker_fell_silent() -> None:
    rows.a_worker()
    told = why(rows.a_running(leased_until=rows.now() - timedelta(minutes=2), discard_requested=True))
    assert "The job is discarded and does not run again." in told["answer"]


# --- later ---------------------------------------------------------------------------------------------


@pytest.mark.proves("whatever-waits-says-why")
def test_a_time_that_has_not_come() -> None:
    rows.a_worker()
    told = why(rows.a_delayed())
    assert "It was enqueued for a later time." in told["answer"]
    assert re.search(r"It is due in (2 h 0|1 h 59) min, at \d{4}-", told["answer"])
    assert told["due_in_seconds"] == pytest.approx(7200, abs=60)
    assert told["may_press"] == ["Run now", "Discard"]


def test_a_retry() -> None:
    rows.a_worker()
    told = why(rows.a_delayed(reason="retry", attempts=2, due_at=rows.now() + timedelta(seconds=50)))
    assert "Its last attempt failed; it is tried again at the time it is due." in told["answer"]
    assert "The next run is attempt 3 of 5." in told["answer"]
    assert told["next_attempt"] == 3


def test_snoozed_and_overdue() -> None:
    past = rows.now() - timedelta(minutes=3)
    assert "no running worker moves it into the line" in why(rows.a_delayed(due_at=past))["answer"]
    rows.a_worker()
    assert "It is due since 3 min" in why(rows.a_delayed(due_at=past))["answer"]
    assert "It asked to be run later" in why(rows.a_delayed(reason="snoozed"))["answer"]


# --- parked --------------------------------------------------------------------------------------------


@pytest.mark.proves("whatever-waits-says-why")
def test_behind_a_limit_and_its_holders() -> None:
    rows.a_worker()
    rows.a_limit("printer", capacity=2)
    running, ready = rows.a_running(), rows.a_message()
    rows.a_beating_slot(running.pk, "printer")
    rows.a_slot(ready.pk, "printer", ordinal=2)
    rows.a_parked("printer", due_at=rows.now() + timedelta(hours=1))  # waits for its time first
    rows.a_parked("printer", waits_for="key", semaphore=None)  # and this one for another thing of that name
    first, second = rows.a_parked("printer"), rows.a_parked("printer")
    urgent = rows.a_parked("printer", priority=5)
    told = why(second)
    assert (
        f"Of the key printer 2 of 2 slots are held: job {running.pk} (beating), job {ready.pk} (waiting)."
        in told["answer"]
    )
    assert "Before it, 2 parked jobs of this key will be let in." in told["answer"]
    assert told["ahead"]["number"] == 2
    assert why(first)["ahead"]["number"] == 1
    assert why(urgent)["ahead"]["number"] == 0
    assert told["waits_for_limit"]["limit"] == 2
    assert told["may_press"] == ["Release", "Discard parked", "Discard"]
    assert why(ready)["holds"] == ["a slot of the key printer"]


@pytest.mark.usefixtures("long_up")
def test_behind_a_holder_that_fell_silent() -> None:
    rows.a_worker()
    rows.a_limit("printer")
    holder = rows.a_running(leased_until=rows.now() - timedelta(minutes=20))
    rows.a_slot(holder.pk, "printer", leased_until=rows.now() - timedelta(minutes=5))
    told = why(rows.a_parked("printer"))
    assert "1 holder fell silent since" in told["answer"]
    assert told["waits_for_limit"]["silent"] == 1


def test_behind_a_transaction_that_holds_the_semaphore() -> None:
    rows.a_limit("printer")
    job = rows.a_parked("printer")
    with sessions(1) as other:
        other.open()
        other.sql("SELECT key FROM pgbus_semaphores WHERE key = 'printer' FOR UPDATE")
        assert f"before the transaction of database session {other.pid}" in why(job)["answer"]
        other.roll_back()


def test_a_free_slot() -> None:
    rows.a_limit("printer")
    assert "Nobody holds a slot of the key printer" in why(rows.a_parked("printer"))["answer"]


def test_behind_a_uniqueness_key() -> None:
    rows.a_worker()
    holder = rows.a_running(constraints=rows.constraints(unique="order-17"))
    rows.a_lock(holder.pk)
    job = rows.a_parked("order-17", waits_for="key", semaphore=None, constraints=rows.constraints(unique="order-17"))
    told = why(job)
    assert f"The uniqueness key order-17 is held by job {holder.pk} (running) for" in told["answer"]
    assert told["waits_for_key"]["holder"] == holder.pk
    assert told["may_press"] == ["Discard the lock", "Discard"]
    assert why(holder)["holds"] == ["the uniqueness key order-17"]
    UniquenessKey.objects.all().delete()
    told = why(job)
    assert "Nobody holds the uniqueness key order-17 any more" in told["answer"]
    assert told["waits_for_key"] is None
    assert told["may_press"] == ["Discard"]


def test_behind_a_batch() -> None:
    batch = rows.a_batch(1)
    rows.a_lock(batch.pk, "nightly", strategy="until_finished")
    job = rows.a_parked("nightly", waits_for="key", semaphore=None)
    assert f"is held by batch {batch.pk} (a batch that is not finished)" in why(job)["answer"]


def test_parked_until_it_is_due() -> None:
    rows.a_worker()
    told = why(rows.a_parked(due_at=rows.now() + timedelta(hours=1)))
    assert "It is parked until it is due" in told["answer"]
    assert told["ahead"] is None
    assert told["may_press"] == ["Run now", "Discard"]


def test_parked_and_paused() -> None:
    lifecycle.pause_queue("default")
    told = why(rows.a_parked())
    assert "the job is passed over until it is resumed" in told["answer"]
    assert told["may_press"][0] == "Resume"


# --- code, and the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [rows.a_message, rows.a_delayed, rows.a_parked])
def test_code_that_is_not_there(make: Any) -> None:
    told = why(make(task=rows.GONE))
    assert f"There is no task at {rows.GONE} in this process." in told["answer"]
    assert told["max_attempts"] is None


def test_code_of_events_that_is_not_there() -> None:
    told = why(rows.a_message(**rows.event(task=rows.GONE_HANDLER)))
    assert f"There is no handler of events at {rows.GONE_HANDLER}" in told["answer"]
    assert why(rows.a_message(**rows.event()))["max_attempts"] == 4


def test_dead() -> None:
    told = why(rows.a_dead_letter())
    assert "It failed in its last attempt: it runs again only if a person redrives it." in told["answer"]
    assert "after 5 attempts." in told["answer"]
    assert "Its last error was shop.rows.BrokenRow." in told["answer"]
    assert (told["waits"], told["may_press"]) == (False, ["Redrive", "Discard"])


def test_dead_and_its_key_is_held() -> None:
    holder = rows.a_message()
    rows.a_lock(holder.pk)
    told = why(rows.a_dead_letter(constraints=rows.constraints(unique="order-17")))
    assert f"Its uniqueness key order-17 is held by job {holder.pk} (in line): a redrive is refused" in told["answer"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "It ran, and succeeded."),
        (
            {"outcome": "discarded", "note": "Another job held its key."},
            "it never runs again. Another job held its key.",
        ),
        ({"outcome": "skipped", "note": "completed"}, "Another delivery of its event was handled"),
    ],
)
def test_ended(fields: dict[str, Any], text: str) -> None:
    told = why(rows.an_archived(**fields))
    assert text in told["answer"]
    assert "It ended" in told["answer"]
    assert (told["waits"], told["may_press"], told["next_attempt"]) == (False, [], None)


@pytest.mark.parametrize("broken", ["[]", '{"unique": 7}', '{"limit": {}}', '"x"', "7"])
@pytest.mark.parametrize("make", [rows.a_message, rows.a_delayed, rows.a_parked, rows.an_archived, rows.a_dead_letter])
def test_constraints_that_a_hand_has_damaged(make: Any, broken: str) -> None:
    assert why(make(constraints=broken))["answer"]


def test_it_takes_a_fixed_number_of_rows() -> None:
    rows.a_limit("printer", capacity=500)
    Message.objects.bulk_create([Message(queue="default", task=rows.TASK, payload="{}") for _ in range(100)])
    for nth, id in enumerate(Message.objects.values_list("id", flat=True), 1):
        rows.a_slot(id, "printer", ordinal=nth)
    told = why(rows.a_parked("printer"))
    assert len(told["waits_for_limit"]["holders"]) == 20
    assert "and 80 more" in told["answer"]
    assert not DeadLetter.objects.exists()


def test_what_may_be_pressed_is_a_permission_that_there_is() -> None:
    known = {
        f"pgbus.{codename}"
        for model in apps.get_app_config("pgbus").get_models()
        for codename, _ in model._meta.permissions
    }
    named = {one.permission for one in vars(presses).values() if isinstance(one, presses.Press)}
    assert named <= known
