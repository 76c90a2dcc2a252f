"""What somebody writes into an address or a form by hand is no error of the server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test import Client
from django.urls import reverse

from django_pgbus.admin.given import parsed_moment
from tests.admin.conftest import Places

pytestmark = pytest.mark.django_db

QUERIES = [
    *(("message", name) for name in ("q", "below", "queue", "batch", "event", "kind", "state")),
    *(("delayed", name) for name in ("q", "reason", "queue")),
    *(("archived", name) for name in ("q", "outcome", "queue")),
    *(("blockedexecution", name) for name in ("q", "key", "waits_for", "queue")),
    *(("runcount", name) for name in ("window", "order", "task", "queue")),
    *((model, "q") for model in ("semaphore", "streamlog", "subscription", "batch", "deadletter")),
]


@pytest.mark.parametrize(("model", "name"), QUERIES)
def test_a_text_that_postgresql_cannot_hold(model: str, name: str, places: Places, admin_client: Client) -> None:
    """A request that names an encoding of its own brings half of a surrogate pair."""
    path = reverse(f"admin:pgbus_{model}_changelist")
    for given in ("%00", "a%00b", "%5Cud800", "9" * 30):
        response = admin_client.get(f"{path}?{name}={given}", CONTENT_TYPE="text/plain; charset=unicode_escape")
        assert response.status_code in {200, 302}, given


MOMENTS = [
    "0001-01-01T00:00:00+23:59",
    "0001-01-01T00:00:00+00:00",
    "0001-01-01T00:00",
    "9999-12-31T23:59:59-23:59",
    "2020-01-01T00:00:00+23:59",
    "2020-02-30",
    "\x00",
]


@pytest.mark.filterwarnings("ignore:.*received a naive datetime")
@pytest.mark.parametrize("seen", MOMENTS)
@pytest.mark.parametrize(
    ("model", "action", "across"),
    [("message", "hand_back", 0), ("delayed", "run_now", 1), ("deadletter", "redrive", 1), ("streamlog", "", 0)],
)
def test_a_moment_that_postgresql_cannot_hold(
    model: str, action: str, across: int, seen: str, places: Places, admin_client: Client
) -> None:
    path = reverse(f"admin:pgbus_{model}_changelist")
    data = {
        "action": action,
        "_selected_action": places.running.pk,
        "select_across": across,
        "post": "yes",
        "seen": seen,
    }
    if model == "streamlog":
        query = {"stream": places.stream.pk, "group": "totals"}
        path = reverse("admin:pgbus_streamlog_redrive_dead", query=query)
    assert admin_client.post(path, data).status_code in {200, 302}


@pytest.mark.parametrize("seen_at", MOMENTS)
def test_a_moment_of_a_key_that_postgresql_cannot_hold(seen_at: str, places: Places, admin_client: Client) -> None:
    path = reverse("admin:pgbus_semaphore_discard_parked", query={"key": places.semaphore.key})
    response = admin_client.post(path, {"post": "yes", "up_to": "9", "seen_at": seen_at})
    assert response.status_code in {200, 302}


def test_a_moment_is_that_moment_whatever_its_offset() -> None:
    assert parsed_moment("2020-01-01T00:30:00.000001+02:00") == datetime(2019, 12, 31, 22, 30, 0, 1, tzinfo=UTC)
    assert parsed_moment("2020-01-01T00:30") == datetime(2020, 1, 1, 0, 30)
    assert parsed_moment("yesterday") is None
