"""
What a copy of an event carries, as a person may read it: its payload, its headers, and what became of it.

Values of keys that the handler declares as sensitive are masked, at whatever depth. A handler that cannot be imported
cannot say what is sensitive: every value is masked. All of it comes from outside, so nothing is assumed of its shape.
"""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.contents import MOST_CHARACTERS, Attempt, attempts_without, pretty
from django_pgbus.conf import get_settings
from django_pgbus.events import running
from django_pgbus.events.event import CAUSE, CORRELATION
from django_pgbus.events.handlers import Handler
from django_pgbus.exceptions import InvalidPayload
from django_pgbus.tasks.masking import MASK, without
from django_pgbus.tasks.sensitive import masked, secrets_in
from django_pgbus.worker.waiting import Text

# Ours, and what leads from one event to the next: nothing of the payload stands there.
TRACES: Final = frozenset({CORRELATION, CAUSE})

SKIPPED: Final[dict[str, Text]] = {
    "completed": _("Another delivery of this event had already been handled."),
    "cached": _("Another delivery of this event had already been handled, as this worker knew."),
    "owned": _("Another copy of this event was being handled."),
}


def payload(stored: str, handler: Handler | None) -> str:
    """Return the payload with the values of sensitive keys masked."""
    try:
        body, _headers = running.opened(stored)
        return pretty(shape(body) if handler is None else masked(body, handler.policy.sensitive))
    except (InvalidPayload, RecursionError):
        return _unreadable(stored, handler)


def headers(stored: str, handler: Handler | None) -> str:
    """Return the headers, masked alike; nothing if there are none."""
    try:
        _body, carried = running.opened(stored)
        if not carried:
            return ""
        if handler is None:
            return pretty({key: value if key in TRACES else shape(value) for key, value in carried.items()})
        return pretty(masked(dict(carried), handler.policy.sensitive))
    except (InvalidPayload, RecursionError):  # it stands among the payload then, as far as it may be shown
        return ""


def attempts(errors: Any, stored: str, handler: Handler | None) -> list[Attempt]:
    """Return the failed attempts on record, the last one first."""
    return attempts_without(errors, lambda text: _scrubbed(text, stored, handler))


def why_skipped(note: str) -> Text:
    """Return why a delivery was skipped, in a sentence."""
    return SKIPPED.get(note) or words.showable(note)


def nth_attempt(attempts: int, handler: Handler | None) -> str:
    """Return which attempt comes next, and of how many where the handler says so."""
    number = {"number": words.number(attempts + 1)}
    if handler is None:
        return gettext("attempt %(number)s") % number
    most = handler.policy.max_attempts or get_settings().MAX_ATTEMPTS
    text = ngettext("attempt %(number)s of %(most)s", "attempt %(number)s of %(most)s", most)
    return text % {**number, "most": words.number(most)}


def shape(value: Any) -> Any:
    """Return a value of the same shape in which nothing is told but keys."""
    match value:
        case dict():
            return {key: shape(inner) for key, inner in value.items()}
        case list():
            return [shape(inner) for inner in value]
    return MASK


def _unreadable(stored: str, handler: Handler | None) -> str:
    # Nobody can say which part of it is sensitive.
    return MASK if handler is None or handler.policy.sensitive else words.showable(stored, MOST_CHARACTERS)


def _scrubbed(text: str, stored: str, handler: Handler | None) -> str:
    if handler is None or not handler.policy.sensitive:  # tracebacks are scrubbed when they are recorded, too
        return text
    try:
        body, _headers = running.opened(stored)
        return without(text, secrets_in(body, handler.policy.sensitive))
    except (InvalidPayload, RecursionError):
        return MASK
