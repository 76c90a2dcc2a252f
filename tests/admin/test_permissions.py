"""Who may open and do what: every URL of every page, every method, every permission by itself."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.core import serializers
from django.test import Client
from django.urls import reverse

from django_pgbus.admin import PAGES
from django_pgbus.models import (
    Archived,
    Batch,
    BatchCount,
    BlockedExecution,
    ConsumerGroup,
    Cursor,
    DeadLetter,
    Delayed,
    EntryException,
    Level,
    Message,
    QueueState,
    RangeLease,
    RunCount,
    Semaphore,
    Slot,
    StreamLog,
    Subscription,
    UniquenessKey,
    Worker,
)
from tests.admin.conftest import Login, Places
from tests.admin.permissions import DECISIONS, VIEWS

pytestmark = pytest.mark.django_db

TABLES = [
    Message,
    Delayed,
    Archived,
    DeadLetter,
    BlockedExecution,
    Batch,
    BatchCount,
    Semaphore,
    Slot,
    UniquenessKey,
    Subscription,
    StreamLog,
    ConsumerGroup,
    Cursor,
    RangeLease,
    EntryException,
    QueueState,
    Level,
    Worker,
    RunCount,
]
METHODS = ["get", "head", "options", "post", "put", "patch", "delete"]
NOBODY = "nobody"  # reads, writes, adds or deletes here, whoever it is

LOCKS = ("semaphore", "changelist")  # seen with either of two permissions
ALL = sorted({*VIEWS.values(), *DECISIONS.values(), "view_uniquenesskey", "view_slot", "view_processedevent"})


def urls() -> list[tuple[str, str]]:
    """Return (model, view) of every named URL that the pages register."""
    return [
        (model._meta.model_name, pattern.name.removeprefix(f"pgbus_{model._meta.model_name}_"))
        for model in PAGES
        for pattern in admin.site.get_model_admin(model).urls
        if pattern.name
    ]


def address(model: str, view: str, places: Places) -> str:
    if view in {"changelist", "add"}:
        return reverse(f"admin:pgbus_{model}_{view}")
    if model == "semaphore":
        held = places.lock if view == "discard_lock" else places.semaphore
        return reverse(f"admin:pgbus_{model}_{view}", query={"key": held.key, "job": places.lock.message_id})
    if model == "subscription":
        bound = places.subscription
        return reverse(f"admin:pgbus_{model}_{view}", query={"handler": bound.handler, "pattern": bound.pattern})
    if model == "streamlog" and (model, view) in DECISIONS:
        about = {"stream": places.stream.pk, "group": "totals", "entry": places.failed.pk, "to": "beginning"}
        return reverse(f"admin:pgbus_{model}_{view}", query=about)
    if view == "entry":
        return reverse(f"admin:pgbus_{model}_{view}", args=[places.stream.pk, places.failed.pk])
    keys = {
        "message": places.ready.pk,
        "delayed": places.delayed.pk,
        "archived": places.archived.pk,
        "deadletter": places.dead.pk,
        "blockedexecution": places.parked.pk,
        "batch": places.batch.pk,
        "streamlog": places.stream.pk,
        "queuestate": "default",
    }
    return reverse(f"admin:pgbus_{model}_{view}", args=[keys[model]])


def needed(model: str, view: str) -> set[str]:
    if view in {"add", "delete"}:
        return {NOBODY}
    if view == "discard_lock":
        return {"view_uniquenesskey", "discard_lock"}
    return {VIEWS[model], *({DECISIONS[model, view]} if (model, view) in DECISIONS else ())}


def too_little(model: str, view: str) -> list[list[str]]:
    """Return everything but one of what is needed, and nothing at all."""
    if (model, view) == LOCKS:
        return [[], [one for one in ALL if one not in {"view_semaphore", "view_uniquenesskey"}]]
    return [[], *([other for other in ALL if other != one] for one in needed(model, view))]


def dump() -> str:
    return json.dumps(
        [json.loads(serializers.serialize("json", model._default_manager.order_by("pk"))) for model in TABLES]
    )


def test_every_decision_has_a_url_of_its_own() -> None:
    assert set(DECISIONS) <= set(urls())
    pages = {page for _, page in urls()}
    assert pages == {"changelist", "add", "change", "delete", "history", "entry", *(page for _, page in DECISIONS)}


@pytest.mark.parametrize("id", ["a\x00b", "9" * 30, "x"])
@pytest.mark.parametrize(("model", "view"), urls())
def test_an_id_that_cannot_be_is_that_of_no_row(
    model: str, view: str, id: str, places: Places, admin_client: Client
) -> None:
    path = address(model, view, places).partition("?")[0]
    for key in (*(row.pk for row in vars(places).values()), "default"):
        path = path.replace(f"/{key}/", f"/{quote(id)}/")
    for method in ("get", "post"):
        assert getattr(admin_client, method)(path).status_code < 500, method


@pytest.mark.parametrize(("model", "view"), urls())
def test_nobody_gets_in_without_being_staff(model: str, view: str, places: Places, login: Login) -> None:
    before, path = dump(), address(model, view, places)
    for client in (Client(), login(*ALL, is_staff=False)):
        for method in METHODS:
            response = getattr(client, method)(path)
            assert response.status_code == 302, method
            assert "/login/" in response["Location"]
    assert dump() == before


@pytest.mark.parametrize(("model", "view"), urls())
def test_staff_without_the_permissions_of_a_page_is_refused(
    model: str, view: str, places: Places, login: Login
) -> None:
    before, path = dump(), address(model, view, places)
    for number, codenames in enumerate(too_little(model, view)):
        client = login(*codenames, username=f"member{number}")
        for method in METHODS:
            assert getattr(client, method)(path).status_code == 403, (method, codenames)
    assert dump() == before


@pytest.mark.parametrize(("model", "view"), [pair for pair in urls() if needed(*pair) != {NOBODY}])
def test_whoever_has_just_the_permissions_of_a_page_may_open_it(
    model: str, view: str, places: Places, login: Login
) -> None:
    client = login(*needed(model, view))
    if (model, view) == ("queuestate", "history"):
        QueueState.objects.create(queue="default")
    response = client.get(address(model, view, places))
    assert response.status_code == (302 if (model, view) == ("queuestate", "change") else 200)


@pytest.mark.proves("nothing-happens-before-the-confirmation")
@pytest.mark.parametrize(("model", "view"), urls())
def test_only_a_post_to_a_decision_changes_anything(
    model: str, view: str, places: Places, admin_client: Client
) -> None:
    QueueState.objects.create(queue="default")
    before, path = dump(), address(model, view, places)
    for method in METHODS:
        if (model, view) in DECISIONS and method == "post":
            continue
        getattr(admin_client, method)(path)
        more = "&" if "?" in path else "?"
        getattr(admin_client, method)(
            f"{path}{more}post=yes&action=discard&_selected_action={places.ready.pk}&up_to=99&after=0&drops=yes"
        )
    assert dump() == before


@pytest.mark.proves("nothing-happens-before-the-confirmation")
@pytest.mark.parametrize(("model", "view"), DECISIONS)
def test_a_decision_without_its_token_is_refused(model: str, view: str, places: Places, admin_user: Any) -> None:
    before = dump()
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post(address(model, view, places), {"post": "yes"}).status_code == 403
    assert dump() == before


@pytest.mark.parametrize("model", VIEWS)
def test_decisions_are_offered_only_to_those_who_may(model: str, places: Places, login: Login) -> None:
    client = login(VIEWS[model])
    path = reverse(f"admin:pgbus_{model}_changelist")
    pages = [path]
    if model in {"message", "delayed", "archived", "deadletter", "blockedexecution", "batch", "streamlog"}:
        pages.append(address(model, "change", places))
    if model == "streamlog":
        pages.append(address(model, "entry", places))
    for page in pages:
        text = client.get(page).content.decode()
        assert "/discard/" not in text
        assert "/redrive/" not in text
        assert "/run_now/" not in text
        assert "/hand_back/" not in text
        assert "/pause/" not in text
        assert "/release/" not in text
        assert "/unbind/" not in text
        assert "/rewind/" not in text
        assert "/override/" not in text
        assert "/redrive_" not in text
        assert "/discard_" not in text
        assert 'name="action"' not in text


def test_an_action_of_the_list_needs_its_permission(places: Places, login: Login) -> None:
    client, before = login("view_message", "view_deadletter"), dump()
    for model, action, pk in [("message", "discard", places.ready.pk), ("deadletter", "redrive", places.dead.pk)]:
        path = reverse(f"admin:pgbus_{model}_changelist")
        client.post(path, {"action": action, "_selected_action": pk, "post": "yes"})
        client.post(path, {"action": action, "_selected_action": pk, "index": 0})
    assert dump() == before


def test_an_action_without_confirmation_changes_nothing(places: Places, admin_client: Client) -> None:
    before = dump()
    for model, action, pk in [("message", "discard", places.ready.pk), ("deadletter", "redrive", places.dead.pk)]:
        path = reverse(f"admin:pgbus_{model}_changelist")
        response = admin_client.post(path, {"action": action, "_selected_action": pk, "index": 0})
        assert response.status_code == 200
    assert dump() == before


def test_each_kind_of_lock_is_seen_with_its_own_permission(places: Places, login: Login) -> None:
    path = reverse("admin:pgbus_semaphore_changelist")
    limited = login("view_semaphore", username="limited").get(path)
    unique = login("view_uniquenesskey", username="unique").get(path)
    assert (limited.context["unique"], unique.context["limited"]) == (None, None)
    assert "printer" in limited.content.decode()
    assert "order-17" not in limited.content.decode()
    assert "order-17" in unique.content.decode()
    assert "printer" not in unique.content.decode()
    for response in (limited, unique):
        assert "/message/" not in response.content.decode()
        assert "/blockedexecution/" not in response.content.decode()


def test_links_lead_only_where_a_person_may_go(places: Places, login: Login) -> None:
    client = login("view_queuestate")
    text = client.get(reverse("admin:pgbus_queuestate_changelist")).content.decode()
    assert "/message/" not in text
    assert "/deadletter/" not in text
