"""Texts, times and refusals as machines read them: English, UTC, and nothing that cannot be sent as UTF-8."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from django.utils.timezone import is_aware, make_aware

from django_pgbus.worker.verdict import age as age
from django_pgbus.worker.verdict import many as many

MOST_CHARACTERS: Final = 4_000
MOST_OF_A_NAME: Final = 300


class Refused(Exception):
    """A question that has no answer; its message says why, in words for who asked."""


def utc(at: datetime | None) -> datetime | None:
    """Return a time in UTC, whatever USE_TZ says."""
    return None if at is None else known_utc(at)


def known_utc(at: datetime) -> datetime:
    """Return a time in UTC that is there."""
    return (at if is_aware(at) else make_aware(at)).astimezone(UTC)


def told(at: datetime) -> str:
    """Return a time within a sentence, to the second."""
    return f"{known_utc(at):%Y-%m-%d %H:%M:%S} UTC"


def name(text: str) -> str:
    """Return the name or key of something, cut where it is longer than any should be."""
    return text_of(text, MOST_OF_A_NAME)


def text_of(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text that can be sent, cut after `most` characters, saying so."""
    if len(text) > most:
        text = f"{text[:most]}… (cut here; {len(text):,} characters in all)"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def rounded(seconds: float | None) -> float | None:
    """Return seconds to the millisecond: more of them tell nothing."""
    return None if seconds is None else round(seconds, 3)
