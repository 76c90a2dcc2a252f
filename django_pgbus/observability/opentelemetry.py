"""
OpenTelemetry: spans around what is enqueued, published and run, in the trace of whoever asked for it.

    from django_pgbus.observability.opentelemetry import instrument

    instrument()  # in the `ready` of an app, or in the settings: in web processes and workers alike

The API is all it needs (`pip install "django-pgbus[opentelemetry]"`); the project configures an SDK. Names and attributes
follow the semantic conventions of messaging. No argument, payload, key or message of an exception becomes an attribute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from django_pgbus import __version__
from django_pgbus.tasks import tracing
from django_pgbus.tasks.tracing import Hook, Running, Sending

SYSTEM: Final = "pgbus"
FAILED: Final = frozenset({"failed", "dead"})

_registered: Hook | None = None


def instrument(tracer_provider: TracerProvider | None = None, *, links: bool = False, tracebacks: bool = False) -> None:
    """
    Make a span of each enqueue, publish and run from now on; a second call replaces the first.

    A run belongs to the trace of whoever enqueued it; with `links` it begins one of its own, and points there.
    `tracebacks` adds the traceback of a failed attempt, as the admin shows it: without what is declared `sensitive`, but
    it may quote other arguments.
    """
    global _registered
    uninstrument()
    spans = _Spans(trace.get_tracer("django_pgbus", __version__, tracer_provider), links=links, tracebacks=tracebacks)
    _registered = Hook(sends=spans.sends, runs=spans.runs)
    tracing.register(_registered)


def uninstrument() -> None:
    """Make no more spans."""
    global _registered
    if _registered is not None:
        tracing.unregister(_registered)
        _registered = None


class PgbusInstrumentor:
    """What `opentelemetry-instrument` finds by its entry point."""

    def instrument(self, **kwargs: Any) -> None:
        """Do as the function does; what else it is told is for others."""
        instrument(kwargs.get("tracer_provider"))

    def uninstrument(self, **kwargs: Any) -> None:
        """Do as the function does."""
        uninstrument()


class _Spans:
    def __init__(self, tracer: Tracer, *, links: bool, tracebacks: bool) -> None:
        self._tracer = tracer
        self._links = links
        self._tracebacks = tracebacks

    @contextmanager
    def sends(self, sending: Sending) -> Iterator[None]:
        """Stand around an enqueue or a publish."""
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": sending.operation,
            "messaging.operation.type": "create" if sending.operation == "create" else "send",
        }
        if sending.destination:
            attributes["messaging.destination.name"] = sending.destination
        if sending.task:
            attributes["pgbus.task"] = sending.task
        if sending.count > 1:
            attributes["messaging.batch.message_count"] = sending.count
        name = f"{sending.operation} {sending.destination}".rstrip()
        with self._span(name, SpanKind.PRODUCER, attributes) as span:
            propagate.inject(sending.headers)
            yield
            if sending.id:
                span.set_attribute("messaging.message.id", sending.id)
            if sending.exception:
                _fail(span, sending.exception)

    @contextmanager
    def runs(self, running: Running) -> Iterator[None]:
        """Stand around a run, which continues the trace that its message carries."""
        context, links = self._parent(running)
        token = contexts.attach(context)
        try:
            name = f"process {running.task}"
            with self._span(name, SpanKind.CONSUMER, _attributes(running), links=links) as span:
                yield
                self._ended(span, running)
        finally:
            contexts.detach(token)

    def _span(self, name: str, kind: SpanKind, attributes: dict[str, Any], links: Any = None) -> Any:
        return self._tracer.start_as_current_span(
            name, kind=kind, attributes=attributes, links=links, record_exception=False, set_status_on_exception=False
        )

    def _parent(self, running: Running) -> tuple[Context, list[Link]]:
        try:
            context = propagate.extract(running.headers, context=Context())
        except Exception:  # what somebody has written into the message; the run has its span all the same
            context = Context()
        if not self._links:
            return context, []
        sender = trace.get_current_span(context).get_span_context()
        return trace.set_span_in_context(INVALID_SPAN, context), [Link(sender)] if sender.is_valid else []

    def _ended(self, span: Span, running: Running) -> None:
        if running.outcome:
            span.set_attribute("pgbus.outcome", running.outcome)
        if running.exception or running.outcome in FAILED:
            _fail(span, running.exception, running.traceback if self._tracebacks else "")


def _attributes(running: Running) -> dict[str, Any]:
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": running.topic or running.queue,
        "pgbus.task": running.task,
        "pgbus.attempt": running.attempt,
        "pgbus.delivery": running.delivery,
    }
    if running.queue:
        attributes |= {"pgbus.queue": running.queue, "pgbus.id": running.id}
    if running.message:
        attributes["messaging.message.id"] = running.message
    if running.group:
        attributes["messaging.consumer.group.name"] = running.group
    if running.batch is not None:
        attributes["pgbus.batch"] = running.batch
    if running.waited is not None:
        attributes["pgbus.waited"] = running.waited
    if running.group and not running.message:
        attributes["messaging.batch.message_count"] = running.count
    return attributes


def _fail(span: Span, exception: str, traceback: str = "") -> None:
    span.set_status(Status(StatusCode.ERROR))
    if exception:
        span.set_attribute("error.type", exception)
        told = {"exception.type": exception}
        if traceback:
            told["exception.stacktrace"] = traceback
        span.add_event("exception", told)
