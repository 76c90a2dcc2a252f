"""Who gets the numbers: the token, and staff who may see the workers."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client, override_settings
from django.test.client import RequestFactory

from django_pgbus.observability.access import Access, access
from tests.admin.conftest import Login
from tests.observability.reading import METRICS, TOKEN

pytestmark = pytest.mark.django_db
ADDRESSES = [METRICS, "/pgbus/api/health", "/pgbus/api/health/live", "/pgbus/api/health/ready"]


def status(authorization: str | None = None, wanted: str | None = TOKEN) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    with override_settings(PGBUS={"METRICS_TOKEN": wanted}):
        return Client(headers=headers).get(METRICS).status_code


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", " Bearer "])
def test_the_token_opens(scheme: str) -> None:
    assert status(f"{scheme} {TOKEN}") == 200


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer  ",
        TOKEN,
        f"Basic {TOKEN}",
        f"Token {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        "Bearer None",
        "Bearer ümläut",
        "Bearer 💿",
        "Bearer \x00",
    ],
)
def test_anything_else_does_not(given: str | None) -> None:
    assert status(given) == 401


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer ", "Bearer None", f"Bearer {TOKEN}"])
def test_without_a_token_in_the_settings_none_opens(given: str | None) -> None:
    assert status(given, wanted=None) == 401


def test_a_token_may_have_any_letters() -> None:
    sent = "schlüssel 💿".encode().decode("latin-1")  # as a server hands on the bytes of a header
    assert status(f"Bearer {sent}", wanted="schlüssel 💿") == 200
    assert status("Bearer schlüssel", wanted="schlüssel") == 401, "that is another row of bytes"


def test_the_refusal_says_how_to_ask() -> None:
    response = Client().get(METRICS)
    assert response["WWW-Authenticate"] == 'Bearer realm="pgbus"'
    assert response["Cache-Control"] == "no-store"
    assert b"pgbus_" not in response.content
    assert not response.cookies


@pytest.mark.parametrize(
    ("permissions", "fields", "expected"),
    [
        (["view_worker"], {}, 200),
        ([], {}, 403),
        (["view_message"], {}, 403),
        (["view_worker"], {"is_staff": False}, 403),
        ([], {"is_superuser": True}, 200),
        ([], {"is_superuser": True, "is_staff": False}, 403),
    ],
)
def test_staff_who_may_see_the_workers(
    login: Login, permissions: list[str], fields: dict[str, Any], expected: int
) -> None:
    response = login(*permissions, **fields).get(METRICS)
    assert response.status_code == expected
    assert not response.cookies


def test_who_is_not_active_any_more_is_unknown(login: Login) -> None:
    client = login("view_worker")
    get_user_model().objects.update(is_active=False)
    assert client.get(METRICS).status_code == 401


def test_a_wrong_token_is_refused_whoever_is_signed_in(login: Login) -> None:
    client = login("view_worker")
    for wrong in ("Bearer wrong", "Bearer ", "Bearer"):
        assert client.get(METRICS, headers={"Authorization": wrong}).status_code == 401
    assert client.get(METRICS, headers={"Authorization": "Basic of-the-proxy"}).status_code == 200


def test_a_project_without_accounts_has_the_token() -> None:
    with override_settings(PGBUS={"METRICS_TOKEN": TOKEN}):
        request = RequestFactory().get(METRICS)
        assert access(request) is Access.UNKNOWN
        request = RequestFactory().get(METRICS, headers={"Authorization": f"Bearer {TOKEN}"})
        assert access(request) is Access.GRANTED


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "options", "trace"])
def test_only_reading_is_allowed(monitor: Client, address: str, method: str) -> None:
    strict = Client(enforce_csrf_checks=True)
    for client in (monitor, strict):
        response = getattr(client, method)(address)
        assert response.status_code == 405
        assert response["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("address", ADDRESSES)
def test_head_answers_as_get_does(monitor: Client, address: str) -> None:
    asked, told = monitor.head(address), monitor.get(address)
    assert (asked.status_code, asked["Content-Type"], asked.content) == (told.status_code, told["Content-Type"], b"")


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_login_that_is_required_everywhere_is_not_required_here(monitor: Client, address: str, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert monitor.get(address).status_code == 200
