"""What keeps jobs waiting is told by the verdict and by the overview of the admin alike."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_pgbus.models import Election, StreamLog, Subscription, Worker
from django_pgbus.postgres import stats as database_stats
from django_pgbus.tasks import lifecycle
from django_pgbus.worker import hindrances
from django_pgbus.worker.verdict import Status, verdict
from tests.admin import rows
from tests.admin.stream_rows import a_dead, a_group, a_stream

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def well(db: None) -> Worker:
    """A worker that beats and serves everything."""
    Subscription.objects.all().delete()
    StreamLog.objects.all().delete()
    worker = rows.a_worker(queues="*, @*: 5", running=0)
    Election.objects.create(office="dispatcher", worker=worker.id, until=rows.now() + timedelta(minutes=1))
    return worker


def nobody_runs() -> None:
    Worker.objects.all().delete()


def only_streams_are_followed() -> None:
    Worker.objects.update(queues="", streams="ledger/totals")


def a_silent_worker() -> None:
    rows.a_worker(lease=timedelta(seconds=-1))


def a_deaf_worker() -> None:
    Worker.objects.update(listening=False)


def a_queue_that_nobody_serves() -> None:
    Worker.objects.update(queues="mail: 4")
    rows.a_message(queue="imports")


def a_paused_queue() -> None:
    rows.a_message(queue="imports")
    lifecycle.pause_queue("imports")


def a_paused_queue_of_delayed_jobs() -> None:
    rows.a_delayed(queue="imports")
    lifecycle.pause_queue("imports")


def a_subscription_that_nobody_serves() -> None:
    Worker.objects.update(queues="mail: 4")
    rows.a_subscription(queue="@ledger")


def a_group_that_refuses() -> None:
    a_group(a_stream(entries=3), "lost", claimed=99)


def a_paused_group() -> None:
    group = a_group(a_stream(entries=3), claimed=3)
    group.paused_at = rows.now()
    group.save()


def a_dead_entry() -> None:
    a_dead(a_group(a_stream(entries=3), claimed=3), 2)


def told_by_both(client: Client) -> tuple[str, str]:
    found = client.get(reverse("admin:app_list", args=["pgbus"]))
    return " ".join(verdict().reasons), " ".join(str(warning["text"]) for warning in found.context["warnings"])


def test_all_is_well_to_both(admin_client: Client) -> None:
    assert told_by_both(admin_client) == ("", "")


@pytest.mark.parametrize(
    ("hindrance", "said", "shown"),
    [
        (nobody_runs, "No worker takes jobs", "No worker is running"),
        (only_streams_are_followed, "No worker takes jobs", "No running worker takes jobs"),
        (a_silent_worker, "1 worker fell silent", "1 worker fell silent"),
        (a_deaf_worker, "1 worker hears no notifications", "1 worker hears no notifications"),
        (
            a_queue_that_nobody_serves,
            "No running worker serves queue imports: 1 ready",
            "No running worker serves queue imports: 1 ready",
        ),
        (a_paused_queue, "Queue imports is paused: 1 ready", "Queue imports is paused since"),
        (a_paused_queue_of_delayed_jobs, "Queue imports is paused: 1 delayed", "and 1 job waits in it"),
        (a_subscription_that_nobody_serves, "serves their queue: @ledger", "no running worker serves: @ledger"),
        (a_group_that_refuses, "refuses to work: ledger/lost", "refuses to work: ledger/lost"),
        (a_paused_group, "1 consumer group paused: ledger/totals", "Paused consumer group: ledger/totals"),
        (a_dead_entry, "1 dead letter of streams", "1 dead letter of a stream"),
    ],
)
def test_each_hindrance_is_told_by_both(
    admin_client: Client, hindrance: Callable[[], None], said: str, shown: str
) -> None:
    hindrance()
    of_the_verdict, of_the_overview = told_by_both(admin_client)
    assert said in of_the_verdict
    assert shown in of_the_overview
    assert verdict().status is not Status.OK


@pytest.mark.parametrize(("seconds", "long"), [(299.0, False), (301.0, True)])
def test_a_transaction_is_long_to_both(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, seconds: float, long: bool
) -> None:
    def rows_of(*asked: Any) -> list[Any]:
        return [SimpleNamespace(kind="session", name="4711", text="shop-web", seconds=seconds, holds_snapshot=True)]

    monkeypatch.setattr(hindrances.doctor_sql, "TRANSACTIONS", SimpleNamespace(rows=rows_of))
    monkeypatch.setattr(
        database_stats, "transactions", lambda: database_stats.Transactions(oldest=seconds, held_back=0)
    )
    assert [bool(told) for told in told_by_both(admin_client)] == [long, long]
