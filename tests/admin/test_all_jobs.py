"""All jobs in one list: every state with its reason, found by id, task and key, decided about wherever each is."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgbus.admin import all_jobs, bounds, job_tabs
from django_pgbus.models import Archived, BlockedExecution, DeadLetter, Delayed, Message, QueueState
from django_pgbus.tasks import stats
from tests.admin import rows
from tests.admin.conftest import Login, Places
from tests.admin.test_bounds import seed

pytestmark = pytest.mark.django_db

JOBS = "admin:pgbus_message_changelist"
SECOND = timedelta(seconds=1)


def page(client: Client, **query: Any) -> Any:
    response = client.get(reverse(JOBS, query=query))
    assert response.status_code == 200
    return response


def found(client: Client, **query: Any) -> list[int]:
    return [int(row["id"]) for row in page(client, **query).context["rows"]]


def by_id(client: Client, **query: Any) -> dict[int, dict[str, Any]]:
    return {int(row["id"]): row for row in page(client, **query).context["rows"]}


def notes(client: Client, **query: Any) -> list[str]:
    return [str(note["text"]) for note in page(client, **query).context["notes"]]


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def decide(client: Client, name: str, *jobs: Any, **data: Any) -> Any:
    data = {"action": name, "_selected_action": [job.pk for job in jobs], "post": "yes", **data}
    return client.post(reverse(JOBS), data, follow=True)


# --- the list -------------------------------------------------------------------------------------------


def test_every_state_stands_in_it_the_newest_first(places: Places, admin_client: Client) -> None:
    jobs = [places.ready, places.running, places.delayed, places.dead, places.parked]
    assert found(admin_client) == sorted((job.pk for job in jobs), reverse=True)


@pytest.mark.proves("whatever-waits-says-why")
def test_each_says_why_it_waits(admin_client: Client) -> None:
    QueueState.objects.create(queue="paused", paused_at=rows.now(), paused_by="anna")
    worker = rows.a_worker(queues="default,paused: 10")
    due = rows.now() + timedelta(hours=2)
    expected = {
        rows.a_message().pk: ("ready", "The next free worker takes it when its turn comes."),
        rows.a_message(queue="paused").pk: ("queue paused", "Queue paused is paused"),
        rows.a_message(queue="unserved").pk: ("no worker", "No running worker serves queue unserved."),
        rows.a_message(task=rows.GONE).pk: ("no code", "There is no code at its path"),
        rows.a_running(worker.id).pk: ("running", "It runs on shop-1."),
        rows.a_delayed(due_at=due).pk: ("scheduled", "Waits until "),
        rows.a_delayed(due_at=due, reason="retry", attempts=2, errors=[rows.error()]).pk: (
            "retrying",
            "Attempt 3 of 5 at ",
        ),
        rows.a_delayed(due_at=due, reason="snoozed").pk: ("snoozed", "It asked to be run later"),
        rows.a_delayed(due_at=rows.now() - SECOND, task=rows.GONE).pk: ("no code", "There is no code"),
        rows.a_parked("printer").pk: ("waits for a slot", "Parked for a slot of the key"),
        rows.a_parked("order-17", waits_for="key").pk: ("waits for its key", "Parked behind the key"),
        rows.a_parked("printer", due_at=due).pk: ("not due yet", "It is parked until it is due"),
        rows.a_dead_letter().pk: ("dead", "no attempts left, after 5 attempts"),
    }
    listed = by_id(admin_client)
    for pk, (state, why) in expected.items():
        assert str(listed[pk]["standing"].state) == state
        assert listed[pk]["why"].startswith(why), listed[pk]["why"]
    assert {row["key"] for row in listed.values()} == {"", "printer", "order-17"}
    assert [row["error"] for row in listed.values() if row["error"]] == [
        "BrokenRow: line 1043: placed_on '1997-02-30' is not a date"
    ] * 2


def test_a_page_goes_on_below_the_last_id_of_the_one_before(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_jobs, "PER_PAGE", 4)
    makers = [rows.a_message, rows.a_delayed, rows.a_dead_letter, rows.a_parked]
    ids = [makers[number % 4]().pk for number in range(10)][::-1]
    seen, query = [], {}
    while True:
        response = page(admin_client, **query)
        seen.append([int(row["id"]) for row in response.context["rows"]])
        if not (older := response.context["older_url"]):
            break
        query = {"below": older.rpartition("=")[2]}
    assert seen == [ids[:4], ids[4:8], ids[8:]]


def test_a_job_that_comes_meanwhile_shifts_no_page(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_jobs, "PER_PAGE", 2)
    ids = [rows.a_message().pk for _ in range(4)][::-1]
    older = page(admin_client).context["older_url"]
    rows.a_message()
    assert found(admin_client, below=older.rpartition("=")[2]) == ids[2:]


@pytest.mark.parametrize("below", ["", "x", "-1", "0", "99999999999999999999", "\x00"])
def test_nonsense_is_no_error(below: str, places: Places, admin_client: Client) -> None:
    for query in ({"below": below}, {"q": below}, {"q": "import", "below": below}):
        page(admin_client, **query)


def test_tabs_lead_to_each_state_with_its_number(places: Places, admin_client: Client) -> None:
    rows.a_delayed(reason="retry")
    tabs = {str(tab["label"]): tab for tab in page(admin_client).context["tabs"]}
    numbers = {label: tab["number"] for label, tab in tabs.items()}
    ones = dict.fromkeys(("Ready", "Running", "Retrying", "Parked", "Dead", "Finished"), "1")
    assert numbers == {"All": "", "Delayed": "2", **ones}
    assert [label for label, tab in tabs.items() if tab["current"]] == ["All"]
    for label, tab in tabs.items():
        response = admin_client.get(tab["url"])
        shown = response.context.get("pgbus_tabs") or response.context["tabs"]
        assert [str(one["label"]) for one in shown if one["current"]] == [label]
        if label != "All":
            assert len(response.context["cl"].result_list) == int(tab["number"])


def test_only_what_a_person_may_see_is_listed(places: Places, login: Login) -> None:
    client = login("view_message", "view_deadletter")
    assert found(client) == sorted([places.ready.pk, places.running.pk, places.dead.pk], reverse=True)
    assert found(client, q=places.delayed.pk) == []
    assert [str(tab["label"]) for tab in page(client).context["tabs"]] == ["All", "Ready", "Running", "Dead"]
    assert "<select" not in page(client).content.decode()


# --- search ---------------------------------------------------------------------------------------------


def test_an_id_finds_a_job_wherever_it_is(places: Places, admin_client: Client) -> None:
    for job in (places.ready, places.running, places.delayed, places.parked, places.dead, places.archived):
        assert found(admin_client, q=f" {job.pk} ") == [job.pk]
        (row,) = page(admin_client, q=job.pk).context["rows"]
        assert row["url"] == reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk])
    assert found(admin_client, q=10**9) == []


def test_part_of_a_task_finds_it_in_every_state(places: Places, admin_client: Client) -> None:
    charge = "tests.admin.tasks.charge"
    makers = (rows.a_message, rows.a_delayed, rows.a_parked, rows.a_dead_letter)
    ids = sorted((make(task=charge).pk for make in makers), reverse=True)
    assert found(admin_client, q="CHARGE") == ids
    assert found(admin_client, q=charge) == ids
    assert found(admin_client, q="no%such_") == []
    assert "Look among the finished jobs too" in page(admin_client, q="charge").content.decode()


def test_a_search_says_how_far_it_has_looked(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_jobs, "REACH", 3)
    ids = [rows.a_message().pk for _ in range(3)]
    assert notes(admin_client, q="import") == []
    ids.append(rows.a_message().pk)
    assert found(admin_client, q="import") == ids[:0:-1]
    assert notes(admin_client, q="import") == ["Searched are the newest 3. Older ones are found by their ID."]


def test_a_key_finds_who_holds_it_and_who_waits(admin_client: Client) -> None:
    holder, parked = rows.a_running(), [rows.a_parked("printer").pk for _ in range(2)]
    rows.a_parked("other")
    rows.a_beating_slot(holder.pk)
    listed = by_id(admin_client, q="printer")
    assert set(listed) == {holder.pk, *parked}
    assert listed[holder.pk]["holds"] == "Holds a slot of this key."
    assert notes(admin_client, q="printer") == ["1 job holds a slot of this key.", "2 jobs are parked for it."]


def test_a_uniqueness_key_finds_its_holder(admin_client: Client) -> None:
    job = rows.a_delayed()
    rows.a_lock(job.pk)
    assert found(admin_client, q="order-17") == [job.pk]
    assert notes(admin_client, q="order-17") == [f"Job {job.pk} holds this uniqueness key."]
    rows.a_lock(rows.a_batch(1).pk, "of a batch", strategy="until_finished")
    assert notes(admin_client, q="of a batch")[0].startswith("Batch ")


def test_a_key_is_told_only_to_whoever_may_see_locks(places: Places, login: Login) -> None:
    rows.a_lock(places.ready.pk, "secret")
    client = login("view_message", "view_delayed")
    assert (found(client, q="secret"), notes(client, q="secret")) == ([], [])
    assert (found(client, q="printer"), notes(client, q="printer")) == ([], [])


# --- bounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [{}, {"q": "import"}, {"q": "k1"}, {"q": "17"}])
def test_it_asks_as_often_for_many_rows_as_for_few(query: dict[str, str], admin_client: Client) -> None:
    def asked() -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            page(admin_client, **query)
        return [one["sql"] for one in queries.captured_queries]

    rows.a_worker()
    seed(10)
    few = asked()
    seed(500)
    many = asked()
    assert len(many) == len(few) <= 25
    for sql in many:
        assert "DISTINCT" not in sql
        assert not re.search(r"OFFSET (?!3|%|0|51|100000)", sql) or "EXISTS" in sql


def test_a_part_that_takes_too_long_says_so_and_the_rest_is_shown(
    places: Places, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = stats.newest

    def slow(some: Any, *args: Any) -> Any:
        if "dead" in some:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(10)")
        return newest(some, *args)

    monkeypatch.setattr(bounds, "PATIENCE", 50)
    monkeypatch.setattr(stats, "newest", slow)
    shown = found(admin_client)
    assert places.dead.pk not in shown
    assert set(shown) == {places.ready.pk, places.running.pk, places.delayed.pk, places.parked.pk}
    assert notes(admin_client) == ["This took too long, and is not shown: dead letters."]


def test_numbers_that_take_too_long_are_left_out(
    places: Places, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(10)")

    monkeypatch.setattr(job_tabs, "QUICK", 50)
    monkeypatch.setattr(stats, "counts", slow)
    assert {tab["number"] for tab in page(admin_client).context["tabs"]} == {""}


# --- decisions ------------------------------------------------------------------------------------------


def test_a_mixed_selection_is_asked_about_with_the_number_it_fits(places: Places, admin_client: Client) -> None:
    chosen = [places.ready, places.running, places.delayed, places.parked, places.dead]
    response = decide(admin_client, "run_now", *chosen, post="", index=0)
    text = response.content.decode()
    assert "Run 1 job now?" in text
    assert "4 of the chosen jobs are in no state for this" in text
    assert Delayed.objects.filter(pk=places.delayed.pk).exists(), "nothing is done before it is confirmed"


def test_each_decision_acts_on_those_it_fits_and_says_how_many_it_did_not(places: Places, admin_client: Client) -> None:
    chosen = [places.ready, places.running, places.delayed, places.parked, places.dead]
    unfit = "%d of the chosen jobs are in no state for this, or you may not decide so: they are left as they are."
    assert told(decide(admin_client, "run_now", *chosen)) == ["1 job stands in the line now.", unfit % 4]
    assert told(decide(admin_client, "hand_back", *chosen)) == [
        "1 job was taken from its worker and stands in the line again.",
        unfit % 4,
    ]
    assert told(decide(admin_client, "redrive", *chosen)) == ["1 dead letter was redriven.", unfit % 4]
    assert told(decide(admin_client, "discard", *chosen)) == ["4 jobs were discarded.", "1 job was discarded."]
    assert {one.pk for one in Archived.objects.filter(outcome="discarded")} == {job.pk for job in chosen}
    entries = LogEntry.objects.filter(action_flag=CHANGE).order_by("pk").select_related("content_type")
    assert [(entry.content_type.model, entry.object_id, entry.get_change_message()) for entry in entries[:3]] == [
        ("delayed", str(places.delayed.pk), "Run now."),
        ("message", str(places.running.pk), "Handed back while it ran."),
        ("deadletter", str(places.dead.pk), "Redriven."),
    ]
    assert len(entries) == 8


def test_nothing_chosen_or_nothing_left_is_said(places: Places, admin_client: Client) -> None:
    assert told(decide(admin_client, "discard")) == ["No job was chosen."]
    Message.objects.filter(pk=places.ready.pk).delete()
    assert told(decide(admin_client, "discard", places.ready)) == [
        "Nothing was changed: none of the chosen jobs is here."
    ]


@pytest.mark.parametrize(
    ("name", "permission", "untouched"),
    [
        ("discard", "discard_job", {"dead"}),
        ("discard", "discard_dead_letter", {"ready", "running", "delayed", "parked"}),
        ("run_now", "run_job_now", {"ready", "running", "parked", "dead"}),
        ("hand_back", "hand_back_job", {"ready", "delayed", "parked", "dead"}),
        ("redrive", "redrive_dead_letter", {"ready", "running", "delayed", "parked"}),
    ],
)
def test_a_decision_touches_only_what_its_permission_is_for(
    name: str, permission: str, untouched: set[str], places: Places, login: Login
) -> None:
    seen = ["view_message", "view_delayed", "view_blockedexecution", "view_deadletter"]
    chosen = {name: getattr(places, name) for name in ("ready", "running", "delayed", "parked", "dead")}
    before = {one: type(job).objects.values().get(pk=job.pk) for one, job in chosen.items()}
    client = login(*seen, permission)
    decide(client, name, *chosen.values())
    after = {one: type(job).objects.values().filter(pk=job.pk).first() for one, job in chosen.items()}
    assert {one for one in chosen if before[one] == after[one]} == untouched


@pytest.mark.parametrize("name", ["discard", "run_now", "hand_back", "redrive", "delete_selected", "", "x"])
def test_a_decision_without_permission_is_refused(name: str, places: Places, login: Login) -> None:
    client = login("view_message", "view_delayed", "view_blockedexecution", "view_deadletter")
    response = decide(client, name, places.ready, places.running, places.delayed, places.dead)
    assert response.status_code == 403
    assert Message.objects.filter(pk=places.running.pk, leased_until__isnull=False, discard_requested=False).exists()
    assert Delayed.objects.filter(pk=places.delayed.pk).exists()
    assert DeadLetter.objects.filter(pk=places.dead.pk).exists()


def test_a_page_that_may_not_be_seen_is_not_decided_about(places: Places, login: Login) -> None:
    client = login("view_message", "discard_job", "discard_dead_letter")
    decide(client, "discard", places.delayed, places.parked, places.dead)
    assert Delayed.objects.filter(pk=places.delayed.pk).exists()
    assert BlockedExecution.objects.filter(pk=places.parked.pk).exists()
    assert DeadLetter.objects.filter(pk=places.dead.pk).exists()


# --- one job --------------------------------------------------------------------------------------------


def steps(client: Client, job: Any) -> list[tuple[str, str]]:
    response = client.get(reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk]))
    return [(str(step["text"]), step["detail"]) for step in response.context["pgbus_timeline"]]


def test_the_page_of_a_job_tells_what_happened_in_order(admin_client: Client) -> None:
    worker = rows.a_worker()
    hour_ago = rows.now() - timedelta(hours=1)
    failed = [
        rows.error(
            attempt=attempt,
            worker=str(worker.id),
            started_at=(hour_ago + timedelta(minutes=attempt)).isoformat(),
            failed_at=(hour_ago + timedelta(minutes=attempt, seconds=2)).isoformat(),
        )
        for attempt in (1, 2)
    ]
    said = "after 2.0\xa0s on shop-1: BrokenRow: line 1043: placed_on '1997-02-30' is not a date"
    past = [("Enqueued", ""), ("Attempt 1 failed", said), ("Attempt 2 failed", said)]
    history = {"enqueued_at": hour_ago, "errors": failed, "attempts": 2}
    assert steps(admin_client, rows.a_delayed(reason="retry", **history)) == [
        *past,
        ("Due", "for attempt 3 of 5"),
    ]
    assert steps(admin_client, rows.a_running(worker.id, ready_at=rows.now() - timedelta(seconds=9), **history)) == [
        *past,
        ("In the line", "of queue default"),
        ("Claimed", "on shop-1"),
        ("Its lease ends, unless it is renewed", ""),
    ]
    assert steps(admin_client, rows.a_parked("printer", **history)) == [*past, ("Parked", "behind key printer")]
    assert steps(admin_client, rows.a_dead_letter(worker=worker.id, **history)) == [
        *past,
        ("Its last run began", "on shop-1"),
        ("Gave up", "no attempts left"),
    ]
    assert steps(admin_client, rows.an_archived(worker=worker.id, **history)) == [
        *past,
        ("Its last run began", "on shop-1"),
        ("succeeded", ""),
    ]


@pytest.mark.parametrize("failed_at", ["", "x", None, 7, "2026-01-01T00:00:00", "0001-01-01T00:00:00+00:00"])
def test_a_history_that_was_damaged_by_hand_is_shown_all_the_same(failed_at: Any, admin_client: Client) -> None:
    job = rows.a_delayed(errors=[rows.error(failed_at=failed_at), "x", None, {}])
    assert steps(admin_client, job)[-1][0] == "Due"


def test_the_page_of_a_job_tells_what_it_holds_and_who_is_in_its_way(places: Places, admin_client: Client) -> None:
    def held(job: Any) -> list[tuple[str, str, str]]:
        response = admin_client.get(reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk]))
        return [(str(row["what"]), row["key"], row["holder"]) for row in response.context["pgbus_held"]]

    waits = rows.a_parked("order-17", waits_for="key", semaphore=None)
    assert held(places.ready) == [("Slot 1", "printer", "")]
    assert held(places.delayed) == [("Uniqueness key", "order-17", "")]
    assert held(waits) == [("Uniqueness key", "order-17", str(places.delayed.pk))]
    assert held(places.parked) == [("Slot 1", "printer", str(places.ready.pk))]
    assert held(places.dead) == []


def test_what_is_held_is_told_only_to_whoever_may_see_locks(places: Places, login: Login) -> None:
    client = login("view_message", "view_blockedexecution")
    for job in (places.ready, places.parked):
        response = client.get(reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk]))
        assert response.context["pgbus_held"] == []
