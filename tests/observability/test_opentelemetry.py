"""Spans of what is enqueued, published and run: one trace, whatever became of the messages in between."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import override_settings
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_pgbus import Batch, JobNotUnique, enqueue_many, publish, publish_many, signals
from django_pgbus.models import Archived, BlockedExecution, DeadLetter, Message
from django_pgbus.observability import opentelemetry
from django_pgbus.streams.consumers import consume
from django_pgbus.tasks import lifecycle, tracing
from django_pgbus.testing import consume_stream, deliver_published, run_enqueued
from tests import constrained
from tests.observability import traced
from tests.running import run_burst
from tests.sessions import execute
from tests.streams.following import a_stream, nothing_declared

MODULE = traced.__name__
pytestmark = pytest.mark.django_db
COMMITTED = pytest.mark.django_db(transaction=True)


class Spans:
    """What was exported, and a tracer for what is not ours."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("web")

    def request(self) -> Any:
        return self.tracer.start_as_current_span("GET /")

    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def the(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    traced.seen.clear()
    spans = Spans()
    opentelemetry.instrument(spans.provider)
    try:
        yield spans
    finally:
        opentelemetry.uninstrument()


def is_child(span: ReadableSpan, of: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == of.context.span_id and same_trace(span, of)


def same_trace(*spans: ReadableSpan) -> bool:
    return len({span.context.trace_id for span in spans}) == 1


def told(spans: list[ReadableSpan]) -> str:
    """Return everything that spans tell."""
    return "".join(span.to_json() for span in spans)


# --- one trace ----------------------------------------------------------------------------------------


@COMMITTED
def test_one_trace_from_a_request_through_a_task_to_the_handler_of_an_event(spans):
    traced.declare()
    with spans.request():
        result = traced.order.enqueue(7)
    assert run_burst("*, @*") == 0
    request, sent, ran = spans.the("GET /"), spans.named("send default")[0], spans.the(f"process {MODULE}.order")
    published, handled = spans.the("publish traced.ordered"), spans.the(f"process {MODULE}.ship")
    last_sent, last = spans.named("send default")[1], spans.the(f"process {MODULE}.label")
    steps = [request, sent, ran, published, handled, last_sent, last]
    assert same_trace(*steps)
    assert all(is_child(step, of) for step, of in zip(steps[1:], steps, strict=False))
    assert len(spans.all()) == len(steps)
    kinds = [SpanKind.PRODUCER, SpanKind.CONSUMER] * 3
    assert [step.kind for step in steps[1:]] == kinds
    ids = [entry for entry in traced.seen if isinstance(entry, tuple)]
    assert ids == [(name, span.context.span_id) for name, span in (("order", ran), ("ship", handled), ("label", last))]
    assert {} in traced.seen, "the headers of the event are its publisher's own"
    assert dict(sent.attributes or {}) == {
        "messaging.system": "pgbus",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": result.id,
        "pgbus.task": f"{MODULE}.order",
    }
    about_run = dict(ran.attributes or {})
    assert 0 <= about_run.pop("pgbus.waited") < 60
    assert about_run == {
        "messaging.system": "pgbus",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": result.id,
        "pgbus.task": f"{MODULE}.order",
        "pgbus.queue": "default",
        "pgbus.id": int(result.id),
        "pgbus.attempt": 1,
        "pgbus.delivery": 1,
        "pgbus.outcome": "succeeded",
    }
    copy = Archived.objects.get(task=f"{MODULE}.ship")
    about = handled.attributes or {}
    assert about["messaging.destination.name"] == "traced.ordered"
    assert about["messaging.message.id"] == (published.attributes or {})["messaging.message.id"] == str(copy.event_id)
    assert (about["pgbus.queue"], about["pgbus.id"]) == ("@traced", copy.id)


@COMMITTED
def test_async_code_and_its_threads_are_in_the_span(spans):
    with spans.request():
        traced.aorder.enqueue(1)
    assert run_burst() == 0
    ran, label = spans.the(f"process {MODULE}.aorder"), spans.the(f"process {MODULE}.label")
    assert traced.seen[:2] == [("aorder", ran.context.span_id), ("aorder in a thread", ran.context.span_id)]
    assert same_trace(spans.the("GET /"), ran, label)


def test_an_asynchronous_request(spans):
    async def view() -> None:
        with spans.request():
            await traced.label.aenqueue(1)

    async_to_sync(view)()
    assert is_child(spans.the("send default"), spans.the("GET /"))


def test_many_are_sent_by_one_span(spans):
    enqueue_many(traced.label, [((number,), {}) for number in range(3)])
    run_enqueued()
    sent = spans.the("send default")
    ran = spans.named(f"process {MODULE}.label")
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in (sent.attributes or {})
    assert len(ran) == 3
    assert all(is_child(span, sent) for span in ran)
    assert enqueue_many(traced.label, []) == []
    assert len(spans.named("send default")) == 1, "nothing was sent"


def test_events_of_several_topics_are_published_by_one_span(spans):
    traced.declare()
    assert publish_many(
        [("traced.ordered", {"order": 1}), ("traced.other", None), ("traced.ordered", {"order": 2})]
    ) == [1, 0, 1]
    deliver_published()
    sent = spans.the("publish")
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    assert "messaging.destination.name" not in (sent.attributes or {})
    assert all(is_child(span, sent) for span in spans.named(f"process {MODULE}.ship"))


def test_delayed_and_tried_again_each_attempt_is_a_span_of_the_same_parent(spans):
    traced.fails.using(run_after=timedelta(hours=1)).enqueue()
    run_enqueued(include_delayed=True, raise_failures=False)
    sent, (first, second) = spans.the("send default"), spans.named(f"process {MODULE}.fails")
    assert is_child(first, sent)
    assert is_child(second, sent)
    attributes = [span.attributes or {} for span in (first, second)]
    assert [(a["pgbus.attempt"], a["pgbus.delivery"], a["pgbus.outcome"]) for a in attributes] == [
        (1, 1, "failed"),
        (2, 2, "dead"),
    ]
    for span in (first, second):
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "builtins.ValueError"


def test_a_redriven_job_stays_in_its_trace(spans):
    traced.fails.enqueue()
    run_enqueued(include_delayed=True, raise_failures=False)
    lifecycle.redrive([DeadLetter.objects.get().id])
    run_enqueued(include_delayed=True, raise_failures=False)
    sent, runs = spans.the("send default"), spans.named(f"process {MODULE}.fails")
    assert [(span.attributes or {})["pgbus.attempt"] for span in runs] == [1, 2, 1, 2]
    assert all(is_child(span, sent) for span in runs)


@COMMITTED
def test_parked_and_promoted(spans):
    for number in (1, 2):
        with spans.request():
            traced.one.enqueue("key", number)
    assert BlockedExecution.objects.count() + Message.objects.count() == 2
    assert run_burst() == 0
    assert [name for name, _ in traced.seen] == ["one 1", "one 2"]
    for sent, ran in zip(spans.named("send default"), spans.named(f"process {MODULE}.one"), strict=True):
        assert is_child(ran, sent)


def test_a_snooze_is_no_error(spans):
    traced.snoozes.enqueue()
    run_enqueued()
    ran = spans.the(f"process {MODULE}.snoozes")
    assert (ran.attributes or {})["pgbus.outcome"] == "snoozed"
    assert ran.status.status_code is StatusCode.UNSET


def test_an_attempt_that_fails_before_its_function_is_called_has_a_span_too(spans):
    traced.gone.enqueue()
    execute("UPDATE pgbus_messages SET task = %s", [f"{MODULE}.nowhere"])
    run_enqueued(raise_failures=False)
    ran = spans.the(f"process {MODULE}.nowhere")
    assert is_child(ran, spans.the("send default"))
    assert (ran.attributes or {})["pgbus.outcome"] == "failed"
    assert ran.status.status_code is StatusCode.ERROR


def test_what_is_refused_is_an_error_of_the_one_who_sends(spans):
    constrained.unique.enqueue("key")
    with pytest.raises(JobNotUnique):
        constrained.unique.enqueue("key")
    first, second = spans.named("send default")
    assert first.status.status_code is StatusCode.UNSET
    assert (second.attributes or {})["error.type"] == "django_pgbus.exceptions.JobNotUnique"


# --- batches ------------------------------------------------------------------------------------------


def test_members_and_callbacks_of_a_batch(spans):
    with spans.request(), Batch(on_finish=traced.ended.using(queue_name="ends")):
        traced.label.enqueue(1)
    run_enqueued()
    request, created = spans.the("GET /"), spans.the("create ends")
    member, ended = spans.the(f"process {MODULE}.label"), spans.the(f"process {MODULE}.ended")
    assert is_child(created, request)
    assert is_child(ended, created)
    assert is_child(member, spans.the("send default"))
    assert "pgbus.batch" in (member.attributes or {})


@COMMITTED
def test_members_of_an_asynchronous_block(spans):
    async def view() -> None:
        with spans.request():
            async with Batch(on_success=traced.ended):
                await traced.label.aenqueue(1)

    async_to_sync(view)()
    assert run_burst() == 0
    ran = [spans.the(f"process {MODULE}.{name}") for name in ("label", "ended")]
    assert same_trace(spans.the("GET /"), *ran)
    assert is_child(ran[0], spans.the("send default"))
    assert is_child(ran[1], spans.the("create default"))


# --- streams ------------------------------------------------------------------------------------------


def test_the_handler_of_a_stream_has_a_span_for_each_range(spans):
    with nothing_declared():
        stream = a_stream("traced", entries=4)
        consume("traced", group="ones")(handle_entry)
        consume_stream("traced", "ones")
        stream.append({"n": 13})
        consume_stream("traced", "ones", raise_failures=False)
    first, second = spans.named(f"process {__name__}.handle_entry")[:2]
    about = first.attributes or {}
    assert (about["messaging.destination.name"], about["messaging.consumer.group.name"]) == ("traced", "ones")
    assert (about["messaging.batch.message_count"], about["pgbus.outcome"]) == (4, "succeeded")
    assert traced.seen[0] == ("entry", first.context.span_id)
    assert (second.attributes or {})["pgbus.outcome"] == "failed"
    assert (second.attributes or {})["error.type"] == "builtins.ValueError"


def handle_entry(entry: Any) -> None:
    traced.look("entry")
    if entry.payload["n"] == 13:
        raise ValueError("no")


# --- what is told, and what is not --------------------------------------------------------------------


def test_no_span_tells_arguments_keys_or_messages_of_exceptions(spans):
    traced.declare()
    with spans.request():
        traced.fails.enqueue(traced.SECRET)
        traced.login.enqueue("ann", token=traced.SECRET)
        traced.one.enqueue(traced.SECRET, 1)
        constrained.unique.enqueue(traced.SECRET)
        with pytest.raises(JobNotUnique):
            constrained.unique.enqueue(traced.SECRET)
        publish(
            "traced.ordered", {"order": traced.SECRET}, headers={"secret": traced.SECRET}, correlation_id=traced.SECRET
        )
        with Batch(
            traced.SECRET, properties={"secret": traced.SECRET}, key=f"{traced.SECRET} batch", on_finish=traced.ended
        ):
            traced.label.enqueue(traced.SECRET)
    run_enqueued(include_delayed=True, raise_failures=False)
    deliver_published()
    run_enqueued()
    names = {span.name for span in spans.all()}
    assert {f"process {MODULE}.{name}" for name in ("fails", "login", "one", "ended", "ship", "label")} <= names
    assert traced.SECRET not in told(spans.all())
    (event,) = spans.named(f"process {MODULE}.login")[0].events
    assert (event.name, dict(event.attributes or {})) == ("exception", {"exception.type": "builtins.ValueError"})


def test_tracebacks_are_told_to_who_asks_without_what_is_sensitive(spans):
    opentelemetry.instrument(spans.provider, tracebacks=True)
    traced.login.enqueue("ann", token=traced.SECRET)
    run_enqueued(raise_failures=False)
    (event,) = spans.the(f"process {MODULE}.login").events
    assert "ann has the bad token ********" in str((event.attributes or {})["exception.stacktrace"])
    assert traced.SECRET not in told(spans.all())


def test_a_trace_of_its_own_with_a_link(spans):
    opentelemetry.instrument(spans.provider, links=True)
    traced.label.enqueue(1)
    run_enqueued()
    sent, ran = spans.the("send default"), spans.the(f"process {MODULE}.label")
    assert ran.parent is None
    assert [link.context.span_id for link in ran.links] == [sent.context.span_id]


@pytest.mark.parametrize("links", [False, True])
def test_baggage_travels(spans, links):
    opentelemetry.instrument(spans.provider, links=links)
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        traced.who.enqueue()
    finally:
        context.detach(token)
    run_enqueued()
    assert traced.seen == ["acme"]


@pytest.mark.parametrize(
    "tail",
    [
        ',"trace":{"traceparent":"00-nonsense","tracestate":"\\u0000","baggage":"%%%=;;,"}}',
        ',"trace":{"traceparent":7,"baggage":null}}',
        ',"trace":[1,2]}',
        ',"trace":"text"}',
        ',"trace":{}}',
        "}",
    ],
)
def test_what_cannot_be_read_as_a_trace_is_a_run_without_a_parent(spans, tail):
    traced.label.enqueue(1)
    execute("UPDATE pgbus_messages SET payload = %s::json", ['{"args":[1],"kwargs":{}' + tail])
    run_enqueued()
    ran = spans.the(f"process {MODULE}.label")
    assert ran.parent is None
    assert (ran.attributes or {})["pgbus.outcome"] == "succeeded"


# --- the message --------------------------------------------------------------------------------------


def test_the_message_is_as_ever_but_for_its_trace(spans):
    result = traced.label.enqueue(1)
    document = json.loads(Message.objects.get().payload)
    assert list(document) == ["args", "kwargs", "trace"]
    assert document["args"] == [1]
    assert list(document["trace"]) == ["traceparent"]
    assert (result.args, result.kwargs) == ([1], {})
    result.refresh()
    assert (result.args, result.kwargs) == ([1], {})


def test_without_a_hook_nothing_is_added(spans):
    traced.declare()
    opentelemetry.uninstrument()
    traced.label.enqueue(1)
    enqueue_many(traced.label, [((2,), {})])
    publish("traced.ordered", {"order": 3})
    with Batch(on_finish=traced.ended):
        pass
    texts = [text for (text,) in execute("SELECT payload::text FROM pgbus_messages ORDER BY id")]
    assert texts[:3] == [
        '{"args":[1],"kwargs":{}}',
        '{"args":[2],"kwargs":{}}',
        '{"payload":{"order":3},"headers":{}}',
    ]
    assert not any('"trace"' in text for text in texts)
    assert not any('"trace"' in text for (text,) in execute("SELECT callbacks::text FROM pgbus_batches"))
    run_enqueued()
    assert spans.all() == []


def test_headers_take_nothing_away_from_the_arguments(spans):
    text = "x" * 100
    size = len(json.dumps({"args": [text], "kwargs": {}}, separators=(",", ":")))
    with override_settings(PGBUS={"MAX_PAYLOAD_BYTES": size}):
        traced.label.enqueue(text)
    assert '"trace"' in Message.objects.get().payload


# --- harm ---------------------------------------------------------------------------------------------


class Breaks(SpanExporter, SpanProcessor):
    """An exporter, and a processor, that raises whenever it is asked for anything."""

    def export(self, spans: Any) -> Any:
        raise RuntimeError("no export")

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.early:
            raise RuntimeError("no start")

    def on_end(self, span: Any) -> None:
        raise SystemExit("no end")

    early = False


@pytest.fixture
def announced() -> Iterator[list[Any]]:
    heard: list[Any] = []

    def hear(part: str, exception: BaseException, **kwargs: Any) -> None:
        heard.append((part, type(exception)))

    signals.loop_failed.connect(hear)
    yield heard
    signals.loop_failed.disconnect(hear)


def works() -> bool:
    """Enqueue, publish and run as ever."""
    traced.seen.clear()
    traced.declare()
    with Batch(on_finish=traced.ended):
        traced.order.enqueue(1)
    enqueue_many(traced.label, [((2,), {})])
    run_enqueued()
    deliver_published()
    results = run_enqueued()
    names = [entry[0] for entry in traced.seen if isinstance(entry, tuple)]
    return (
        sorted(names) == ["ended", "label", "label", "order", "ship"]
        and not DeadLetter.objects.exists()
        and bool(results)
    )


@pytest.mark.parametrize("early", [False, True])
def test_a_processor_that_breaks_changes_nothing(spans, announced, early):
    breaks = Breaks()
    breaks.early = early
    spans.provider.add_span_processor(breaks)
    assert works()
    assert announced == [(tracing.PART, RuntimeError if early else SystemExit)], "said once, not for every message"
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_exporter_that_breaks_changes_nothing(spans, announced):
    spans.provider.add_span_processor(SimpleSpanProcessor(Breaks()))
    assert works()
    assert announced == [], "the SDK has caught it"


def test_a_propagator_that_breaks_changes_nothing(spans, announced, monkeypatch):
    def breaks(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("no propagator")

    monkeypatch.setattr(propagate, "inject", breaks)
    monkeypatch.setattr(propagate, "extract", breaks)
    assert works()
    assert announced == [(tracing.PART, KeyError)]
    assert spans.named(f"process {MODULE}.order"), "a run has its span all the same"


def test_a_handler_of_a_stream_handles_beside_a_broken_tracer(spans):
    spans.provider.add_span_processor(Breaks())
    with nothing_declared():
        a_stream("traced", entries=2)
        consume("traced", group="ones")(handle_entry)
        assert consume_stream("traced", "ones") == 2
    assert [name for name, _ in traced.seen] == ["entry", "entry"]


def test_a_task_that_fails_fails_beside_a_broken_tracer(spans):
    spans.provider.add_span_processor(Breaks())
    traced.fails.enqueue("no")
    run_enqueued(include_delayed=True, raise_failures=False)
    assert [error["exception"] for error in DeadLetter.objects.get().errors] == ["builtins.ValueError"] * 2


# --- turning it on and off ----------------------------------------------------------------------------


def test_a_second_call_replaces_the_first(spans):
    opentelemetry.instrument(spans.provider)
    traced.label.enqueue(1)
    assert len(spans.named("send default")) == 1
    opentelemetry.uninstrument()
    opentelemetry.uninstrument()
    assert tracing.hooks == ()


def test_what_opentelemetry_instrument_finds_by_its_entry_point():
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, name = pyproject["project"]["entry-points"]["opentelemetry_instrumentor"]["django_pgbus"].partition(":")
    instrumentor = getattr(import_module(module), name)()
    instrumentor.instrument(skip_dep_check=True, raise_exception_on_conflict=True)
    assert len(tracing.hooks) == 1
    instrumentor.uninstrument()
    assert tracing.hooks == ()
