"""Texts and times as machines read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from django_pgbus.observability.mcp import words
from django_pgbus.queues.stats import Count


def test_times_are_utc_whatever_they_were(settings: Any) -> None:
    there = datetime(2026, 7, 1, 14, 30, tzinfo=timezone(timedelta(hours=2)))
    assert words.known_utc(there) == datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
    assert words.told(there) == "2026-07-01 12:30:00 UTC"
    settings.TIME_ZONE = "Europe/Madrid"
    settings.USE_TZ = False  # what the database gives has no time zone then
    assert words.told(datetime(2026, 7, 1, 14, 30)) == "2026-07-01 12:30:00 UTC"
    assert words.utc(None) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90_000, "1 d 1 h")],
)
def test_ages(seconds: float, text: str) -> None:
    assert words.age(seconds) == text


def test_numbers_with_their_noun() -> None:
    assert words.many(1, "job") == "1 job"
    assert words.many(0, "job") == "0 jobs"
    assert words.many(Count(10_000, more=True), "job") == "10,000+ jobs"
    assert words.many(Count(1, more=True), "job") == "1+ jobs"


def test_a_text_can_be_sent_and_has_an_end() -> None:
    assert words.text_of("a\ud800b").encode() == b"a\\ud800b"
    assert words.text_of("x" * 5_000, 10) == f"{'x' * 10}… (cut here; 5,000 characters in all)"
