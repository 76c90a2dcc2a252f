"""Parked jobs: found by their key, explained, discarded like any other; and dead letters that cannot be redriven."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_pgbus.models import Archived, BlockedExecution, DeadLetter, Message, QueueState
from tests.admin import rows
from tests.admin.conftest import Places
from tests.admin.test_decisions import decide, select, told
from tests.admin.test_lists import found, listed, states
from tests.constrained import enqueue, one, one_or_error, run, unique
from tests.line import give_up, state

pytestmark = pytest.mark.django_db
MODEL = "blockedexecution"


def page(client: Client, job: Any) -> str:
    response = client.get(reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk]))
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def test_who_waits_longest_stands_first(admin_client: Client) -> None:
    ids = [rows.a_parked(parked_at=rows.now() - timedelta(minutes=ago)).pk for ago in (2, 9, 5)]
    assert found(admin_client, MODEL) == [ids[1], ids[2], ids[0]]
    assert found(admin_client, MODEL, o="1") == ids


def test_of_one_key_who_is_let_in_first_stands_first(admin_client: Client) -> None:
    later = rows.a_parked(priority=9, due_at=rows.now() + timedelta(hours=1)).pk
    old, urgent, young = rows.a_parked().pk, rows.a_parked(priority=5).pk, rows.a_parked().pk
    rows.a_parked("other")
    rows.a_parked("printer", waits_for="key")
    assert found(admin_client, MODEL, key="printer", waits_for="semaphore") == [urgent, old, young, later]


def test_a_key_and_a_queue_narrow_the_list(admin_client: Client) -> None:
    slot = rows.a_parked("a").pk
    key = rows.a_parked("a", waits_for="key", queue="mail").pk
    rows.a_parked("b")
    rows.a_message(queue="mail")
    assert sorted(found(admin_client, MODEL, key="a")) == [slot, key]
    assert found(admin_client, MODEL, waits_for="key") == [key]
    assert found(admin_client, MODEL, queue="mail") == [key]
    assert found(admin_client, MODEL, key="no such") == []
    names = [spec.title for spec in listed(admin_client, MODEL, key="a").filter_specs]
    assert [str(name) for name in names] == ["waits for", "key", "queue"]


def test_nonsense_is_no_error(admin_client: Client) -> None:
    for query in ("key=%00", "waits_for=x", "waits_for=%00", "key=&waits_for=", "o=9.-1"):
        response = admin_client.get(reverse(f"admin:pgbus_{MODEL}_changelist") + f"?{query}", follow=True)
        assert response.status_code == 200
    for query in ("semaphore=a", "constraints__contains=a", "parked_at__gt=1"):
        assert admin_client.get(reverse(f"admin:pgbus_{MODEL}_changelist") + f"?{query}").status_code == 400


def test_nothing_is_sorted_that_has_no_index(places: Places, admin_client: Client) -> None:
    for index in range(1, 9):
        ordering = listed(admin_client, MODEL, o=str(index)).queryset.query.order_by
        assert set(ordering) <= {"id", "-pk", "parked_at"}


def test_it_says_what_it_waits_for(admin_client: Client) -> None:
    QueueState.objects.create(queue="paused", paused_at=rows.now())
    rows.a_worker()
    jobs = {
        "waits for a slot": rows.a_parked(),
        "waits for its key": rows.a_parked(waits_for="key"),
        "queue paused": rows.a_parked(queue="paused"),
        "not due yet": rows.a_parked(due_at=rows.now() + timedelta(hours=1)),
        "due": rows.a_parked(due_at=rows.now() - timedelta(seconds=1)),
    }
    assert states(admin_client, MODEL) == {job.pk: state for state, job in jobs.items()}
    assert "Another job that is running, or a batch, holds its key." in page(admin_client, jobs["waits for its key"])


def test_its_page_shows_what_constrains_it(admin_client: Client) -> None:
    rows.a_slot(rows.a_message().pk)
    bound = rows.constraints(unique="order-17", limit="printer", to=3)
    job = rows.a_parked(constraints=bound)
    text = page(admin_client, job)
    assert (
        '<code class="pgbus-key">order-17</code> <span class="pgbus-quiet">at most one until it is executed</span>'
        in text
    )
    assert "at most 3 at once; one that runs and is silent for 15 min 0 s is presumed dead" in text
    assert reverse("admin:pgbus_semaphore_changelist", query={"q": "printer"}) in text
    assert "Constraints" not in page(admin_client, rows.a_message())
    assert "order-17" in page(admin_client, rows.a_message(constraints=bound))


def test_a_key_that_is_stored_as_its_hash_is_shown_as_it_was_chosen(admin_client: Client) -> None:
    bound = rows.constraints(limit="sha256:0").replace('"name": ""', '"name": "order of the long name"')
    job = rows.a_parked("sha256:0", constraints=bound)
    assert "order of the long name" in page(admin_client, job)


def test_damaged_constraints_are_no_error(admin_client: Client) -> None:
    for damaged in ("[]", '{"limit": {"x": 1}}', "7"):
        assert page(admin_client, rows.a_parked(constraints=damaged))


def test_a_parked_job_is_discarded_like_any_other(places: Places, admin_client: Client) -> None:
    response = decide(admin_client, places.parked, "discard")
    assert Archived.objects.get(pk=places.parked.pk).outcome == "discarded"
    assert told(response) == ["1 job was discarded."]
    assert LogEntry.objects.get().get_change_message() == "Discarded."
    many = [rows.a_parked().pk for _ in range(3)]
    text = select(admin_client, MODEL, "discard", BlockedExecution.objects.all(), index=0).content.decode()
    assert "Discard 3 jobs?" in text
    select(admin_client, MODEL, "discard", BlockedExecution.objects.all(), post="yes")
    assert Archived.objects.filter(pk__in=many).count() == 3


def test_selected_across_pages_spares_what_was_parked_since(places: Places, admin_client: Client) -> None:
    text = select(admin_client, MODEL, "discard", select_across=1, index=0).content.decode()
    seen = text.split('name="seen" value="')[1].split('"')[0]
    later = rows.a_parked(enqueued_at=rows.now() - timedelta(days=1))
    select(admin_client, MODEL, "discard", select_across=1, post="yes", seen=seen)
    assert BlockedExecution.objects.get() == later


def test_a_job_that_is_parked_is_found_from_the_other_pages(places: Places, admin_client: Client) -> None:
    pk = places.parked.pk
    response = admin_client.get(reverse("admin:pgbus_message_change", args=[pk]), follow=True)
    assert response.redirect_chain[-1][0] == reverse(f"admin:pgbus_{MODEL}_change", args=[pk])
    assert told(response) == [f"Job {pk} is parked."]
    text = admin_client.get(
        reverse("admin:pgbus_message_changelist", query={"q": pk, "state": "ready"})
    ).content.decode()
    assert f"Job {pk} is parked." in text


def test_the_index_counts_the_parked_and_leads_to_them(places: Places, admin_client: Client) -> None:
    rows.a_parked("u", waits_for="key", parked_at=rows.now() - timedelta(minutes=7))
    text = " ".join(admin_client.get(reverse("admin:app_list", args=["pgbus"])).content.decode().split())
    assert "<strong>2</strong> parked" in text
    assert "oldest for 7 min" in text
    assert f'href="{reverse(f"admin:pgbus_{MODEL}_changelist")}"' in text


# --- redrive ------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_redrive_that_is_refused_says_why(admin_client: Client) -> None:
    held, full, free = enqueue(unique, "a"), enqueue(one_or_error, "b"), enqueue(one, "c")
    for _ in range(3):
        give_up(run(limit=1))
    holder = enqueue(unique, "a")
    letters = DeadLetter.objects.filter(pk__in=[held, full, free])
    response = select(admin_client, "deadletter", "redrive", letters, post="yes")
    assert told(response) == [
        "2 dead letters were redriven.",
        f"Dead letter {held} stays: {holder} holds its key a.",
    ]
    assert (state(held), Message.objects.filter(pk=free).count()) == ("dead", 1)


@pytest.mark.django_db(transaction=True)
def test_a_redrive_that_finds_no_slot_says_so_and_stays_on_its_page(admin_client: Client) -> None:
    first = enqueue(one_or_error, "a")
    give_up(run())
    enqueue(one_or_error, "a")
    response = decide(admin_client, DeadLetter.objects.get(), "redrive")
    assert told(response) == [
        f"Dead letter {first} stays: 1 job of its key a is allowed at once, and is running or waiting."
    ]
    assert response.redirect_chain[-1][0] == reverse("admin:pgbus_deadletter_change", args=[first])
    assert LogEntry.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_many_refusals_are_counted_and_the_first_ones_explained(admin_client: Client) -> None:
    enqueue(unique, "a")
    bound = rows.constraints(unique="a")
    letters = [rows.a_dead_letter(constraints=bound) for _ in range(13)]
    said = told(select(admin_client, "deadletter", "redrive", letters, post="yes"))
    assert len(said) == 11
    assert said[-1] == "3 more dead letters stay for such reasons."


def test_a_holder_whose_worker_fell_silent_does_not_beat(admin_client: Client) -> None:
    rows.a_limit()
    holder = rows.a_running()
    rows.a_beating_slot(holder.pk)
    waits = rows.a_parked()
    assert "beats until" in page(admin_client, waits)
    Message.objects.filter(pk=holder.pk).update(leased_until=rows.now() - timedelta(minutes=1))
    for job in (waits, holder):
        text = page(admin_client, job)
        assert "beats until" not in text
        assert "silent since" in text
