"""
What a job carries, as a person may read it: arguments, result and errors.

Sensitive arguments are masked, and scrubbed from what a run left behind. A task that cannot be imported cannot say what
is sensitive: its arguments and its result are hidden. All of it comes from outside, so nothing is assumed of its shape,
and it leaves here as plain text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime, make_aware
from django.utils.translation import gettext

from django_pgbus.admin.words import age, number, showable
from django_pgbus.exceptions import InvalidPayload
from django_pgbus.tasks import constraints
from django_pgbus.tasks.compat import AnyTask
from django_pgbus.tasks.constraints import Constraints
from django_pgbus.tasks.masking import MASK, masked, scrubbed, value_without
from django_pgbus.tasks.payload import decode
from django_pgbus.tasks.policy import policy_of

MOST_CHARACTERS: Final = 20_000
MOST_LINE: Final = 300
Tasks = Mapping[str, AnyTask | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One failed attempt, as far as its record can be read."""

    number: int | None
    exception: str
    traceback: str
    worker: str
    started_at: datetime | None
    failed_at: datetime | None


def arguments(payload: str, task: AnyTask | None) -> str:
    """Return the arguments with the sensitive ones masked."""
    if task is None:
        return MASK
    try:
        args, kwargs = decode(payload)
        shown = masked(task, args, kwargs)
    except (InvalidPayload, TypeError, ValueError):
        # Nobody can say which part of it is sensitive.
        return MASK if policy_of(task).sensitive else showable(payload, MOST_CHARACTERS)
    return pretty({"args": shown[0], "kwargs": shown[1]})


def unique_by(stored: str | None) -> SafeString | str:
    """Return the uniqueness key that a job carries, in words; nothing if there is none."""
    if (unique := _constraints(stored).unique) is None:
        return ""
    told = gettext("at most one until it is executed")
    if unique.strategy == "while_executing":
        told = gettext("at most one while it runs")
    return _of_key(unique.name or unique.key, told)


def limited_to(stored: str | None) -> SafeString | str:
    """Return the limit that a job carries, in words; nothing if there is none."""
    if (limit := _constraints(stored).limit) is None:
        return ""
    told = gettext("at most %(number)s at once; one that runs and is silent for %(age)s is presumed dead")
    return _of_key(limit.name or limit.key, told % {"number": number(limit.to), "age": age(limit.duration)})


def chosen_key(key: str, stored: str | None) -> str:
    """Return a key as it was chosen, which a job carries where the key itself is a hash."""
    bound = _constraints(stored)
    names = {part.key: part.name for part in (bound.unique, bound.limit) if part is not None}
    return showable(names.get(key) or key)


def result(stored: str | None, payload: str, task: AnyTask | None) -> str:
    """Return what the task returned, without the sensitive arguments it may quote."""
    if stored is None:
        return ""
    if task is None:
        return MASK
    try:
        args, kwargs = decode(payload)
    except (InvalidPayload, TypeError, ValueError):
        if policy_of(task).sensitive:
            return MASK
        args, kwargs = [], {}

    def scrub(text: str) -> str:
        return scrubbed(text, task, args, kwargs)

    try:
        return pretty(value_without(json.loads(stored), scrub))
    except (ValueError, RecursionError):
        return showable(scrub(stored), MOST_CHARACTERS)


def attempts(errors: Any, payload: str, task: AnyTask | None) -> list[Attempt]:
    """Return the failed attempts on record, the last one first."""
    return attempts_without(errors, lambda text: _scrubbed(text, payload, task))


def attempts_without(errors: Any, scrub: Callable[[str], str]) -> list[Attempt]:
    """Return the failed attempts on record, the last one first, their tracebacks scrubbed."""
    entries = [entry for entry in errors if isinstance(entry, dict)] if isinstance(errors, list) else []
    return [_attempt(entry, scrub) for entry in reversed(entries)]


def last_line(exception: Any, traceback: Any) -> str:
    """Return the line that says what went wrong: the end of a traceback, or the name of the exception."""
    name = str(exception or "").rpartition(".")[2]
    lines = [line for line in str(traceback or "").splitlines() if line.strip()]
    # A message of several lines does not end in the line that names the exception.
    named = next((line for line in reversed(lines) if name and line.lstrip().split(":")[0].endswith(name)), "")
    said = named.lstrip().partition(":")[2].strip() if named else lines[-1].strip() if lines else ""
    text = f"{name}: {said}" if name and said else name or said
    return showable(text if len(text) <= MOST_LINE else f"{text[:MOST_LINE]}…")


def pretty(value: Any) -> str:
    """Return a value as indented JSON, hidden where it cannot be written."""
    try:
        return showable(json.dumps(value, indent=2, ensure_ascii=False), MOST_CHARACTERS)
    except (ValueError, RecursionError):
        return MASK


def _attempt(entry: dict[str, Any], scrub: Callable[[str], str]) -> Attempt:
    nth = entry.get("attempt")
    return Attempt(
        number=nth if isinstance(nth, int) else None,
        exception=showable(str(entry.get("exception") or "")),
        traceback=scrub(showable(str(entry.get("traceback") or ""), MOST_CHARACTERS)),
        worker=str(entry.get("worker") or ""),
        started_at=_moment(entry.get("started_at")),
        failed_at=_moment(entry.get("failed_at")),
    )


def _constraints(stored: str | None) -> Constraints:
    try:
        return constraints.of(stored)
    except Exception:  # damaged by hand
        return constraints.NONE


def _of_key(key: str, told: str) -> SafeString:
    return format_html('<code class="pgbus-key">{}</code> <span class="pgbus-quiet">{}</span>', showable(key), told)


def _scrubbed(text: str, payload: str, task: AnyTask | None) -> str:
    if task is None:  # tracebacks are scrubbed when they are recorded, too
        return text
    try:
        args, kwargs = decode(payload)
        return scrubbed(text, task, args, kwargs)
    except (InvalidPayload, TypeError, ValueError):
        return MASK if policy_of(task).sensitive else text


def _moment(text: Any) -> datetime | None:
    """Return a time of a history, which a hand may have written: with its zone, and one that can be shown."""
    try:
        at = parse_datetime(str(text))
        return at and localtime(at if is_aware(at) else make_aware(at))
    except (ValueError, OverflowError):
        return None
