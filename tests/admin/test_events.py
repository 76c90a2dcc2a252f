"""The page of events, copies of events among the jobs, what may be decided about them, and who may see what."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgbus import publish
from django_pgbus.events import stats
from django_pgbus.idempotency import stats as claim_stats
from django_pgbus.idempotency import stats_sql
from django_pgbus.models import Archived, Message, QueueState, Subscription
from django_pgbus.postgres import Statement
from django_pgbus.queues.stats import Count
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.masking import MASK
from tests import eventful
from tests.admin import handlers, rows  # noqa: F401  (the handlers are declared)
from tests.admin.conftest import Login
from tests.admin.test_decisions import decide, told
from tests.admin.test_lists import found, states
from tests.admin.test_locks import answer, ask, logged
from tests.admin.test_markup import EVIL, SHORT, harmless
from tests.eventful import ONCE
from tests.line import succeed

pytestmark = pytest.mark.django_db
PAGE = "admin:pgbus_subscription_changelist"
RECEIPT = "tests.admin.handlers.receipt"
SECRET = "tok_live_31337"
UP_SINCE = "pg_postmaster_start_time()"
LISTS = ("message", "delayed", "archived", "deadletter")
COPIES = ("view_message", "view_delayed", "view_deadletter", "view_archived")


@pytest.fixture(autouse=True)
def nothing_declared() -> None:
    """Begin without the subscriptions that `post_migrate` may have written of what is loaded."""
    Subscription.objects.all().delete()


@pytest.fixture(autouse=True)
def long_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server seem to have been up for long: right after its start no claim counts as silent."""
    for name, statement in list(vars(stats_sql).items()):
        if isinstance(statement, Statement) and UP_SINCE in statement.sql:
            longer = statement.sql.replace(UP_SINCE, "(statement_timestamp() - interval '1 day')")
            monkeypatch.setattr(stats_sql, name, Statement(sql=longer))


def shown(client: Client, **query: Any) -> Any:
    response = client.get(reverse(PAGE, query=query))
    assert response.status_code == 200
    return response.context


def text(client: Client, **query: Any) -> str:
    return unescape(" ".join(client.get(reverse(PAGE, query=query)).content.decode().split()))


def jobs(section: Any) -> list[int]:
    return [int(row["job"]) for row in section["rows"]]


def page(client: Client, job: Any) -> str:
    response = client.get(reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk]))
    assert response.status_code == 200
    return unescape(response.content.decode())


def a_copy_everywhere(**fields: Any) -> dict[str, Any]:
    """Return one event's copy in each place."""
    event = rows.event(event_id=uuid.uuid4(), **fields)
    return {
        "ready": rows.a_message(**event),
        "running": rows.a_running(**event),
        "delayed": rows.a_delayed(**event),
        "dead": rows.a_dead_letter(**event),
        "done": rows.an_archived(**event, result=None),
    }


# --- what waits, and why ------------------------------------------------------------------------------


def test_each_pending_copy_says_why_it_waits(admin_client: Client) -> None:
    worker = rows.a_worker(queues="@events: 5")
    QueueState.objects.create(queue="@paused", paused_at=rows.now(), paused_by="anna")
    soon = rows.now() + timedelta(minutes=5)
    waits = {
        rows.a_message(**rows.event()).pk: "ready",
        rows.a_running(worker.id, **rows.event()).pk: "running",
        rows.a_running(leased_until=rows.now() - timedelta(seconds=1), **rows.event()).pk: "worker silent",
        rows.a_message(**rows.event(queue="@paused")).pk: "queue paused",
        rows.a_message(**rows.event(queue="@nobody")).pk: "no worker",
        rows.a_delayed(due_at=soon, **rows.event()).pk: "scheduled",
        rows.a_delayed(due_at=soon, reason="retry", attempts=2, **rows.event()).pk: "retrying",
        rows.a_delayed(due_at=soon, reason="owned", **rows.event()).pk: "owned",
        rows.a_delayed(due_at=rows.now() - timedelta(seconds=1), **rows.event()).pk: "due",
    }
    pending = shown(admin_client)["pending"]["rows"]
    assert {int(row["job"]): str(row["standing"].state) for row in pending} == waits
    told = text(admin_client)
    assert "An earlier delivery of this event may still run the handler." in told
    assert "No running worker serves queue @nobody." in told
    assert "attempt 3 of 4, due" in told


def test_the_attempts_of_an_unknown_handler_have_no_end(admin_client: Client) -> None:
    soon = rows.now() + timedelta(minutes=5)
    rows.a_delayed(due_at=soon, reason="retry", attempts=2, **rows.event(task=rows.GONE_HANDLER))
    (row,) = shown(admin_client)["pending"]["rows"]
    assert row["due"].startswith("attempt 3, due")
    assert not row["importable"]


def test_tasks_are_no_events(admin_client: Client) -> None:
    for make in (rows.a_message, rows.a_running, rows.a_delayed, rows.a_dead_letter, rows.an_archived):
        make()
    context = shown(admin_client)
    assert [context[name]["rows"] for name in ("pending", "dead", "processed")] == [[], [], []]
    assert {card["number"] for card in context["cards"]} == {"0"}


def test_the_cards_count_and_lead_to_the_lists(admin_client: Client) -> None:
    for _ in range(2):
        made = a_copy_everywhere()
    rows.a_message()
    rows.an_event_count(rows.HANDLER, 3, "skipped", reason="owned")
    cards = {str(card["label"]): card for card in shown(admin_client)["cards"]}
    assert {label: card["number"] for label, card in cards.items()} == {
        "ready": "2",
        "running": "2",
        "delayed": "2",
        "dead letters": "2",
        "processed": "2",
        "skipped": "3",
    }
    for label, which in (("ready", "ready"), ("running", "running"), ("delayed", "delayed"), ("processed", "done")):
        list_of = admin_client.get(cards[label]["url"]).context["cl"].result_list
        assert made[which].pk in [job.pk for job in list_of]
        assert len(list_of) == 2
        assert all(job.topic for job in list_of)


def test_counts_say_where_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "LIMIT", 2)
    for _ in range(3):
        a_copy_everywhere()
    counted = stats.counts()
    assert counted.delayed == counted.dead == counted.processed == Count(2, True)
    assert counted.ready.more
    assert counted.running.more


def test_only_some_are_shown_and_the_lists_hold_the_rest(admin_client: Client) -> None:
    made = [rows.a_message(**rows.event(event_id=uuid.UUID(int=nth))).pk for nth in range(20)]
    pending = shown(admin_client)["pending"]
    assert jobs(pending) == made[:15], "what was published first stands first"
    assert pending["most"] == "15"
    assert "Only the first 15 are shown. All of them:" in text(admin_client)
    assert found(admin_client, "message", kind="events") == made[::-1]


def test_processed_and_dead_stand_with_the_newest_event_first(admin_client: Client) -> None:
    ids = [uuid.UUID(int=nth) for nth in range(3)]
    done = [rows.an_archived(**rows.event(event_id=id)).pk for id in ids]
    dead = [rows.a_dead_letter(**rows.event(event_id=id)).pk for id in ids]
    context = shown(admin_client)
    assert jobs(context["processed"]) == done[::-1]
    assert jobs(context["dead"]) == dead[::-1]
    assert "BrokenRow: line 1043" in context["dead"]["rows"][0]["error"]


@pytest.mark.parametrize(
    ("note", "why"),
    [
        ("completed", "Another delivery of this event had already been handled."),
        ("cached", "as this worker knew"),
        ("owned", "Another copy of this event was being handled."),
        ("of another version", "of another version"),
    ],
)
def test_what_was_skipped_says_why(note: str, why: str, admin_client: Client) -> None:
    job = rows.an_archived(outcome="skipped", note=note, **rows.event())
    assert states(admin_client, "archived") == {job.pk: "skipped"}
    assert found(admin_client, "archived", outcome="skipped") == [job.pk]
    assert why in page(admin_client, job)
    assert why in text(admin_client)


def test_what_is_owned_is_found_among_the_delayed(admin_client: Client) -> None:
    job = rows.a_delayed(reason="owned", **rows.event())
    rows.a_delayed()
    assert found(admin_client, "delayed", reason="owned") == [job.pk]
    assert states(admin_client, "delayed", reason="owned") == {job.pk: "owned"}
    assert "at no cost of an attempt" in page(admin_client, job)


# --- one event ----------------------------------------------------------------------------------------


def test_one_event_is_shown_wherever_its_copies_are(admin_client: Client) -> None:
    made = a_copy_everywhere()
    a_copy_everywhere()
    rows.a_claim(made["running"])
    context = shown(admin_client, q=made["ready"].event_id)
    assert jobs(context["copies"]) == [job.pk for job in made.values()]
    assert [row["job"] for row in context["claims"]["rows"]] == [str(made["running"].pk)]
    for row in context["copies"]["rows"]:
        assert admin_client.get(row["url"]).status_code == 200


@pytest.mark.parametrize("which", ["ready", "running", "delayed", "dead", "done"])
def test_a_copy_leads_to_its_event_and_to_the_other_copies(which: str, admin_client: Client) -> None:
    made = a_copy_everywhere()
    job = made[which]
    shown_page = page(admin_client, job)
    assert reverse(PAGE, query={"q": job.event_id}) in shown_page
    assert "Other copies of this event" in shown_page
    for name, other in made.items():
        address = reverse(f"admin:pgbus_{other._meta.model_name}_change", args=[other.pk])
        assert (f'<th scope="row"><a href="{address}">' in shown_page) == (name != which)


def test_copies_are_found_among_the_jobs_by_event_topic_and_handler(admin_client: Client) -> None:
    made = a_copy_everywhere(topic="orders.created")
    rows.a_message()
    rows.a_message(**rows.event(topic="payments.failed", task=RECEIPT))
    event, both = made["ready"].event_id, [made["running"].pk, made["ready"].pk]
    assert found(admin_client, "message", q=str(event)) == both
    assert found(admin_client, "message", q=f" {event.hex} ") == both
    assert found(admin_client, "message", event=str(event)) == both
    assert found(admin_client, "message", q="S.CREATED") == both
    assert found(admin_client, "message", q="handlers.audit") == both
    assert found(admin_client, "message", event="nonsense") == []
    assert found(admin_client, "message", kind="nonsense") == []
    assert found(admin_client, "deadletter", event=str(event)) == [made["dead"].pk]


def test_a_text_is_looked_for_in_topics_handlers_and_patterns(admin_client: Client) -> None:
    made = a_copy_everywhere(topic="orders.created")
    a_copy_everywhere(topic="payments.failed", task=RECEIPT)
    rows.a_claim(made["running"])
    rows.a_subscription("orders.#")
    rows.a_subscription("payments.*", RECEIPT)
    rows.an_event_count("orders.lost")
    rows.an_event_count("payments.lost")
    for search, patterns, lost in (
        ("Orders", ["orders.#"], ["orders.lost"]),
        ("orders.created", ["orders.#"], []),
        ("handlers.AUDIT", ["orders.#"], []),
    ):
        context = shown(admin_client, q=search)
        assert jobs(context["pending"]) == [made[which].pk for which in ("ready", "running", "delayed")]
        assert jobs(context["dead"]) == [made["dead"].pk]
        assert jobs(context["processed"]) == [made["done"].pk]
        assert [row["pattern"] for row in context["subscriptions"]["rows"]] == patterns
        assert [row["topic"] for row in context["unhandled"]["rows"]] == lost
    assert len(shown(admin_client, q="audit")["claims"]["rows"]) == 1
    assert shown(admin_client, q="receipt")["claims"]["rows"] == []
    assert jobs(shown(admin_client, q="100%")["pending"]) == []
    assert "Nothing matches." in text(admin_client, q="100%")
    assert shown(admin_client, q="orders")["cards"] == []
    assert shown(admin_client, q="a\x00b")["search"] == "ab"


# --- claims -------------------------------------------------------------------------------------------


def test_claims_say_whether_their_holder_beats(admin_client: Client) -> None:
    late = rows.now() - timedelta(seconds=20)
    rows.a_claim(rows.a_running(**rows.event()))
    rows.a_claim(rows.a_delayed(delivery=1, **rows.event()), leased_until=late)
    rows.a_claim(rows.a_running(**rows.event()), leased_until=late)  # its message was renewed
    rows.a_claim(rows.an_archived(**rows.event()), leased_until=None, completed_at=late)
    context = shown(admin_client)["claims"]
    told = [row["state"].partition(" until ")[0].partition(" since ")[0].split()[0] for row in context["rows"]]
    assert told == ["running", "silent", "running", "completed"]
    assert (context["running"], context["silent"], context["completed"]) == ("2", "1", "1")
    for row in context["rows"]:
        assert admin_client.get(row["url"], follow=True).status_code == 200


def test_nobody_is_silent_in_the_time_of_a_lease_after_a_restart(
    monkeypatch: pytest.MonkeyPatch, admin_client: Client
) -> None:
    monkeypatch.undo()
    for name in ("COUNTS", "CLAIMS"):
        now = getattr(stats_sql, name).sql.replace(UP_SINCE, "statement_timestamp()")
        monkeypatch.setattr(stats_sql, name, Statement(sql=now))
    rows.a_claim(rows.a_delayed(**rows.event()), leased_until=rows.now() - timedelta(seconds=20))
    assert claim_stats.counts().silent == Count(0)
    assert not claim_stats.claims()[0].silent
    (row,) = shown(admin_client)["claims"]["rows"]
    assert row["state"].startswith("not heard since ")


@pytest.mark.django_db(transaction=True)
def test_what_workers_write_is_what_the_page_reads(admin_client: Client) -> None:
    running = eventful.picked_up()
    eventful.publish_once(running.event)
    second = eventful.claim_event()
    assert eventful.pick_up(second).skipped == [second]
    publish("nobody.hears")
    context = shown(admin_client)
    assert jobs(context["pending"]) == [running.id]
    assert jobs(context["processed"]) == [second.id]
    assert [(row["job"], row["state"].split()[0]) for row in context["claims"]["rows"]] == [
        (str(running.id), "running")
    ]
    assert [(str(row["reason"]), row["number"]) for row in context["skipped"]] == [("being handled", "1")]
    assert [(row["topic"], row["handled"]) for row in context["unhandled"]["rows"]] == [("nobody.hears", False)]
    assert "Another copy of this event was being handled." in page(admin_client, Archived.objects.get(pk=second.id))
    succeed(running)
    (claim,) = shown(admin_client)["claims"]["rows"]
    assert claim["state"].startswith("completed ")


@pytest.mark.django_db(transaction=True)
def test_a_redelivered_copy_is_owned_until_the_lease_of_its_claim_ends(admin_client: Client) -> None:
    running = eventful.picked_up()
    assert lifecycle.hand_back([(running.id, running.delivery)], even_running=True) == [running.id]
    assert eventful.pick_up(*eventful.claim_events()).waiting
    (row,) = shown(admin_client)["pending"]["rows"]
    assert (row["job"], str(row["standing"].state)) == (str(running.id), "owned")
    assert states(admin_client, "delayed") == {running.id: "owned"}


# --- subscriptions ------------------------------------------------------------------------------------


def test_subscriptions_say_whether_a_living_worker_drains_their_queue(admin_client: Client) -> None:
    rows.a_worker(queues="*: 10; @events: 2")
    rows.a_worker(queues="@silent", beat_at=rows.now() - timedelta(minutes=5))
    QueueState.objects.create(queue="@paused", paused_at=rows.now(), paused_by="anna")
    for name in ("@events", "@paused", "@silent"):
        rows.a_subscription(f"orders.{name[1:]}", queue=name)
    found = {row["queue"]: row["serving"]["state"] for row in shown(admin_client)["subscriptions"]["rows"]}
    assert found == {"@events": "served", "@paused": "paused", "@silent": "no worker"}


def test_the_index_names_queues_with_handlers_that_nobody_serves(admin_client: Client) -> None:
    rows.a_subscription("orders.paid", queue="@mail")
    rows.a_subscription("orders.#", queue="@events")
    index = reverse("admin:app_list", args=["pgbus"])
    warning = "Handlers are subscribed to a queue that no running worker serves: @mail."
    assert warning not in admin_client.get(index).content.decode(), "that no worker runs is said already"
    rows.a_worker(queues="@events: 5")
    assert warning in admin_client.get(index).content.decode()
    rows.a_worker(queues="*, @*: 5")
    assert warning not in admin_client.get(index).content.decode()


def test_unbinding_is_asked_for_done_and_logged(admin_client: Client) -> None:
    rows.a_subscription("orders.*")
    rows.a_subscription("orders.#")
    url = shown(admin_client)["subscriptions"]["rows"][0]["unbind_url"]
    asked = ask(admin_client, url)
    told_before = unescape(asked.content.decode())
    assert "Unbind tests.admin.handlers.audit from orders.#?" in told_before
    assert "What was published before still comes to it." in told_before
    assert "A worker whose code has the handler subscribes it again when it starts" in told_before
    assert Subscription.objects.count() == 2, "GET changes nothing"
    assert told(answer(admin_client, url, asked)) == ["Handler tests.admin.handlers.audit was unbound from orders.#."]
    assert [row.pattern for row in Subscription.objects.all()] == ["orders.*"]
    assert [(model, text) for model, _, text in logged()] == [("subscription", "Unbound from orders.#.")]
    again = admin_client.post(url, {"post": "yes"}, follow=True)
    assert told(again) == ["Nothing was changed: this handler is not subscribed to this pattern any more."]
    assert len(logged()) == 1


def test_what_cannot_be_a_handler_is_not_subscribed(admin_client: Client) -> None:
    for handler in ("", "no.such", "a\x00b"):
        path = reverse("admin:pgbus_subscription_unbind", query={"handler": handler, "pattern": "#"})
        response = admin_client.get(path, follow=True)
        assert told(response) == ["Nothing was changed: this handler is not subscribed to this pattern any more."]


# --- what nobody handles, and what was skipped --------------------------------------------------------


def test_topics_that_nobody_handles_are_summed(admin_client: Client) -> None:
    late = rows.now() - timedelta(hours=1)
    rows.an_event_count("orders.lost", 3, last_at=late)
    rows.an_event_count("orders.lost", 4)
    rows.an_event_count("payments.lost", 1, last_at=late)
    rows.a_subscription("payments.*", RECEIPT)
    found = shown(admin_client)["unhandled"]["rows"]
    assert [(row["topic"], row["number"], row["handled"]) for row in found] == [
        ("orders.lost", "7", False),
        ("payments.lost", "1", True),
    ]


def test_skipped_deliveries_are_summed_by_reason(admin_client: Client) -> None:
    for handler in (rows.HANDLER, RECEIPT):
        rows.an_event_count(handler, 2, "skipped", reason="completed")
    rows.an_event_count(rows.HANDLER, 5, "skipped", reason="owned")
    found = shown(admin_client)["skipped"]
    assert [(str(row["reason"]), row["number"]) for row in found] == [("handled before", "4"), ("being handled", "5")]
    assert "skipped" not in [card["label"] for card in shown(admin_client)["cards"] if not card["url"]]


def test_without_any_event_the_page_says_so(admin_client: Client) -> None:
    said = text(admin_client)
    for sentence in ("No copy of an event waits or runs.", "No event is claimed.", "Every event met a handler."):
        assert sentence in said


# --- what a copy carries ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [rows.a_message, rows.a_running, rows.a_delayed, rows.an_archived, rows.a_dead_letter])
def test_a_copy_is_shown_as_an_event_with_sensitive_keys_masked(make: Any, admin_client: Client) -> None:
    body = {"order_id": 1043, "token": SECRET, "lines": [{"token": [SECRET], "sku": "LP-17"}]}
    error = rows.error(traceback=f"ValueError: bad token {SECRET!r}")
    headers = {"correlation_id": "abc-1", "token": SECRET}
    job = make(**rows.event(body, headers, task=RECEIPT, topic="orders.paid", errors=[error]))
    said = page(admin_client, job)
    for text in ("orders.paid", str(job.event_id), RECEIPT, '"order_id": 1043', '"sku": "LP-17"', "abc-1", MASK):
        assert text in said
    for text in (SECRET, "field-arguments", "field-result_text", "cannot be imported here"):
        assert text not in said


@pytest.mark.parametrize("make", [rows.a_message, rows.a_running, rows.a_delayed, rows.an_archived, rows.a_dead_letter])
@pytest.mark.parametrize("task", [rows.GONE_HANDLER, rows.TASK, "", "tests.admin.exits.on_import"])
def test_of_a_handler_that_is_not_there_every_value_is_masked(make: Any, task: str, admin_client: Client) -> None:
    headers = {"correlation_id": "abc-1", "tenant": SECRET}
    job = make(**rows.event({"token": SECRET, "lines": [SECRET, {"cents": 1999}]}, headers, task=task))
    said = page(admin_client, job)
    assert "cannot be imported here" in said
    assert "its values are hidden" in said
    assert json.dumps({"token": MASK, "lines": [MASK, {"cents": MASK}]}, indent=2) in said
    assert "abc-1" in said
    for text in (SECRET, "1999"):
        assert text not in said


@pytest.mark.parametrize("task", [rows.HANDLER, RECEIPT, rows.GONE_HANDLER])
@pytest.mark.parametrize(
    "stored",
    ["[1, 2]", '"text"', "{}", "null", '{"payload": 1}', "[" * 900 + "]" * 900, '{"args": ["a"], "kwargs": {}}'],
)
def test_what_was_written_past_us_breaks_no_page(stored: str, task: str, admin_client: Client) -> None:
    said = page(admin_client, rows.a_message(**{**rows.event(task=task), "payload": stored}))
    if task != rows.HANDLER:
        assert MASK in said


@pytest.mark.parametrize("lacking", ["topic", "event_id"])
def test_half_an_event_is_shown_as_one_wherever_it_is(lacking: str, admin_client: Client) -> None:
    event = uuid.uuid4()
    made = [
        make(**{**rows.event(event_id=event, constraints=constraints), lacking: None})
        for make in (rows.a_message, rows.a_running, rows.a_delayed, rows.a_dead_letter)
        for constraints in ('{"idempotent": true}', None)
    ]
    made.append(rows.an_archived(**{**rows.event(event_id=event), lacking: None}))
    listed = len(made) if lacking == "topic" else 0
    for query in ({}, {"q": rows.HANDLER}, {"q": "orders"}, {"q": str(event)}):
        context = shown(admin_client, **query)
        sections = [context[name] for name in ("pending", "dead", "processed", "copies") if context.get(name)]
        found = 0 if query == {"q": "orders"} else listed
        assert sum(len(section["rows"]) for section in sections) == found, query
        assert text(admin_client, **query).count("without a topic") == found
    for job in made:
        said = page(admin_client, job)
        assert ("without a topic" in said) == (lacking == "topic")
        assert '"order_id": 17' in said  # of the payload, which is no task's arguments
    for name in LISTS:
        for query in ({}, {"kind": "events"}, {"event": str(event)}, {"q": "audit"}):
            assert admin_client.get(reverse(f"admin:pgbus_{name}_changelist", query=query)).status_code == 200
    listing = admin_client.get(reverse("admin:pgbus_message_changelist")).content.decode()
    assert listing.count("without a topic") == (8 if listed else 0)


def test_whether_it_counts_once_is_said(admin_client: Client) -> None:
    assert "at most one run of this handler counts" not in page(admin_client, rows.a_message(**rows.event()))
    once = rows.a_message(**rows.event(constraints='{"idempotent": true}'))
    assert "at most one run of this handler counts" in page(admin_client, once)


# --- decisions ----------------------------------------------------------------------------------------


def test_a_dead_event_is_redriven_with_its_id_kept(admin_client: Client) -> None:
    letter = rows.a_dead_letter(**rows.event())
    (row,) = shown(admin_client)["dead"]["rows"]
    assert [str(one["label"]) for one in row["decisions"]] == ["Redrive", "Discard"]
    response = admin_client.post(row["decisions"][0]["url"], {"post": "yes"}, follow=True)
    assert told(response) == ["1 dead letter was redriven."]
    job = Message.objects.get(pk=letter.pk)
    assert (job.event_id, job.topic, job.attempts) == (letter.event_id, letter.topic, 0)
    assert logged() == [("deadletter", str(letter.pk), "Redriven.")]


@pytest.mark.parametrize("make", [rows.a_message, rows.a_delayed, rows.a_dead_letter])
def test_a_copy_is_discarded_alone(make: Any, admin_client: Client) -> None:
    job = make(**rows.event())
    other = rows.a_message(**rows.event(event_id=job.event_id, task=RECEIPT))
    decide(admin_client, job, "discard")
    archived = Archived.objects.get(pk=job.pk)
    assert (archived.outcome, archived.event_id) == ("discarded", job.event_id)
    assert Message.objects.filter(pk=other.pk).exists()
    assert logged() == [(job._meta.model_name, str(job.pk), "Discarded.")]


def test_the_page_offers_only_what_a_person_may_decide(login: Login) -> None:
    a_copy_everywhere()
    rows.a_subscription()
    address = reverse(PAGE)
    reader = login("view_subscription", "view_processedevent", *COPIES)
    said = reader.get(address).content.decode()
    assert "/change/" in said
    for decision in ("/unbind/", "/redrive/", "/discard/"):
        assert decision not in said
    decider = login("view_subscription", *COPIES, "discard_job", "redrive_dead_letter", username="decider")
    said = decider.get(address).content.decode()
    assert "/redrive/" in said
    assert said.count("/discard/") == 3  # ready, running and delayed
    assert "/unbind/" not in said


def test_each_section_is_seen_with_its_own_permission(login: Login) -> None:
    made = a_copy_everywhere()
    rows.a_claim(made["running"])
    event = made["ready"].event_id
    nothing = login("view_subscription", username="nothing")
    context = shown(nothing)
    assert [context[name] for name in ("pending", "dead", "processed", "claims")] == [None] * 4
    context = shown(nothing, q=event)
    assert (context["copies"]["rows"], context["claims"]) == ([], None)
    for codename, section in (
        ("view_deadletter", "dead"),
        ("view_archived", "processed"),
        ("view_processedevent", "claims"),
    ):
        context = shown(login("view_subscription", codename, username=codename))
        assert {name for name in ("pending", "dead", "processed", "claims") if context[name]} == {section}
    line = shown(login("view_subscription", "view_message", username="line"), q=event)
    assert jobs(line["copies"]) == [made["ready"].pk, made["running"].pk]
    assert "/archived/" not in text(login("view_subscription", "view_message", username="linked"), q=event)


def test_copies_on_a_job_are_seen_by_those_who_may_see_them(login: Login) -> None:
    made = a_copy_everywhere()
    said = page(login("view_message"), made["ready"])
    assert "/subscription/" not in said
    assert f">{made['dead'].pk}<" not in said


# --- markup and questions -----------------------------------------------------------------------------


def test_whatever_comes_from_outside_stays_text(admin_client: Client) -> None:
    error = rows.error(exception=f"shop.{EVIL}", traceback=EVIL, worker=EVIL)
    fields = {"task": EVIL, "topic": EVIL[:255], "queue": EVIL, "errors": [error]}
    made = a_copy_everywhere(payload={SHORT: EVIL}, headers={SHORT: EVIL}, **fields)
    known = rows.an_archived(outcome="skipped", note=EVIL, **rows.event({SHORT: EVIL}, {SHORT: EVIL}))
    rows.a_claim(made["running"])
    rows.a_subscription("#", EVIL, queue=EVIL)
    Subscription.objects.update(pattern=EVIL)
    Subscription.objects.create(pattern=EVIL, handler=SHORT, queue=SHORT, regex="^x$")
    rows.an_event_count(EVIL)
    rows.an_event_count(EVIL, 1, "skipped", reason="owned")
    for query in ({}, {"q": EVIL}, {"q": made["ready"].event_id}):
        harmless(admin_client, reverse(PAGE, query=query))
    for job in (*made.values(), known):
        harmless(admin_client, reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk]))
        harmless(admin_client, reverse(f"admin:pgbus_{job._meta.model_name}_changelist", query={"kind": "events"}))
    path = reverse("admin:pgbus_subscription_unbind", query={"handler": EVIL, "pattern": EVIL})
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in harmless(admin_client, path)
    admin_client.post(path, {"post": "yes"})
    harmless(admin_client, reverse(PAGE))
    harmless(admin_client, reverse("admin:index"))  # recent actions


def test_as_many_questions_for_thousands_of_rows_as_for_ten(admin_client: Client) -> None:
    asked = []
    for number in (10, 3000):
        with connection.cursor() as cursor:
            for table, more, values in (
                ("messages", "", ""),
                ("delayed", ", due_at, reason", ", now() + interval '1 hour', 'retry'"),
                ("dead_letters", ", reason", ", 'exhausted'"),
                ("archive", ", outcome", ", 'succeeded'"),
            ):
                cursor.execute(
                    f"INSERT INTO pgbus_{table} (queue, task, payload, event_id, topic{more})"
                    f" SELECT '@events', 'a.b' || n, '{{}}', gen_random_uuid(), 'orders.' || n{values}"
                    f" FROM generate_series(1, {number}) AS n"
                )
            cursor.execute(
                "INSERT INTO pgbus_processed_events (event_id, handler, message_id, delivery, completed_at)"
                " SELECT gen_random_uuid(), 'a.b', n, 1, CASE WHEN n %% 2 = 0 THEN now() END"
                " FROM generate_series(1, %s) AS n",
                [number],
            )
            cursor.execute(
                "INSERT INTO pgbus_event_counts (status, name)"
                " SELECT 'unrouted', 'lost.' || n FROM generate_series(1, %s) AS n",
                [number],
            )
            cursor.execute(
                "INSERT INTO pgbus_subscriptions (pattern, handler, queue, regex)"
                " SELECT 'n.' || n, 'h' || %s, '@events', '^x$' FROM generate_series(1, %s) AS n",
                [number, number],
            )
        job = Message.objects.filter(event_id__isnull=False).latest("id")
        paths = [
            *(reverse(PAGE, query=query) for query in ({}, {"q": "orders"}, {"q": job.event_id})),
            *(reverse(f"admin:pgbus_{name}_changelist", query={"kind": "events"}) for name in LISTS),
            *(reverse(f"admin:pgbus_{name}_changelist", query={"q": job.event_id}) for name in LISTS),
            reverse("admin:pgbus_message_change", args=[job.pk]),
        ]
        counts = []
        for path in paths:
            admin_client.get(path)
            with CaptureQueriesContext(connection) as queries:
                assert admin_client.get(path).status_code == 200
            counts.append(len(queries))
        asked.append(counts)
    assert asked[0] == asked[1]
    assert max(asked[0]) <= 20
    assert [len(shown(admin_client)[name]["rows"]) for name in ("pending", "dead", "processed", "claims")] == [15] * 4
    assert len(shown(admin_client)["subscriptions"]["rows"]) == 200
    assert len(shown(admin_client)["unhandled"]["rows"]) == 50


def test_a_search_in_a_table_full_of_others_uses_its_index() -> None:
    """A million tasks beside ten events: no statement walks through the tasks."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgbus_archive (queue, task, payload, outcome)"
            " SELECT 'default', 'a.b', '{}', 'succeeded' FROM generate_series(1, 20000)"
        )
        rows.an_archived(**rows.event())
        cursor.execute("ANALYZE pgbus_archive")
        cursor.execute("EXPLAIN " + stats.stats_sql.PROCESSED.sql, {"text": "x", "reach": stats.REACH, "most": 15})
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "pgbus_archive_event" in plan
    assert "Seq Scan" not in plan


# --- the command --------------------------------------------------------------------------------------


def test_the_command_lists_removes_and_declares(capsys: pytest.CaptureFixture[str]) -> None:
    def called(*arguments: str) -> str:
        call_command("pgbus_subscriptions", *arguments)
        return capsys.readouterr().out

    assert called() == "No handler is subscribed.\n"
    rows.a_subscription("orders.#")
    rows.a_subscription("orders.*", queue="@other")
    rows.a_subscription("orders.#", handler=rows.GONE_HANDLER)
    _, gone, first, second = called().splitlines()
    assert gone.split()[:3] == ["orders.#", rows.GONE_HANDLER, "@events"]
    assert gone.endswith("not in this code")
    assert first.split()[:3] == ["orders.#", rows.HANDLER, "@events"]
    assert "not in this code" not in first
    assert second.split()[:3] == ["orders.*", rows.HANDLER, "@other"]
    assert called("--unbind", rows.GONE_HANDLER) == f"{rows.GONE_HANDLER} unbound from orders.#\n"
    again = "It is in this code: the next worker that starts, and the next migrate, subscribe it again.\n"
    assert called("--unbind", rows.HANDLER, "--pattern", "orders.*") == f"{rows.HANDLER} unbound from orders.*\n{again}"
    assert called("--unbind", rows.HANDLER) == f"{rows.HANDLER} unbound from orders.#\n{again}"
    with pytest.raises(CommandError, match="is not subscribed"):
        called("--unbind", rows.HANDLER)
    with pytest.raises(CommandError, match="--pattern needs --unbind"):
        called("--pattern", "orders.*")
    assert "subscriptions declared." in called("--declare")
    assert Subscription.objects.filter(handler=ONCE).count() == 1
