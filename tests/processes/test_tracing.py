"""Spans of a real worker: its tasks are in the trace of this process, and it exports them before it ends."""

from __future__ import annotations

import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id, format_trace_id

from django_pgbus.observability import opentelemetry
from tests.processes import tasks
from tests.processes.harness import finished
from tests.settings import INSTALLED_APPS

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]

TRACED = "tests.processes.traced.TracedConfig"


@pytest.fixture
def provider():
    provider = TracerProvider()
    opentelemetry.instrument(provider)
    yield provider
    opentelemetry.uninstrument()


def test_a_worker_goes_on_with_the_trace_and_exports_it_when_it_is_stopped(runworker, provider, tmp_path):
    apps = [*INSTALLED_APPS, "tests.processes", TRACED]
    worker = runworker(settings={"INSTALLED_APPS": apps, "SPANS": str(tmp_path)})
    worker.ready()
    with provider.get_tracer("web").start_as_current_span("GET /") as request:
        result = tasks.note.enqueue()
    finished(result)
    assert worker.stop() == 0
    spans = [json.loads(line) for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
    (ran,) = [span for span in spans if span["kind"] == "SpanKind.CONSUMER"]
    assert ran["name"] == "process tests.processes.tasks.note"
    context = request.get_span_context()
    assert int(ran["trace_id"], 16) == int(format_trace_id(context.trace_id), 16)
    assert int(ran["parent_id"], 16) != context.span_id, "between them is the span that sent it"
    assert ran["attributes"]["pgbus.id"] == int(result.id)
    assert format_span_id(context.span_id) not in [span["span_id"] for span in spans]
