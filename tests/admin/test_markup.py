"""Whatever comes from outside stays text, on every page, title, message and attribute."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse
from django.utils.safestring import mark_safe

from django_pgbus.models import QueueState
from django_pgbus.tasks import lifecycle
from tests.admin import rows
from tests.admin.markup import EVIL, harmless

pytestmark = pytest.mark.django_db

SHORT = "<script>x</script>"


@pytest.fixture
def evil() -> dict[str, Any]:
    error = rows.error(exception=f"shop.{EVIL}", traceback=f"Traceback\n{EVIL}", worker=EVIL)
    work = {"queue": EVIL, "task": EVIL, "payload": rows.payload(EVIL, **{SHORT: EVIL}), "errors": [error]}
    bound = rows.constraints(unique=EVIL, limit=EVIL, to=2).replace('"name": ""', f'"name": {json.dumps(SHORT)}')
    worker = rows.a_worker(name=EVIL, host=EVIL, version=SHORT, queues=EVIL)
    QueueState.objects.create(queue=EVIL, paused_at=rows.now(), paused_by=EVIL)
    return {
        "ready": rows.a_message(**work),
        "importable": rows.a_message(**{**work, "task": rows.TASK}),
        "running": rows.a_running(worker.id, **work),
        "delayed": rows.a_delayed(**work),
        "archived": rows.an_archived(**{**work, "task": rows.TASK}, result=json.dumps(EVIL), note=EVIL),
        "dead": rows.a_dead_letter(**work),
        "parked": rows.a_parked(EVIL, **{**work, "constraints": bound}),
        "for its key": rows.a_parked(EVIL, **work, waits_for="key"),
        "worker": worker,
    }


def test_on_the_pages_of_jobs(evil: dict[str, Any], admin_client: Client) -> None:
    for which in ("ready", "importable", "running", "delayed", "archived", "dead", "parked", "for its key"):
        job = evil[which]
        model = job._meta.model_name
        for path in (
            reverse(f"admin:pgbus_{model}_changelist"),
            reverse(f"admin:pgbus_{model}_changelist", query={"queue": EVIL}),
            reverse(f"admin:pgbus_{model}_changelist", query={"q": EVIL}),
            reverse(f"admin:pgbus_{model}_change", args=[job.pk]),
            reverse(f"admin:pgbus_{model}_history", args=[job.pk]),
        ):
            harmless(admin_client, path)
    harmless(admin_client, reverse("admin:pgbus_blockedexecution_changelist", query={"key": EVIL}))


def test_the_arguments_are_there_as_text(evil: dict[str, Any], admin_client: Client) -> None:
    text = harmless(admin_client, reverse("admin:pgbus_message_change", args=[evil["importable"].pk]))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_on_confirmations_and_in_what_they_tell(evil: dict[str, Any], admin_client: Client) -> None:
    for which, decision in (("ready", "discard"), ("delayed", "discard"), ("dead", "redrive")):
        job = evil[which]
        model = job._meta.model_name
        path = reverse(f"admin:pgbus_{model}_{decision}", args=[job.pk])
        harmless(admin_client, path)
        listed = reverse(f"admin:pgbus_{model}_changelist")
        harmless(admin_client, listed, data={"action": decision, "_selected_action": job.pk, "index": 0})
        admin_client.post(path, {"post": "yes"})
        harmless(admin_client, listed)
        harmless(admin_client, reverse("admin:index"))  # recent actions


def test_on_the_list_of_all_jobs_and_what_it_asks_and_tells(evil: dict[str, Any], admin_client: Client) -> None:
    """The key holds a slot here, too: it is found, named, linked and told of."""
    rows.a_slot(evil["delayed"].pk, EVIL)
    rows.a_lock(evil["ready"].pk, EVIL)
    path = reverse("admin:pgbus_message_changelist")
    for query in ("", f"?{urlencode({'q': EVIL})}", f"?q={evil['archived'].pk}"):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in harmless(admin_client, path + query)
    chosen = [evil[which].pk for which in ("ready", "running", "delayed", "dead", "parked")]
    for decision in ("run_now", "hand_back", "redrive", "discard"):
        asked = harmless(admin_client, path, data={"action": decision, "_selected_action": chosen, "index": 0})
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in asked
        admin_client.post(path, {"action": decision, "_selected_action": chosen, "post": "yes"})
        harmless(admin_client, path)
        harmless(admin_client, reverse("admin:index"))  # recent actions


def test_on_the_page_that_shows_how_far_a_decision_is(
    evil: dict[str, Any], admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("decisions", "bounds"):
        monkeypatch.setattr(f"django_pgbus.admin.{module}.LIMIT", 1)
    for _ in range(3):
        rows.a_dead_letter(task=EVIL, queue=EVIL)
    path = reverse("admin:pgbus_deadletter_changelist", query={"queue": EVIL})
    data = {"action": "discard", "_selected_action": 0, "select_across": 1, "post": "yes", "seen": EVIL}
    numbers = {"total": 4, "done": 0, "left": 0, "after": 0, "about": EVIL}
    assert "1 of 4 done." in harmless(admin_client, path, data={**data, **numbers})
    harmless(admin_client, reverse("admin:index"))  # recent actions


def test_on_the_page_of_locks_and_what_it_asks_and_tells(evil: dict[str, Any], admin_client: Client) -> None:
    rows.a_limit(EVIL, 2)
    rows.a_limit("sha256:0", name=EVIL)
    rows.a_slot(evil["delayed"].pk, EVIL)
    rows.a_beating_slot(evil["running"].pk, EVIL, 2)
    rows.a_slot(evil["ready"].pk, "sha256:0")
    rows.a_lock(evil["ready"].pk, EVIL, queue=EVIL)
    rows.a_lock(evil["running"].pk, "sha256:0", name=EVIL, strategy="while_executing", queue=EVIL)
    page = reverse("admin:pgbus_semaphore_changelist")
    for path in (page, f"{page}?{urlencode({'q': EVIL})}"):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in harmless(admin_client, path)
    decided = [("discard_parked", EVIL, ""), ("release", EVIL, ""), ("discard_lock", EVIL, evil["ready"].pk)]
    for decision, key, job in [*decided, ("release", "sha256:0", ""), ("discard_lock", "sha256:0", evil["running"].pk)]:
        path = reverse(f"admin:pgbus_semaphore_{decision}", query={"key": key, "job": job})
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in harmless(admin_client, path) or key != EVIL
        admin_client.post(path, {"post": "yes", "up_to": evil["parked"].pk})
        harmless(admin_client, page)
        harmless(admin_client, reverse("admin:index"))  # recent actions


def test_in_what_a_refused_redrive_tells(evil: dict[str, Any], admin_client: Client) -> None:
    rows.a_lock(evil["ready"].pk, EVIL)
    letter = rows.a_dead_letter(constraints=rows.constraints(unique=EVIL))
    path = reverse("admin:pgbus_deadletter_redrive", args=[letter.pk])
    response = admin_client.post(path, {"post": "yes"}, follow=True)
    assert "holds its key" in response.content.decode()
    assert "<script>alert(1)" not in response.content.decode()


def test_on_the_pages_of_queues_and_workers(evil: dict[str, Any], admin_client: Client) -> None:
    for name in ("queuestate", "worker"):
        assert "&lt;script&gt;" in harmless(admin_client, reverse(f"admin:pgbus_{name}_changelist"))
    for switch in ("resume", "pause"):
        path = reverse(f"admin:pgbus_queuestate_{switch}", args=[quote(EVIL)])
        assert "&lt;script&gt;" in harmless(admin_client, path)
        admin_client.post(path, {"post": "yes"})
        harmless(admin_client, reverse("admin:pgbus_queuestate_changelist"))
    harmless(admin_client, reverse("admin:app_list", args=["pgbus"]))


def test_a_text_marked_as_safe_is_still_text(admin_client: Client) -> None:
    lifecycle.enqueue(
        lifecycle.NewWork(task=mark_safe(EVIL), payload=rows.payload(mark_safe(EVIL)), queue=mark_safe(EVIL))
    )
    harmless(admin_client, reverse("admin:pgbus_message_changelist"))
    harmless(admin_client, reverse("admin:pgbus_queuestate_changelist"))


def test_no_page_of_ours_brings_a_script_or_style_of_its_own(places: Any, admin_client: Client) -> None:
    for name in (
        "message",
        "delayed",
        "archived",
        "deadletter",
        "blockedexecution",
        "batch",
        "subscription",
        "streamlog",
        "semaphore",
        "queuestate",
        "worker",
        "runcount",
    ):
        harmless(admin_client, reverse(f"admin:pgbus_{name}_changelist"))
