"""Whether a process may get requests: told to anybody, the reasons only to who may see the numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, connections
from django.db.migrations.recorder import MigrationRecorder
from django.test import AsyncClient, Client
from django.urls import reverse

from django_pgbus.models import Worker
from django_pgbus.observability import health
from django_pgbus.postgres import Statement
from tests.admin import rows
from tests.admin.conftest import Login
from tests.sessions import execute, sessions

IN_TRANSACTIONS = pytest.mark.django_db(transaction=True)  # with the tables of accounts, whose middleware is asked
LIVE, READY = "/pgbus/api/health/live", "/pgbus/api/health/ready"


def told(client: Client, address: str = READY) -> tuple[int, Any]:
    response = client.get(address)
    assert response["Content-Type"] == "application/json"
    assert response["Cache-Control"] == "no-store"
    assert not response.cookies
    return response.status_code, json.loads(response.content)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """No database can be reached."""

    def refused(*args: Any) -> None:
        raise OperationalError("connection refused: host=db.internal password=hunter2")

    connection.close()
    monkeypatch.setattr(type(connections["default"]), "get_new_connection", refused)


def test_live_asks_nobody() -> None:
    """Outside of a test with a database any question is an error."""
    assert told(Client(), LIVE) == (200, {"ok": True})


@pytest.mark.django_db
def test_ready_is_told_to_anybody_without_reasons() -> None:
    assert told(Client()) == (200, {"ok": True})
    assert told(Client(), "/pgbus/api/health") == (200, {"ok": True})


@IN_TRANSACTIONS
def test_an_asgi_server_gets_the_same_answers() -> None:
    async def asked() -> list[tuple[int, bytes]]:
        found = [await AsyncClient().get(address) for address in (LIVE, READY)]
        return [(response.status_code, response.content) for response in found]

    assert async_to_sync(asked)() == [(200, b'{"ok": true}')] * 2


@pytest.mark.django_db
def test_no_worker_is_a_warning(monitor: Client) -> None:
    rows.a_worker(state="draining")
    workers = {"beating": 0, "deaf": 0, "draining": 1, "silent": 0}
    expected = {"ok": True, "reasons": [], "warnings": ["no worker takes jobs"], "workers": workers}
    assert told(monitor) == (200, expected)
    rows.a_worker()
    expected = {"ok": True, "reasons": [], "warnings": [], "workers": {**workers, "beating": 1}}
    assert told(monitor) == (200, expected)


@pytest.mark.django_db
def test_staff_gets_the_reasons_too(login: Login) -> None:
    assert "reasons" in told(login("view_worker"))[1]


@pytest.mark.django_db
def test_other_people_do_not(login: Login) -> None:
    assert told(login("view_message"))[1] == {"ok": True}
    assert told(Client(headers={"Authorization": "Bearer wrong"}))[1] == {"ok": True}


@pytest.mark.django_db
def test_a_missing_migration_is_a_failure(monitor: Client) -> None:
    name = MigrationRecorder.Migration.objects.filter(app="pgbus").latest("id")
    name.delete()
    assert told(Client()) == (503, {"ok": False})
    status, body = told(monitor)
    assert (status, body["reasons"]) == (503, ["1 migrations of pgbus are missing"])


@pytest.mark.django_db
def test_a_migration_of_a_newer_version_is_none() -> None:
    MigrationRecorder.Migration.objects.create(app="pgbus", name="9999_from_the_future")
    assert told(Client())[0] == 200


@IN_TRANSACTIONS
def test_a_database_that_is_away_is_a_failure_without_secrets(monitor: Client, away: None) -> None:
    assert told(Client()) == (503, {"ok": False})
    status, body = told(monitor)
    assert (status, body["ok"], body["reasons"]) == (503, False, ["database away (OperationalError)"])
    assert told(Client(), LIVE) == (200, {"ok": True})


@IN_TRANSACTIONS
def test_a_session_is_not_asked_for_where_the_database_is_away(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    client = login("view_worker")
    monkeypatch.setattr(health, "SERVER", Statement(sql="SELECT no_such_column"))
    assert told(client) == (503, {"ok": False})


@pytest.mark.django_db
def test_a_standby_is_a_failure(monitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SERVER", Statement(sql="SELECT true AS standby"))
    status, body = told(monitor)
    assert (status, body["reasons"]) == (503, ["database is a standby"])


@IN_TRANSACTIONS
def test_a_database_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STATEMENT_TAKES", 50)
    with sessions() as other:
        other.open()
        other.sql("LOCK TABLE pgbus_workers IN ACCESS EXCLUSIVE MODE")
        assert told(Client()) == (503, {"ok": False})
        other.commit()
    assert told(Client()) == (200, {"ok": True})


@IN_TRANSACTIONS
def test_a_connection_that_a_failover_ended_is_replaced() -> None:
    execute("SELECT 1")
    (pid,) = execute("SELECT pg_backend_pid()")[0]
    with sessions() as other:
        other.sql("SELECT pg_terminate_backend(%s)", pid)
        assert told(Client()) == (200, {"ok": True})


@IN_TRANSACTIONS
def test_live_needs_no_transaction(away: None) -> None:
    """With ATOMIC_REQUESTS a view begins one, unless it says that it wants none."""
    for alias in connections:
        connections[alias].settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert told(Client(), LIVE) == (200, {"ok": True})
        assert told(Client()) == (503, {"ok": False})
    finally:
        for alias in connections:
            connections[alias].settings_dict["ATOMIC_REQUESTS"] = False


def test_the_addresses_have_names() -> None:
    assert reverse("pgbus:metrics") == "/pgbus/api/metrics"
    assert reverse("pgbus:health") == "/pgbus/api/health"
    assert reverse("pgbus:live") == LIVE
    assert reverse("pgbus:ready") == READY


@pytest.mark.django_db
def test_it_names_nobody(monitor: Client) -> None:
    rows.a_worker(name="of-anna", host="secret.example")
    assert Worker.objects.count() == 1
    assert "anna" not in json.dumps(told(monitor)[1])
    assert "secret" not in json.dumps(told(monitor)[1])
