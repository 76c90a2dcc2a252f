"""The books of the storm over events see what they are kept for."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.storm.event_books import IDEMPOTENT, Ran, differences, repeats

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def run(began, ended, *, pid=1, event="e", handler="plain", publication=0) -> Ran:
    return Ran(event, handler, publication, pid, at(began), None if ended is None else at(ended))


def kill(moment, pid=1):
    return pid, at(moment - 0.1), at(moment + 0.1)


def test_a_run_each_needs_no_kill():
    runs = [run(1, 2), run(3, 4, publication=1), run(1, 2, event="f", publication=2)]
    assert repeats(runs, []) == ({"plain": 0}, 0, [])


@pytest.mark.parametrize("ended", [None, 2])
def test_a_kill_explains_the_run_after_it(ended):
    repeated, with_an_end, unexplained = repeats([run(1, ended), run(5, 6, pid=2)], [kill(3)])
    assert (repeated, with_an_end, unexplained) == ({"plain": 1}, int(ended is not None), [])


@pytest.mark.parametrize("kills", [[], [kill(3, pid=2)], [kill(-0.5)], [kill(9)]])
def test_a_kill_of_another_or_at_another_time_explains_nothing(kills):
    assert len(repeats([run(1, None), run(5, 6, pid=2)], kills)[2]) == 1


def test_what_a_killed_process_had_sent_may_be_executed_a_moment_later():
    assert repeats([run(1, None), run(5, 6, pid=2)], [kill(0.8)])[2] == []


def test_a_run_without_an_end_was_killed_or_is_told():
    assert len(repeats([run(1, None)], [])[2]) == 1
    assert repeats([run(1, None)], [kill(3)])[2] == []


@pytest.mark.parametrize("handler", [*IDEMPOTENT, "plain"])
def test_the_copies_of_an_event_are_one_run_for_who_is_idempotent(handler):
    runs = [run(1, 2, handler=handler), run(3, 4, handler=handler, publication=1)]
    assert len(repeats(runs, [])[2]) == (handler in IDEMPOTENT)


def test_what_is_missing_and_what_is_too_much_is_told():
    found = differences("x", Counter(a=1, b=2, d=1), Counter(a=1, b=1, c=1, d=1))
    assert sorted(found) == ["x 0 times instead of 1: c", "x 2 times instead of 1: b"]
