"""After a failure a task waits, longer each time up to a cap or as its own function says; a broken one loses nothing."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from django_pgbus import signals
from django_pgbus.tasks.backoff import default_delay, delay

ERROR = ValueError("it failed")
RESULT = object()


@pytest.fixture
def broken():
    """What was said of broken functions."""
    heard = []

    def hear(**kwargs):
        heard.append(kwargs)

    signals.backoff_broken.connect(hear)
    yield heard
    signals.backoff_broken.disconnect(hear)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (50, 300), (10**6, 300), (0, 5)]
)
def test_the_wait_doubles_up_to_the_cap_and_varies(failures, seconds):
    waits = [default_delay(failures) for _ in range(200)]
    assert all(seconds * 0.85 <= wait <= seconds * 1.15 for wait in waits)
    assert len(set(waits)) > 100


def test_the_settings_decide(settings):
    settings.PGBUS = {"BACKOFF_BASE": timedelta(minutes=1), "BACKOFF_CAP": 90, "BACKOFF_JITTER": 0}
    assert [default_delay(n) for n in (1, 2, 3)] == [60, 90, 90]
    settings.PGBUS = {"BACKOFF_BASE": 0}
    assert default_delay(9) == 0


@pytest.mark.parametrize(
    ("answer", "seconds"), [(7, 7.0), (0.25, 0.25), (0, 0.0), (timedelta(minutes=2), 120.0), (1e9, 1e9), (None, None)]
)
def test_a_task_s_own_function_is_taken_at_its_word(answer, seconds, broken):
    asked = []

    def backoff(exception, task_result):
        asked.append((exception, task_result))
        return answer

    assert delay(backoff, ERROR, RESULT, 3, path="shop.pay") == seconds
    assert asked == [(ERROR, RESULT)]
    assert not broken


@pytest.mark.parametrize("answer", [True, "10", -1, -0.001, math.nan, math.inf, 1e10, [], timedelta(-1), timedelta.max])
def test_nonsense_falls_back_to_the_default_and_is_announced(answer, broken):
    assert 17 <= delay(lambda exception, task_result: answer, ERROR, RESULT, 3, path="shop.pay") <= 23
    assert [said["task"] for said in broken] == ["shop.pay"]
    assert "backoff returned" in str(broken[0]["exception"])


@pytest.mark.parametrize("kind", [KeyError, SystemExit, KeyboardInterrupt])
def test_a_function_that_raises_or_exits_falls_back_to_the_default_and_is_announced(broken, kind):
    def backoff(exception, task_result):
        raise kind("gone")

    assert 4.25 <= delay(backoff, ERROR, RESULT, 1, path="shop.pay") <= 5.75
    assert isinstance(broken[0]["exception"], kind)


def test_without_a_function_or_a_result_the_default_applies(broken):
    assert delay(None, ERROR, RESULT, 1, path="shop.pay") is not None
    # A task that could not be loaded has no result to ask about.
    assert delay(lambda exception, task_result: None, ERROR, None, 1, path="shop.pay") is not None
