"""What redrive and discard do, how they ask, and the trace they leave."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_pgbus.admin import decisions
from django_pgbus.models import Archived, DeadLetter, Delayed, Message
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


def test_a_request_stops_at_its_limit_and_says_so_before(
    places: Places, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("decisions", "bounds"):
        monkeypatch.setattr(f"django_pgbus.admin.{module}.LIMIT", 30)
    monkeypatch.setattr(decisions, "BATCH", 7)
    for number in range(40):
        rows.a_dead_letter(died_at=rows.now(), payload=rows.payload(number))
    response = select(admin_client, "deadletter", "redrive", select_across=1, index=0)
    assert "Redrive 30 dead letters?" in response.content.decode()
    assert "At most 30 at a time" in response.content.decode()
    response = select(admin_client, "deadletter", "redrive", select_across=1, post="yes")
    assert told(response) == ["30 dead letters were redriven."]
    assert DeadLetter.objects.count() == 11
    assert len(logged()) == 30


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
