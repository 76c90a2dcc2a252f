"""
What a job carries, as far as machines may read it.

Redacted means that nothing of it is told but how much there is. What is told has the sensitive parts masked, as in the
admin: what a task, handler or consumer declares, by name and at whatever depth, and everything of one that this process
cannot import, since nobody can say then what is sensitive. It is JSON as text, cut where it is long.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.utils.dateparse import parse_datetime

from django_pgbus.conf import get_settings
from django_pgbus.events import running
from django_pgbus.events.handlers import Handler, handler_at
from django_pgbus.exceptions import InvalidPayload
from django_pgbus.observability.mcp import words
from django_pgbus.streams.consumers import Consumer, consumer_of
from django_pgbus.tasks.compat import AnyTask
from django_pgbus.tasks.lookup import task_at
from django_pgbus.tasks.masking import MASK as MASK
from django_pgbus.tasks.masking import masked, scrubbed, value_without, without
from django_pgbus.tasks.payload import decode
from django_pgbus.tasks.policy import policy_of
from django_pgbus.tasks.runnable import kind_of
from django_pgbus.tasks.sensitive import masked as masked_keys
from django_pgbus.tasks.sensitive import secrets_in
from django_pgbus.tasks.stats import JobDetails

REDACTED: Final = "[redacted]"
MOST_ATTEMPTS: Final = 10
UNREADABLE: Final = (InvalidPayload, TypeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One failed attempt on record; `exception` is the class of what was raised."""

    number: int | None
    exception: str
    traceback: str
    worker: str
    started_at: datetime | None
    failed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """
    What one job carries, as far as it may be told.

    `payload` holds the arguments of a task, or what an event says and its headers; `result` is None where there is none.
    """

    payload: str = field(repr=False)
    result: str | None = field(repr=False)
    attempts: list[Attempt] = field(repr=False)


def may_tell(include_payload: bool) -> bool:  # noqa: FBT001  (as the tool was asked)
    """Return whether the server allows what the caller asks for."""
    return include_payload and get_settings().MCP_PAYLOADS


def why_redacted(include_payload: bool) -> str:  # noqa: FBT001
    """Return why nothing of a payload is told, empty where it is."""
    if may_tell(include_payload):
        return ""
    if include_payload:
        return 'Payloads are redacted: this server does not tell them (PGBUS["MCP_PAYLOADS"] is False).'
    return "Payloads are redacted: ask with include_payload=true, if this server allows it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """
    What a job runs, as far as this process can import it: a task, the handler of an event, or the consumer of an entry.

    `most` is how many attempts it has, None where nobody can say.
    """

    kind: str
    found: Any
    most: int | None

    @property
    def missing(self) -> bool:
        """Return whether nothing of that kind stands at the stored path here."""
        return self.found is None


def code_of(job: JobDetails) -> Code:
    """Return what a job runs."""
    if job.topic is not None and kind_of(job.topic) == "entry":
        stream, _, group = job.topic.partition("/")
        consumer = consumer_of(stream, group, job.task)
        return Code(kind="entry of a stream", found=consumer, most=None if consumer is None else consumer.attempts)
    if job.of_event:
        handler = handler_at(job.task)
        most = None if handler is None else handler.policy.max_attempts or get_settings().MAX_ATTEMPTS
        return Code(kind="event", found=handler, most=most)
    task = task_at(job.task)
    return Code(kind="task", found=task, most=None if task is None else policy_of(task).max_attempts)


def of_job(job: JobDetails, code: Code, *, tell: bool) -> Carried:
    """Return what a job carries."""
    if not tell:
        return _redacted(job.payload, job.result, job.errors)
    match code.kind:
        case "task":
            return of_task(job.payload, job.result, job.errors, task=code.found)
        case "event":
            return of_event(job.payload, job.errors, handler=code.found)
    return of_routed(job.payload, job.errors, consumer=code.found)


def of_task(payload: str, result: str | None, errors: Any, *, task: AnyTask | None) -> Carried:
    """Return what the job of a task carries."""
    if task is None:
        return _hidden(result, errors)
    try:
        args, kwargs = decode(payload)
        shown = masked(task, args, kwargs)
    except UNREADABLE:  # nobody can say which part of it is sensitive
        return _hidden(result, errors) if policy_of(task).sensitive else _as_stored(payload, result, errors)

    def scrub(text: str) -> str:
        return scrubbed(text, task, args, kwargs)

    return Carried(
        payload=words.text_of(_json({"args": shown[0], "kwargs": shown[1]})),
        result=None if result is None else words.text_of(_scrubbed_json(result, scrub)),
        attempts=_attempts(errors, scrub),
    )


def of_event(payload: str, errors: Any, *, handler: Handler | None) -> Carried:
    """Return what a handler's copy of an event carries; what a handler returns is not kept."""
    if handler is None:
        return _hidden(None, errors)
    hidden = handler.policy.sensitive
    try:
        body, headers = running.opened(payload)
        shown = {"payload": masked_keys(body, hidden), "headers": masked_keys(dict(headers), hidden)}
        secrets = secrets_in(body, hidden) + secrets_in(dict(headers), hidden)
    except UNREADABLE:
        return _hidden(None, errors) if hidden else _as_stored(payload, None, errors)
    return Carried(
        payload=words.text_of(_json(shown)),
        result=None,
        attempts=_attempts(errors, lambda text: without(text, secrets)),
    )


def published(payload: str, hidden: tuple[str, ...]) -> str:
    """Return what an event says, with the values of these keys masked."""
    try:
        body, headers = running.opened(payload)
        shown = {"payload": masked_keys(body, hidden), "headers": masked_keys(dict(headers), hidden)}
    except UNREADABLE:
        return MASK if hidden else words.text_of(payload)
    return words.text_of(_json(shown))


def of_routed(payload: str, errors: Any, *, consumer: Consumer | None) -> Carried:
    """Return what an entry of a stream carries that was routed into a queue."""
    if consumer is None:
        return _hidden(None, errors)
    try:
        document = json.loads(payload)
    except UNREADABLE:
        return _hidden(None, errors) if consumer.sensitive else _as_stored(payload, None, errors)
    secrets = secrets_in(document, consumer.sensitive)
    return Carried(
        payload=words.text_of(_json(masked_keys(document, consumer.sensitive))),
        result=None,
        attempts=_attempts(errors, lambda text: without(text, secrets)),
    )


def of_entry(payload: str | None, traceback: str, *, consumer: Consumer | None) -> tuple[str, str]:
    """Return the payload of an entry of a stream, and the traceback of its last failure."""
    if consumer is None:
        return MASK, MASK if traceback else ""
    if payload is None:
        return "", MASK if consumer.sensitive and traceback else words.text_of(traceback)
    try:
        body = json.loads(payload)
        shown = _json(masked_keys(body, consumer.sensitive))
        return words.text_of(shown), words.text_of(without(traceback, secrets_in(body, consumer.sensitive)))
    except UNREADABLE:
        if consumer.sensitive:
            return MASK, MASK if traceback else ""
        return words.text_of(payload), words.text_of(traceback)


def _redacted(payload: str, result: str | None, errors: Any) -> Carried:
    told = f"{REDACTED} {len(payload.encode('utf-8', 'surrogatepass')):,} bytes"
    return Carried(
        payload=told, result=None if result is None else REDACTED, attempts=_attempts(errors, lambda text: REDACTED)
    )


def _hidden(result: str | None, errors: Any) -> Carried:
    return Carried(payload=MASK, result=None if result is None else MASK, attempts=_attempts(errors, lambda text: MASK))


def _as_stored(payload: str, result: str | None, errors: Any) -> Carried:
    """Return what cannot be read as it stands: nothing of it is declared as sensitive."""
    return Carried(
        payload=words.text_of(payload),
        result=None if result is None else words.text_of(_pretty(result)),
        attempts=_attempts(errors, lambda text: text),
    )


def _attempts(errors: Any, scrub: Callable[[str], str]) -> list[Attempt]:
    """Return the failed attempts on record, the last one first."""
    try:
        entries = json.loads(errors) if isinstance(errors, str) else errors
    except (ValueError, RecursionError):
        return []
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return [_attempt(entry, scrub) for entry in reversed(known[-MOST_ATTEMPTS:])]


def _attempt(entry: dict[str, Any], scrub: Callable[[str], str]) -> Attempt:
    number, traceback = entry.get("attempt"), str(entry.get("traceback") or "")
    return Attempt(
        number=number if isinstance(number, int) and not isinstance(number, bool) else None,
        exception=exception_class(entry.get("exception")),
        traceback=words.text_of(scrub(traceback)) if traceback else "",
        worker=words.name(str(entry.get("worker") or "")),
        started_at=_moment(entry.get("started_at")),
        failed_at=_moment(entry.get("failed_at")),
    )


def exception_class(recorded: Any) -> str:
    """Return the path of a class of exceptions; nothing else that may stand in its place is told."""
    text = str(recorded or "")
    return words.name(text) if all(part.isidentifier() or part == "<locals>" for part in text.split(".")) else ""


def _pretty(stored: str) -> str:
    try:
        return _json(json.loads(stored))
    except (ValueError, RecursionError):
        return stored


def _scrubbed_json(stored: str, scrub: Callable[[str], str]) -> str:
    """Return a JSON document without what it quotes, as text or as a number; JSON may write a text otherwise than it is."""
    try:
        return _json(value_without(json.loads(stored), scrub))
    except (ValueError, RecursionError):
        return scrub(stored)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _moment(text: Any) -> datetime | None:
    try:
        return words.utc(parse_datetime(str(text)))
    except (ValueError, OverflowError):
        return None
