"""The page of workers: health in words."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from django_pgbus.models import Election
from tests.admin import rows

pytestmark = pytest.mark.django_db
PAGE = "admin:pgbus_worker_changelist"


def test_health_is_said_in_words(admin_client: Client) -> None:
    beating = rows.a_worker(name="a")
    rows.a_worker(name="b", listening=False)
    rows.a_worker(name="c", state="draining", listening=False)
    rows.a_worker(name="d", beat_at=rows.now() - timedelta(minutes=2), state="draining")
    Election.objects.create(office="dispatcher", worker=beating.id, until=rows.now() + timedelta(minutes=1))
    found = {row["name"]: row for row in admin_client.get(reverse(PAGE)).context["rows"]}
    assert {name: str(row["state"]) for name, row in found.items()} == {
        "a": "beating",
        "b": "deaf",
        "c": "stopping",
        "d": "silent",
    }
    assert str(found["d"]["detail"]).startswith("since ")
    assert [name for name, row in found.items() if row["dispatcher"]] == ["a"]


def test_what_a_silent_worker_held_runs_elsewhere_only_if_there_is_one(admin_client: Client) -> None:
    rows.a_worker(name="gone", beat_at=rows.now() - timedelta(minutes=2))
    (gone,) = admin_client.get(reverse(PAGE)).context["rows"]
    assert str(gone["detail"]).endswith("what it held runs again as soon as a worker runs")
    rows.a_worker(name="here")
    (gone, _) = admin_client.get(reverse(PAGE)).context["rows"]
    assert str(gone["detail"]).endswith("what it held runs again elsewhere")


def test_without_a_worker_the_page_says_how_to_start_one(admin_client: Client) -> None:
    assert "manage.py runworker" in admin_client.get(reverse(PAGE)).content.decode()
