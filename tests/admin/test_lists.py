"""Lists: what they find, how they say how a job stands, and what they refuse to ask the database."""

from __future__ import annotations

import html
import shlex
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_pgbus.admin import bounds
from django_pgbus.models import QueueState
from tests.admin import rows
from tests.admin.conftest import Login, Places

pytestmark = pytest.mark.django_db


def listed(client: Client, model: str, **query: Any) -> Any:
    if model == "message" and query.keys() <= {"q"}:
        query["o"] = "-1"  # the line by itself: without a filter the page is that of all jobs
    response = client.get(reverse(f"admin:pgbus_{model}_changelist", query=query))
    assert response.status_code == 200
    return response.context["cl"]


def found(client: Client, model: str, **query: Any) -> list[int]:
    return [job.pk for job in listed(client, model, **query).result_list]


def states(client: Client, model: str, **query: Any) -> dict[int, str]:
    return {job.pk: str(job.standing.state) for job in listed(client, model, **query).result_list}


def test_the_newest_stand_first(admin_client: Client) -> None:
    jobs = [rows.a_message().pk for _ in range(3)]
    assert found(admin_client, "message") == jobs[::-1]
    assert found(admin_client, "message", o="1") == jobs
    for make, model, field in (
        (rows.an_archived, "archived", "finished_at"),
        (rows.a_dead_letter, "deadletter", "died_at"),
    ):
        ended = [make(**{field: rows.now() - timedelta(minutes=ago)}).pk for ago in (2, 1, 3)]
        assert found(admin_client, model) == [ended[1], ended[0], ended[2]]


def test_running_and_ready_are_told_apart(places: Places, admin_client: Client) -> None:
    assert found(admin_client, "message", state="running") == [places.running.pk]
    assert found(admin_client, "message", state="ready") == [places.ready.pk]
    assert found(admin_client, "message", state="nonsense") == []


def test_a_queue_is_chosen_among_those_known(places: Places, admin_client: Client) -> None:
    mail = {
        "message": rows.a_message(queue="mail"),
        "delayed": rows.a_delayed(queue="mail"),
        "archived": rows.an_archived(queue="mail"),
        "deadletter": rows.a_dead_letter(queue="mail"),
    }
    for model, job in mail.items():
        assert found(admin_client, model, queue="mail") == [job.pk]
        assert found(admin_client, model, queue="no such") == []
        spec = listed(admin_client, model).filter_specs[-1]
        assert [value for value, _ in spec.lookup_choices] == ["default", "mail"]


@pytest.mark.parametrize(
    ("model", "field", "make"),
    [
        ("delayed", "reason", rows.a_delayed),
        ("archived", "outcome", rows.an_archived),
        ("deadletter", "reason", rows.a_dead_letter),
    ],
)
def test_a_choice_finds_its_rows(model: str, field: str, make: Any, admin_client: Client) -> None:
    choices = {"delayed": ["retry", "snoozed"], "archived": ["succeeded", "discarded"]}.get(
        model, ["exhausted", "gave_up"]
    )
    jobs = {value: make(**{field: value}).pk for value in choices}
    for value, pk in jobs.items():
        assert found(admin_client, model, **{field: value}) == [pk]


def test_a_search_is_for_an_id_or_part_of_a_path(places: Places, admin_client: Client) -> None:
    charge = rows.a_message(task="tests.admin.tasks.charge")
    assert found(admin_client, "message", q=str(charge.pk)) == [charge.pk]
    assert found(admin_client, "message", q=" CHARGE ") == [charge.pk]
    assert found(admin_client, "message", q="99999999999999999999") == []
    assert found(admin_client, "message", q="  ") == [charge.pk, places.running.pk, places.ready.pk]


def test_a_search_for_the_id_of_a_job_elsewhere_says_where(places: Places, admin_client: Client, login: Login) -> None:
    path = reverse("admin:pgbus_message_changelist", query={"q": places.dead.pk, "state": "ready"})
    text = admin_client.get(path).content.decode()
    assert f"Job {places.dead.pk} is a dead letter." in text
    assert reverse("admin:pgbus_deadletter_change", args=[places.dead.pk]) in text
    assert "is a dead letter" not in login("view_message").get(path).content.decode()


@pytest.mark.parametrize(
    "query",
    ["payload__contains=tok", "payload=1", "errors__0__traceback__contains=x", "task=x", "id__gt=1", "worker=x", "x=y"],
)
def test_nothing_but_our_filters_may_be_asked(query: str, places: Places, admin_client: Client) -> None:
    for model in ("message", "delayed", "archived", "deadletter"):
        response = admin_client.get(reverse(f"admin:pgbus_{model}_changelist") + f"?{query}")
        assert response.status_code == 400


@pytest.mark.parametrize(
    "query", ["queue=%00", "q=%00", "state=%00", "p=x", "p=-1", "p=99", "o=99.x.-3", "e=1", "all="]
)
def test_nonsense_is_no_error(query: str, places: Places, admin_client: Client) -> None:
    response = admin_client.get(reverse("admin:pgbus_message_changelist") + f"?{query}", follow=True)
    assert response.status_code == 200


def test_nothing_is_sorted_that_has_no_index(places: Places, admin_client: Client) -> None:
    for model in ("message", "delayed", "archived", "deadletter"):
        columns = listed(admin_client, model).list_display
        for index in range(1, len(columns)):
            ordering = listed(admin_client, model, o=str(index)).queryset.query.order_by
            assert set(ordering) <= {"id", "-pk", "-id", "-finished_at", "finished_at", "-died_at", "died_at"}, columns[
                index
            ]


def test_heavy_columns_stay_in_the_database(places: Places, admin_client: Client) -> None:
    for model in ("message", "delayed", "archived", "deadletter"):
        for job in listed(admin_client, model).result_list:
            assert {"payload", "errors"} <= job.get_deferred_fields()


def test_a_job_in_line_says_how_it_stands(admin_client: Client) -> None:
    QueueState.objects.create(queue="paused", paused_at=rows.now(), paused_by="anna")
    worker = rows.a_worker(queues="default,paused: 10")
    jobs = {
        "ready": rows.a_message(),
        "queue paused": rows.a_message(queue="paused"),
        "no worker": rows.a_message(queue="unserved"),
        "running": rows.a_running(worker.id),
        "discarding": rows.a_running(worker.id, discard_requested=True),
        "worker silent": rows.a_running(uuid.uuid4(), leased_until=rows.now() - timedelta(seconds=1)),
    }
    assert states(admin_client, "message") == {job.pk: state for state, job in jobs.items()}


def test_its_page_says_how_to_start_a_worker_for_it(admin_client: Client) -> None:
    page = reverse("admin:pgbus_message_change", args=[rows.a_message(queue="it's urgent").pk])
    assert "Start one: <code>manage.py runworker</code>" in admin_client.get(page).content.decode()
    rows.a_worker(queues="mail: 4")
    text = html.unescape(admin_client.get(page).content.decode())
    assert f"""Start one: <code>manage.py runworker --queues {shlex.quote("it's urgent")}</code>""" in text
    rows.a_worker()
    assert "Start one:" not in admin_client.get(page).content.decode()


def test_a_job_of_a_silent_worker_runs_again_only_where_somebody_serves_its_queue(admin_client: Client) -> None:
    job = rows.a_running(uuid.uuid4(), leased_until=rows.now() - timedelta(seconds=1))
    page = reverse("admin:pgbus_message_change", args=[job.pk])
    text = admin_client.get(page).content.decode()
    assert "Its lease ended: its worker fell silent" in text
    assert "unless it is renewed" not in text
    assert "no other serves queue default. The job runs again as soon as one does." in text
    assert "Start one: <code>manage.py runworker</code>" in text
    rows.a_worker()
    text = admin_client.get(page).content.decode()
    assert "The job goes back into the line and runs again." in text
    type(job).objects.update(discard_requested=True)
    assert "The job is discarded and does not run again." in admin_client.get(page).content.decode()


def test_its_page_says_why_it_waits_and_what_goes_first(admin_client: Client) -> None:
    for _ in range(3):
        rows.a_message()
    urgent = rows.a_message(priority=5)
    last = rows.a_message()
    text = admin_client.get(reverse("admin:pgbus_message_change", args=[last.pk])).content.decode()
    assert "No worker is running." in text
    assert "4 jobs of its queue go first" in text
    rows.a_worker()
    text = admin_client.get(reverse("admin:pgbus_message_change", args=[urgent.pk])).content.decode()
    assert "the next of its queue" in text
    assert "The next free worker takes it when its turn comes." in text


def test_what_is_delayed_says_what_it_waits_for(admin_client: Client) -> None:
    jobs = {
        "scheduled": rows.a_delayed(),
        "retrying": rows.a_delayed(reason="retry"),
        "snoozed": rows.a_delayed(reason="snoozed"),
        "overdue": rows.a_delayed(due_at=rows.now() - timedelta(minutes=1)),
    }
    assert states(admin_client, "delayed") == {job.pk: state for state, job in jobs.items()}
    rows.a_worker()
    assert states(admin_client, "delayed")[jobs["overdue"].pk] == "due"


def test_a_dead_letter_says_what_killed_it(admin_client: Client) -> None:
    rows.a_dead_letter()
    text = admin_client.get(reverse("admin:pgbus_deadletter_changelist")).content.decode()
    assert "BrokenRow: line 1043: placed_on &#x27;1997-02-30&#x27; is not a date" in text
    assert "no attempts left, after 5 attempts" in text


def test_a_filter_without_an_index_looks_at_the_newest_and_says_so(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_pgbus.admin.base.REACH", 3)
    monkeypatch.setattr("django_pgbus.admin.lists.REACH", 3)
    jobs = [
        rows.an_archived(outcome="discarded", finished_at=rows.now() - timedelta(minutes=ago)).pk for ago in range(6)
    ]
    assert found(admin_client, "archived", outcome="discarded") == jobs[:4]
    assert found(admin_client, "archived", q=str(jobs[-1])) == jobs[-1:]
    text = admin_client.get(reverse("admin:pgbus_archived_changelist", query={"q": "order"})).content.decode()
    assert "Searched are the newest 3." in text
    text = admin_client.get(reverse("admin:pgbus_archived_changelist")).content.decode()
    assert "Searched are" not in text


def test_beyond_the_limit_numbers_are_estimated_and_pages_end(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LIMIT", 120)
    for number in range(130):
        rows.a_message(payload=rows.payload(number))
    listing = listed(admin_client, "message")
    assert listing.result_count == 120
    # What the planner believes, if autovacuum has just counted what another test left for a moment.
    assert listing.shown == "120+" or listing.shown.startswith("about ")
    assert listing.paginator.num_pages == 3
    monkeypatch.setattr(bounds.ESTIMATE.__class__, "row", lambda self, **_: type("Row", (), {"number": 1_234_567.0}))
    paginator = bounds.BoundedPaginator(listing.root_queryset, 50)
    assert paginator.shown == "about 1,230,000"


def test_empty_lists_say_so(admin_client: Client) -> None:
    for model in ("message", "delayed", "archived", "deadletter"):
        path = reverse(f"admin:pgbus_{model}_changelist")
        assert "There is nothing here." in admin_client.get(path).content.decode()
        assert "Nothing matches." in admin_client.get(path + "?q=x").content.decode()
