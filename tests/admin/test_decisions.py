"""What redrive and discard do, how they ask, and the trace they leave."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_pgbus.admin import decisions, progress
from django_pgbus.admin.lists import NEW_FRAME
from django_pgbus.models import Archived, BlockedExecution, DeadLetter, Delayed, Message
from django_pgbus.tasks import lifecycle
from tests.admin import rows
from tests.admin.conftest import Places

pytestmark = pytest.mark.django_db


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def decide(client: Client, job: Any, decision: str) -> Any:
    return client.post(
        reverse(f"admin:pgbus_{job._meta.model_name}_{decision}", args=[job.pk]), {"post": "yes"}, follow=True
    )


def select(client: Client, model: str, decision: str, jobs: Any = (), *, query: str = "", **data: Any) -> Any:
    path = reverse(f"admin:pgbus_{model}_changelist") + query
    return client.post(
        path, {"action": decision, "_selected_action": [job.pk for job in jobs] or "0", **data}, follow=True
    )


def logged() -> list[tuple[str, str, str]]:
    return [
        (entry.content_type.model, entry.object_id, entry.get_change_message())
        for entry in LogEntry.objects.order_by("pk").select_related("content_type")
        if entry.action_flag == CHANGE
    ]


def test_redrive_puts_a_dead_letter_back_into_the_line_and_shows_it_there(places: Places, admin_client: Client) -> None:
    response = decide(admin_client, places.dead, "redrive")
    job = Message.objects.get(pk=places.dead.pk)
    assert (job.attempts, job.delivery, job.leased_until) == (0, 6, None)
    assert not DeadLetter.objects.exists()
    assert told(response) == ["1 dead letter was redriven."]
    assert response.redirect_chain[-1][0] == reverse("admin:pgbus_message_change", args=[job.pk])
    assert logged() == [("deadletter", str(job.pk), "Redriven.")]


def test_discard_settles_a_dead_letter(places: Places, admin_client: Client) -> None:
    response = decide(admin_client, places.dead, "discard")
    assert Archived.objects.get(pk=places.dead.pk).outcome == "discarded"
    assert not DeadLetter.objects.exists()
    assert told(response) == ["1 dead letter was discarded."]
    assert logged() == [("deadletter", str(places.dead.pk), "Discarded.")]


@pytest.mark.parametrize("which", ["ready", "delayed"])
def test_discard_settles_what_waits(which: str, places: Places, admin_client: Client) -> None:
    job = getattr(places, which)
    response = decide(admin_client, job, "discard")
    assert Archived.objects.get(pk=job.pk).outcome == "discarded"
    assert told(response) == ["1 job was discarded."]
    assert logged() == [(job._meta.model_name, str(job.pk), "Discarded.")]


def test_discard_marks_what_runs(places: Places, admin_client: Client) -> None:
    response = decide(admin_client, places.running, "discard")
    assert Message.objects.get(pk=places.running.pk).discard_requested
    assert told(response) == ["1 job is running: its worker is told with its next beat."]
    assert logged() == [("message", str(places.running.pk), "Discard requested while it ran.")]
    assert "discarding" in response.content.decode()


def test_a_confirmation_names_the_number_and_the_jobs(places: Places, admin_client: Client) -> None:
    letters = [places.dead, *(rows.a_dead_letter() for _ in range(24))]
    response = select(admin_client, "deadletter", "redrive", letters, index=0)
    text = response.content.decode()
    assert "Redrive 25 dead letters?" in text
    assert f"#{letters[-1].pk}" in text
    assert "… and 5 more" in text
    response = select(admin_client, "deadletter", "redrive", letters, post="yes")
    assert told(response) == ["25 dead letters were redriven."]
    assert Message.objects.filter(pk__in=[letter.pk for letter in letters]).count() == 25
    assert len(logged()) == 25


def test_mixed_outcomes_are_told_apart(places: Places, admin_client: Client) -> None:
    left = rows.a_message()
    chosen = [places.ready, places.running, left]
    select(admin_client, "message", "discard", chosen, index=0)
    Message.objects.filter(pk=left.pk).delete()
    response = select(admin_client, "message", "discard", chosen, post="yes")
    assert told(response) == [
        "1 job was discarded.",
        "1 job is running: its worker is told with its next beat.",
        "1 of the chosen jobs had left before and was not touched.",
    ]


def test_one_that_left_between_reading_and_deciding_is_named(
    places: Places, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    discard = lifecycle.discard

    def meanwhile(ids: Any) -> Any:
        Message.objects.filter(pk=places.ready.pk).delete()
        return discard(ids)

    monkeypatch.setattr(lifecycle, "discard", meanwhile)
    response = select(admin_client, "message", "discard", [places.ready], post="yes")
    assert told(response) == ["1 job had left before and was not touched."]
    assert logged() == []


def test_nothing_left_is_said(places: Places, admin_client: Client) -> None:
    DeadLetter.objects.all().delete()
    response = select(admin_client, "deadletter", "redrive", [places.dead], post="yes")
    assert told(response) == ["Nothing was changed: the jobs are not here any more."]


def test_a_decision_about_one_that_moved_leads_to_where_it_is(places: Places, admin_client: Client) -> None:
    lifecycle.redrive([places.dead.pk])
    response = decide(admin_client, places.dead, "discard")
    assert response.redirect_chain[-1][0] == reverse("admin:pgbus_message_change", args=[places.dead.pk])
    assert told(response) == [f"Job {places.dead.pk} is in the line."]
    assert not Archived.objects.filter(pk=places.dead.pk).exists()


def test_selected_across_pages_keeps_to_the_filter(places: Places, admin_client: Client) -> None:
    mails = [rows.a_dead_letter(queue="mail") for _ in range(60)]
    response = select(admin_client, "deadletter", "discard", query="?queue=mail", select_across=1, index=0)
    text = response.content.decode()
    assert "Discard 60 dead letters?" in text
    seen = text.split('name="seen" value="')[1].split('"')[0]
    select(admin_client, "deadletter", "discard", query="?queue=mail", select_across=1, post="yes", seen=seen)
    assert Archived.objects.filter(outcome="discarded").count() == len(mails)
    assert DeadLetter.objects.get() == places.dead


def test_what_came_after_the_confirmation_is_not_touched(places: Places, admin_client: Client) -> None:
    text = select(admin_client, "deadletter", "redrive", select_across=1, index=0).content.decode()
    seen = text.split('name="seen" value="')[1].split('"')[0]
    later = rows.a_dead_letter(died_at=rows.now())
    select(admin_client, "deadletter", "redrive", select_across=1, post="yes", seen=seen)
    assert DeadLetter.objects.get() == later


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request carry out thirty, seven per transaction."""
    for module in ("decisions", "bounds"):
        monkeypatch.setattr(f"django_pgbus.admin.{module}.LIMIT", 30)
    monkeypatch.setattr(decisions, "BATCH", 7)


def fields(response: Any) -> dict[str, str]:
    """Return the hidden fields of the form on a page."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', response.content.decode())
    return {name: unescape(value) for name, value in found if name != "csrfmiddlewaretoken"}


def test_more_than_a_request_carries_out_goes_on_in_parts(places: Places, admin_client: Client, small: None) -> None:
    for number in range(70):
        rows.a_dead_letter(died_at=rows.now(), payload=rows.payload(number))
    path = reverse("admin:pgbus_deadletter_changelist")
    if not NEW_FRAME:
        # What the planner believes, if another test let it count many.
        assert re.search(r"Select all dead letters \((30\+|about [\d,]+)\)", admin_client.get(path).content.decode())
    response = select(admin_client, "deadletter", "redrive", select_across=1, index=0)
    text = response.content.decode()
    assert "Redrive 71 dead letters?" in text
    assert "They are taken 30 at a time." in text
    later = rows.a_dead_letter(died_at=rows.now() + timedelta(seconds=1))
    said = []
    while not said or "Continue" in text:
        response = admin_client.post(path, fields(response))
        text = response.content.decode()
        said.append(response.context["progress"].text)
        assert DeadLetter.objects.filter(pk=later.pk).exists(), "it came after the person looked"
    assert said == ["30 of 71 done.", "60 of 71 done.", "Finished: 71 done."]
    assert DeadLetter.objects.get() == later
    assert told(response) == []


def test_in_parts_the_log_has_an_entry_for_each_transaction_that_names_all(
    places: Places, admin_client: Client, small: None
) -> None:
    ids = sorted([places.dead.pk, *(rows.a_dead_letter(died_at=rows.now()).pk for _ in range(39))])
    left = ids.pop(20)
    response = select(admin_client, "deadletter", "discard", select_across=1, index=0)
    DeadLetter.objects.filter(pk=left).delete()
    response = admin_client.post(reverse("admin:pgbus_deadletter_changelist"), fields(response))
    response = admin_client.post(reverse("admin:pgbus_deadletter_changelist"), fields(response))
    assert response.context["progress"].text == "Finished: 39 done."
    entries = LogEntry.objects.order_by("pk")
    assert len(entries) == 7  # of 7, 7, 7, 7, 2 and of 7, 2
    named = [id for entry in entries for id in spread(entry.get_change_message().rpartition(": ")[2])]
    assert named == ids
    assert entries[0].get_change_message().startswith("Discarded. 7 jobs: ")
    assert {(entry.object_id, entry.user.username, entry.content_type.model) for entry in entries} == {
        (None, "admin", "deadletter")
    }
    assert "Discarded" not in admin_client.get(reverse("admin:index")).content.decode()
    assert "7 jobs, from" in admin_client.get(reverse("admin:index")).content.decode()


def spread(text: str) -> list[int]:
    ends = [[int(end) for end in part.split("-")] for part in text.split(", ")]
    return [id for end in ends for id in range(end[0], end[-1] + 1)]


def test_what_is_left_as_it_was_is_counted_and_not_tried_again(
    places: Places, admin_client: Client, small: None
) -> None:
    rows.a_lock(places.ready.pk, "held")
    bound = rows.constraints(unique="held")
    for number in range(40):
        rows.a_dead_letter(died_at=rows.now(), constraints=bound if number % 10 == 0 else None)
    path = reverse("admin:pgbus_deadletter_changelist")
    response = select(admin_client, "deadletter", "redrive", select_across=1, index=0)
    for _ in range(2):
        response = admin_client.post(path, fields(response))
    so_far = response.context["progress"]
    assert (so_far.text, so_far.left_text) == ("Finished: 37 done.", "4 were left as they were.")
    assert DeadLetter.objects.count() == 4


@pytest.mark.parametrize("field", ["total", "done", "left", "after"])
@pytest.mark.parametrize("value", ["", "x", "-1", "99999999999999999999", "\x00"])
def test_a_form_that_was_tampered_with_is_no_error(
    field: str, value: str, places: Places, admin_client: Client, small: None
) -> None:
    data = {"action": "discard", "_selected_action": 0, "select_across": 1, "post": "yes", "seen": "nonsense"}
    data |= {"total": "1", "done": "0", "left": "0", "after": "0", field: value}
    response = admin_client.post(reverse("admin:pgbus_deadletter_changelist"), data, follow=True)
    assert response.status_code == 200


def test_more_than_a_million_are_said_to_be_about_so_many(
    places: Places, admin_client: Client, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MOST_COUNTED", 50)
    monkeypatch.setattr(progress, "estimated", lambda model: 1_230_000)
    for number in range(60):
        rows.a_dead_letter(died_at=rows.now(), payload=rows.payload(number))
    response = select(admin_client, "deadletter", "discard", select_across=1, index=0)
    text = response.content.decode()
    assert "Discard 1,230,000 dead letters?" in text
    assert "Their number is an estimate." in text
    response = admin_client.post(reverse("admin:pgbus_deadletter_changelist"), fields(response))
    assert response.context["progress"].text == "30 of about 1,230,000 done."


@pytest.mark.parametrize(
    ("ids", "told"), [([], []), ([1], ["1"]), ([1, 2, 3], ["1-3"]), ([1, 3, 4, 9], ["1", "3-4", "9"])]
)
def test_ids_are_named_in_runs(ids: list[int], told: list[str]) -> None:
    assert list(progress._runs(ids)) == told


# --- run now and hand back ----------------------------------------------------------------------------


def test_run_now_puts_a_delayed_job_into_the_line(places: Places, admin_client: Client) -> None:
    response = decide(admin_client, places.delayed, "run_now")
    assert Message.objects.filter(pk=places.delayed.pk).exists()
    assert told(response) == ["1 job stands in the line now."]
    assert response.redirect_chain[-1][0] == reverse("admin:pgbus_message_change", args=[places.delayed.pk])
    assert logged() == [("delayed", str(places.delayed.pk), "Run now.")]


def test_run_now_lets_a_parked_job_ask_for_its_slot(admin_client: Client) -> None:
    rows.a_limit()
    rows.a_slot(10**9)
    later, now = rows.a_parked(due_at=rows.now() + timedelta(hours=1)), rows.a_parked()
    response = select(admin_client, "blockedexecution", "run_now", [later, now], post="yes")
    assert told(response) == [
        "1 job does not wait for its time any more, and is let in when there is room.",
        "1 job was not waiting for its time and was not touched.",
    ]
    assert BlockedExecution.objects.get(pk=later.pk).due_at is None
    assert logged() == [("blockedexecution", str(later.pk), "Run now.")]


def test_hand_back_takes_a_running_job_from_its_worker(places: Places, admin_client: Client) -> None:
    path = reverse("admin:pgbus_message_hand_back", args=[places.running.pk])
    text = admin_client.get(path).content.decode()
    assert "Hand back 1 running job?" in text
    assert "it may go on beside the new run" in text
    response = decide(admin_client, places.running, "hand_back")
    job = Message.objects.get(pk=places.running.pk)
    assert (job.leased_until, job.delivery, job.attempts) == (None, 2, 0)
    assert told(response) == ["1 job was taken from its worker and stands in the line again."]
    assert logged() == [("message", str(job.pk), "Handed back while it ran.")]


def test_a_run_that_began_after_the_person_looked_is_not_handed_back(places: Places, admin_client: Client) -> None:
    path = reverse("admin:pgbus_message_hand_back", args=[places.running.pk])
    data = fields(admin_client.get(path))
    Message.objects.filter(pk=places.running.pk).update(claimed_at=rows.now() + timedelta(seconds=1), delivery=2)
    response = admin_client.post(path, data, follow=True)
    assert Message.objects.get(pk=places.running.pk).leased_until is not None
    assert "claimed anew" in told(response)[0]
    assert logged() == []


def test_a_button_stands_only_where_it_means_something(places: Places, admin_client: Client) -> None:
    later = rows.a_parked(due_at=rows.now() + timedelta(hours=1))
    for job, offered in (
        (places.ready, {"discard"}),
        (places.running, {"discard", "hand_back"}),
        (places.delayed, {"discard", "run_now"}),
        (places.parked, {"discard"}),
        (later, {"discard", "run_now"}),
        (places.dead, {"discard", "redrive"}),
        (places.archived, set()),
    ):
        path = reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk])
        text = admin_client.get(path).content.decode()
        assert {name for name in ("discard", "hand_back", "run_now", "redrive") if f"/{name}/" in text} == offered


@pytest.mark.proves("no-decision-without-its-log-entry")
def test_without_its_log_entry_nothing_is_done(
    places: Places, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no log")

    monkeypatch.setattr(type(LogEntry.objects), "log_actions", refuse)
    with pytest.raises(RuntimeError):
        decide(admin_client, places.dead, "redrive")
    assert DeadLetter.objects.filter(pk=places.dead.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_a_batch_is_one_transaction(places: Places, admin_client: Client) -> None:
    depth: list[int] = []

    def look(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        if "INSERT INTO pgbus_messages" in sql or "django_admin_log" in sql:
            depth.append(len(connection.savepoint_ids) + connection.in_atomic_block)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look):
        decide(admin_client, places.dead, "redrive")
    assert len(depth) >= 2
    assert all(depth)


def test_the_log_of_a_moved_job_leads_to_where_it_is(places: Places, admin_client: Client) -> None:
    decide(admin_client, places.dead, "redrive")
    (entry,) = LogEntry.objects.all()
    response = admin_client.get(entry.get_admin_url(), follow=True)
    assert response.redirect_chain[-1][0] == reverse("admin:pgbus_message_change", args=[places.dead.pk])


def test_a_job_that_is_nowhere_is_said_to_be_missing(admin_client: Client) -> None:
    for pk in ("4711", "x", "99999999999999999999999", "-1"):
        response = admin_client.get(reverse("admin:pgbus_message_change", args=[pk]), follow=True)
        assert "exist. Perhaps it was deleted?" in told(response)[0]


def test_delayed_jobs_are_discarded_from_their_list(places: Places, admin_client: Client) -> None:
    select(admin_client, "delayed", "discard", [places.delayed], post="yes")
    assert not Delayed.objects.exists()
