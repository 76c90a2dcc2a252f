"""The page of queues: every queue that is known, its numbers, and pausing it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from django_pgbus.models import Level, QueueState
from django_pgbus.queues import stats
from tests.admin import rows

pytestmark = pytest.mark.django_db
PAGE = "admin:pgbus_queuestate_changelist"


def shown(client: Client) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in client.get(reverse(PAGE)).context["rows"]}


def switch(client: Client, which: str, name: str) -> Any:
    path = reverse(f"admin:pgbus_queuestate_{which}", args=[quote(name)])
    return client.post(path, {"post": "yes"}, follow=True)


def test_a_queue_is_known_from_wherever_it_is_named(admin_client: Client) -> None:
    Level.objects.create(queue="used", priority=0, suspect=False)
    QueueState.objects.create(queue="decided")
    rows.a_message(queue="line")
    rows.a_delayed(queue="later")
    rows.a_dead_letter(queue="dead")
    assert list(shown(admin_client)) == ["dead", "decided", "later", "line", "used"]


def test_the_numbers_are_those_of_stats_and_lead_to_their_rows(admin_client: Client) -> None:
    worker = rows.a_worker()
    for _ in range(3):
        rows.a_message()
    rows.a_running(worker.id)
    rows.a_delayed()
    rows.a_dead_letter()
    (queue,) = stats.queues()
    cells = shown(admin_client)["default"]["cells"]
    numbers = [str(queue.ready), str(queue.running), str(queue.delayed), str(queue.dead)]
    assert [cells[index]["text"] for index in (0, 2, 3, 4)] == numbers == ["3", "1", "1", "1"]
    for index, number in ((0, 3), (2, 1), (3, 1), (4, 1)):
        assert admin_client.get(cells[index]["url"]).context["cl"].result_count == number


def test_the_state_is_said_in_words(admin_client: Client) -> None:
    rows.a_worker(queues="idle,busy,paused: 10")
    for name in ("idle", "empty"):
        Level.objects.create(queue=name, priority=0, suspect=False)
    QueueState.objects.create(queue="paused", paused_at=rows.now(), paused_by="anna")
    rows.a_message(queue="busy")
    rows.a_message(queue="stuck")
    assert {name: row["state"] for name, row in shown(admin_client).items()} == {
        "busy": "working",
        "empty": "empty, no worker",
        "idle": "idle",
        "paused": "paused",
        "stuck": "no worker",
    }


@pytest.mark.parametrize("name", ["default", "a/b", "mail.receipts", "100%", "Grüße", "with space", "_5F", "a?b#c"])
@pytest.mark.proves("pause-holds-within-a-poll")
def test_a_queue_of_any_name_is_paused_and_resumed(name: str, admin_client: Client, admin_user: Any) -> None:
    rows.a_message(queue=name)
    response = switch(admin_client, "pause", name)
    state = QueueState.objects.get(queue=name)
    assert state.paused_at is not None
    assert state.paused_by == admin_user.username
    assert [str(message) for message in response.context["messages"]] == [f"Queue {name} is paused."]
    assert shown(admin_client)[name]["switch"] == "Resume"
    switch(admin_client, "resume", name)
    assert QueueState.objects.get(queue=name).paused_at is None
    assert [(entry.object_repr, entry.get_change_message()) for entry in LogEntry.objects.order_by("pk")] == [
        (name, "Paused."),
        (name, "Resumed."),
    ]


def test_the_confirmation_names_what_stands_in_it(admin_client: Client) -> None:
    rows.a_message()
    text = admin_client.get(reverse("admin:pgbus_queuestate_pause", args=["default"])).content.decode()
    assert "Pause queue default?" in text
    assert "Now: 1 ready, 0 running, 0 delayed." in text
    assert not QueueState.objects.exists()


def test_a_queue_that_nobody_knows_is_not_paused(admin_client: Client) -> None:
    response = switch(admin_client, "pause", "no such queue")
    assert [str(message) for message in response.context["messages"]] == ["There is no queue no such queue."]
    assert not QueueState.objects.exists()


def test_a_name_that_was_written_by_hand_is_no_error(admin_client: Client) -> None:
    rows.a_message(queue="a;b")
    response = switch(admin_client, "pause", "a;b")
    assert "contains ';'" in str(next(iter(response.context["messages"])))
    assert not LogEntry.objects.exists()


def test_its_history_shows_who_paused_it(admin_client: Client) -> None:
    rows.a_message()
    switch(admin_client, "pause", "default")
    path = shown(admin_client)["default"]["history_url"]
    assert "Paused." in admin_client.get(path).content.decode()


def test_without_any_queue_the_page_says_so(admin_client: Client) -> None:
    assert "No queue has been used yet" in admin_client.get(reverse(PAGE)).content.decode()
