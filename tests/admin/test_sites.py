"""Other sites, other prefixes, other settings; and the list of our pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client, override_settings
from django.urls import clear_script_prefix, path, reverse, set_script_prefix
from django.utils import translation

from django_pgbus import admin as pages
from django_pgbus.models import DeadLetter, QueueState
from tests.admin import rows
from tests.admin.conftest import Login, Places

pytestmark = pytest.mark.django_db

site = admin.AdminSite(name="office")
pages.register(site)
partly = admin.AdminSite(name="partly")
partly.register(QueueState, pages.PAGES[QueueState])
urlpatterns = [
    path("admin/", admin.site.urls),
    path("office/", site.urls),
    path("partly/", partly.urls),
]


@pytest.fixture
def sites() -> Iterator[None]:
    with override_settings(ROOT_URLCONF=__name__):
        yield


def every_page(places: Places, app: str) -> Iterator[str]:
    for model in (
        "message",
        "delayed",
        "archived",
        "deadletter",
        "blockedexecution",
        "batch",
        "semaphore",
        "queuestate",
        "worker",
        "runcount",
    ):
        yield reverse(f"admin:pgbus_{model}_changelist", current_app=app)
    for job in (
        places.ready,
        places.running,
        places.delayed,
        places.archived,
        places.dead,
        places.parked,
        places.batch,
    ):
        for name in ("change", "history"):
            yield reverse(f"admin:pgbus_{job._meta.model_name}_{name}", args=[job.pk], current_app=app)
    yield reverse("admin:pgbus_deadletter_redrive", args=[places.dead.pk], current_app=app)
    yield reverse("admin:pgbus_queuestate_pause", args=["default"], current_app=app)
    for decision in ("release", "discard_parked"):
        yield reverse(f"admin:pgbus_semaphore_{decision}", query={"key": "printer"}, current_app=app)
    yield reverse("admin:app_list", args=["pgbus"], current_app=app)


def links(text: str) -> set[str]:
    return {part.split('"')[0] for part in text.split('href="')[1:]}


def test_a_site_of_ones_own_keeps_to_itself(places: Places, sites: None, admin_client: Client) -> None:
    for address in every_page(places, "office"):
        assert address.startswith("/office/")
        response = admin_client.get(address)
        assert response.status_code == 200
        assert not [link for link in links(response.content.decode()) if link.startswith("/admin/")], address
    response = admin_client.post(f"/office/pgbus/deadletter/{places.dead.pk}/redrive/", {"post": "yes"})
    assert response["Location"] == f"/office/pgbus/message/{places.dead.pk}/change/"
    assert not DeadLetter.objects.exists()


def test_a_site_without_the_other_pages_links_to_none(places: Places, sites: None, admin_client: Client) -> None:
    response = admin_client.get("/partly/pgbus/queuestate/")
    assert response.status_code == 200
    assert not [link for link in links(response.content.decode()) if "/message/" in link or "/deadletter/" in link]
    assert admin_client.get("/partly/pgbus/").status_code == 200


def test_under_a_script_prefix_every_link_has_it(places: Places, admin_client: Client, settings: Any) -> None:
    settings.STATIC_URL = "/static/"  # a relative one would keep the prefix for the tests after this one
    set_script_prefix("/shop/")
    try:
        for address in every_page(places, "admin"):
            response = admin_client.get(address.removeprefix("/shop"), SCRIPT_NAME="/shop")
            assert response.status_code == 200
            rooted = {link for link in links(response.content.decode()) if link.startswith("/")}
            assert rooted
            assert not [link for link in rooted if not link.startswith(("/shop", "/static/"))], address
        gone = admin_client.post(
            f"/admin/pgbus/deadletter/{places.dead.pk}/redrive/", {"post": "yes"}, SCRIPT_NAME="/shop"
        )
        assert gone["Location"].startswith("/shop/admin/pgbus/message/")
    finally:
        clear_script_prefix()


def test_separators_of_the_language_stay_out_of_ids(places: Places, admin_client: Client) -> None:
    job = rows.a_message(id=1_234_567)
    with override_settings(USE_THOUSAND_SEPARATOR=True), translation.override("de"):
        path = reverse("admin:pgbus_message_changelist")
        text = admin_client.get(path, headers={"accept-language": "de"}).content.decode()
        assert f"/message/{job.pk}/change/" in text
        confirm = admin_client.post(
            path, {"action": "discard", "_selected_action": job.pk, "index": 0}
        ).content.decode()
        assert f'value="{job.pk}"' in confirm


@override_settings(USE_TZ=False)
def test_without_time_zones_pages_show_local_times(admin_client: Client) -> None:
    from datetime import datetime

    rows.a_worker()
    rows.a_beating_slot(rows.a_message().pk)
    rows.a_lock(rows.a_parked().pk)
    job = rows.an_archived(finished_at=datetime.now(), started_at=datetime.now())
    ended = rows.a_batch(created_at=datetime.now(), finished_at=datetime.now())
    for address in (
        reverse("admin:pgbus_message_changelist"),
        reverse("admin:pgbus_archived_change", args=[job.pk]),
        reverse("admin:pgbus_queuestate_changelist"),
        reverse("admin:pgbus_worker_changelist"),
        reverse("admin:pgbus_runcount_changelist"),
        reverse("admin:pgbus_semaphore_changelist"),
        reverse("admin:pgbus_blockedexecution_changelist"),
        reverse("admin:pgbus_batch_changelist"),
        reverse("admin:pgbus_batch_change", args=[ended.pk]),
        reverse("admin:app_list", args=["pgbus"]),
    ):
        assert admin_client.get(address).status_code == 200


# --- the list of our pages ----------------------------------------------------------------------------


def index(client: Client) -> str:
    response = client.get(reverse("admin:app_list", args=["pgbus"]))
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def test_the_index_says_what_waits_and_what_is_wrong(places: Places, admin_client: Client) -> None:
    rows.a_worker(name="deaf", listening=False)
    text = index(admin_client)
    for number, label in ((1, "ready"), (1, "running"), (1, "delayed"), (1, "dead letter"), (2, "workers")):
        assert f"<strong>{number}</strong> {label}" in text
    assert "1 worker hears no notifications and only polls." in text
    assert "No worker is running" not in text


def test_the_index_shows_numbers_only_of_pages_one_may_see(places: Places, login: Login) -> None:
    text = index(login("view_delayed"))
    assert "<strong>1</strong> delayed" in text
    for hidden in (
        "</strong> ready",
        "</strong> running",
        "</strong> dead letter",
        "</strong> worker",
        "dead letter within",
    ):
        assert hidden not in text


def test_without_a_worker_the_index_says_so(admin_client: Client) -> None:
    assert "No worker is running: whatever is enqueued waits." in index(admin_client)


def test_the_index_opens_without_the_numbers(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    def away() -> Any:
        raise OperationalError("the database system is shutting down")

    monkeypatch.setattr("django_pgbus.queues.stats.queues", away)
    text = index(admin_client)
    assert "This cannot be read just now: queues." in text
    assert "Dead letters" in text
