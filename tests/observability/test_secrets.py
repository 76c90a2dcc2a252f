"""
What is declared as sensitive is read by nobody, wherever it went: real runs, and every place that tells of them.

The secret is given by position and by name, nested, in an event and in an entry of a stream; the code that gets it quotes
it in messages, causes, contexts, notes, results and exit codes.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from django_pgbus import Stream, publish, signals
from django_pgbus.models import (
    Archived,
    BlockedExecution,
    DeadLetter,
    Delayed,
    EntryException,
    Message,
    RunCount,
    StreamLog,
)
from django_pgbus.observability import appsignal
from django_pgbus.observability.mcp.tools import TOOLS
from django_pgbus.testing import consume_stream
from tests.observability import secretive
from tests.observability.mcp.asking import ask
from tests.observability.reading import METRICS, TOKEN
from tests.observability.secretive import CORE, NESTED, SECRET
from tests.observability.test_appsignal import Minute
from tests.observability.test_appsignal import minute as minute
from tests.observability.test_opentelemetry import Spans
from tests.observability.test_opentelemetry import spans as spans
from tests.observability.test_opentelemetry import told as told_by_spans
from tests.running import run_burst

pytestmark = pytest.mark.django_db(transaction=True)

BODY = {"order": 17, "token": SECRET, "in": {"cards": NESTED}}
TABLES = (Message, Delayed, Archived, DeadLetter, BlockedExecution)


@pytest.fixture
def told(spans: Spans, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Run everything that knows the secret, while spans and logs are collected; yield what signals told, too."""
    caplog.set_level(logging.DEBUG)
    announced: list[str] = []

    def note(sender: Any, signal: Any, **named: Any) -> None:
        announced.append(str({name: value for name, value in named.items() if name != "exception"}))

    every = [signal for signal in vars(signals).values() if isinstance(signal, signals.Signal)]
    for signal in every:
        signal.connect(note, weak=False)
    try:
        secretive.declare()
        for task in secretive.TASKS:
            task.enqueue(17, SECRET, cards=NESTED)
            task.enqueue(17, token=SECRET, cards=[SECRET])
        assert publish("secretive.told", BODY) == 2
        stream = Stream("secretive")
        stream.ensure()
        stream.append_many([BODY, BODY])
        run_burst("default, @*")
        consume_stream("secretive", raise_failures=False)
        yield announced
    finally:
        for signal in every:
            signal.disconnect(note)


def leaks(text: str, where: Any) -> list[Any]:
    return [where, text[max(0, text.index(CORE) - 300) : text.index(CORE) + 50]] if CORE in text else []


def formatted(record: logging.LogRecord) -> str:
    """Return what handlers may write of a record: its text with the traceback, and its fields."""
    fields = {name: value for name, value in vars(record).items() if name not in {"exc_info", "args"}}
    return f"{logging.Formatter().format(record)} {fields}"


def test_whatever_became_of_it_is_there(told: list[str]) -> None:
    """Nothing is proved by what is not there."""
    assert Archived.objects.filter(task__endswith=".returns", result__contains=CORE).count() == 2
    dead = {path.rpartition(".")[2] for path in DeadLetter.objects.values_list("task", flat=True)}
    assert dead == {"dies", "adies", "exits", "hears"}
    later = {path.rpartition(".")[2] for path in Delayed.objects.values_list("task", flat=True)}
    assert later == {"is_tried_again", "snoozes", "hears_again"}
    assert {*EntryException.objects.values_list("group__name", "status")} == {("dead", "dead"), ("tried", "ready")}
    assert Message.objects.get(queue="unserved", payload__contains="kwargs", pk=Message.objects.earliest("pk").pk)
    assert RunCount.objects.exists()


@pytest.mark.proves("secrets-stay-out-of-sight")
def test_what_is_stored_of_failures_does_not_hold_it(told: list[str]) -> None:
    for table in TABLES:
        for job in table.objects.all():
            assert not leaks(json.dumps(job.errors), job)
    for failed in EntryException.objects.all():
        assert not leaks(failed.exception + failed.traceback, failed.group.name)


def test_it_is_in_no_line_of_the_log_and_in_no_signal(told: list[str], caplog: pytest.LogCaptureFixture) -> None:
    records = [*caplog.get_records("setup"), *caplog.records]
    assert {"django_pgbus"} <= {record.name for record in records}
    assert [found for record in records if (found := leaks(formatted(record), record.name))] == []
    assert [found for text in told if (found := leaks(text, "signal"))] == []


def test_it_is_in_no_span(told: list[str], spans: Spans) -> None:
    assert f"process {secretive.__name__}.dies" in {span.name for span in spans.all()}
    assert not leaks(told_by_spans(spans.all()), "spans")


@pytest.mark.proves("secrets-stay-out-of-sight")
def test_it_is_on_no_page(told: list[str]) -> None:
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ann"))
    for path in every_page_about_it():
        response = client.get(path, follow=True)
        assert response.status_code == 200, path
        text = response.content.decode()
        assert not leaks(text, path)
    for path in decisions():
        assert not leaks(client.post(path, {"post": "yes"}, follow=True).content.decode(), path)
    assert not leaks(client.get("/admin/").content.decode(), "recent actions")


def test_it_is_in_no_number_of_monitors(told: list[str], settings: Any, minute: Minute) -> None:
    settings.PGBUS = {"METRICS_TOKEN": TOKEN}
    client = Client(headers={"Authorization": f"Bearer {TOKEN}"})
    for path in (METRICS, "/pgbus/api/health"):
        text = client.get(path).content.decode()
        assert "default" in text or "health" in path
        assert not leaks(text, path)
    state = appsignal.probe(None)
    appsignal.probe(state)
    assert minute.gauges
    assert not leaks(f"{minute.gauges}{minute.counters}", "AppSignal")


@pytest.mark.proves("secrets-stay-out-of-sight")
@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_no_tool_of_the_mcp_server_tells_it(told: list[str], settings: Any, allowed: bool, asked: bool) -> None:
    settings.PGBUS = {"MCP_PAYLOADS": allowed}
    event = DeadLetter.objects.get(event_id__isnull=False).event_id
    given: dict[str, list[dict[str, Any]]] = {
        "pgbus_queue": [{"name": "default"}, {"name": "unserved"}],
        "pgbus_stream": [{"name": "secretive"}],
        "pgbus_event": [{"id": str(event)}],
    }
    jobs = [{"id": job.pk} for table in TABLES for job in table.objects.all()]
    given |= {"pgbus_job": jobs, "pgbus_why": jobs}
    for tool in TOOLS:
        payload = {"include_payload": asked} if "include_payload" in TOOLS[tool].asked.model_fields else {}
        for question in given.get(tool, [{}]):
            assert not leaks(json.dumps(ask(tool, **question, **payload)), tool)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_doctor_does_not_tell_it(told: list[str], as_json: bool) -> None:
    out = io.StringIO()
    with contextlib.suppress(SystemExit):
        call_command("pgbus_doctor", json=as_json, stdout=out, stderr=out)
    assert "unserved" in out.getvalue()
    assert not leaks(out.getvalue(), "doctor")


def every_page_about_it() -> Iterator[str]:
    """Yield the lists, and the page of each row."""
    yield from ("/admin/", "/admin/pgbus/")
    for name in ("message", "delayed", "archived", "deadletter", "blockedexecution", "batch", "subscription"):
        yield reverse(f"admin:pgbus_{name}_changelist")
    for name in ("streamlog", "semaphore", "queuestate", "worker", "runcount"):
        yield reverse(f"admin:pgbus_{name}_changelist")
    yield reverse("admin:pgbus_message_changelist", query={"queue": "unserved"})
    for table in TABLES:
        for job in table.objects.all():
            yield reverse(f"admin:pgbus_{table._meta.model_name}_change", args=[job.pk])
            yield reverse(f"admin:pgbus_{table._meta.model_name}_history", args=[job.pk])
            if job.event_id:
                yield reverse("admin:pgbus_subscription_changelist", query={"q": job.event_id})
    stream = StreamLog.objects.get(name="secretive")
    yield reverse("admin:pgbus_streamlog_change", args=[stream.pk])
    for entry in EntryException.objects.filter(group__stream=stream):
        yield reverse("admin:pgbus_streamlog_entry", args=[stream.pk, entry.pk])
    yield from decisions()


def decisions() -> Iterator[str]:
    """Yield confirmations about what failed and what waits."""
    for name, table, decision in (
        ("deadletter", DeadLetter, "redrive"),
        ("delayed", Delayed, "run_now"),
        ("message", Message, "discard"),
    ):
        for job in list(table.objects.all()):
            yield reverse(f"admin:pgbus_{name}_{decision}", args=[job.pk])
    stream = StreamLog.objects.get(name="secretive")
    for entry in list(EntryException.objects.filter(group__stream=stream, status="dead")):
        about = {"stream": stream.pk, "group": "dead", "entry": entry.pk}
        yield reverse("admin:pgbus_streamlog_redrive", query=about)
