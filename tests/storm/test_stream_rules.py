"""What must hold of a stream is seen when it does not."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest

from tests.storm.stream_rules import Ran, again_after, done_at, out_of_order, repeats, together

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def run(began, ended, position=1, *, key=1, pid=7, failed=False) -> Ran:
    return Ran(position, key, pid, at(began), None if ended is None else at(ended), failed)


def kills(*moments, pid=7):
    found = defaultdict(list)
    for moment in moments:
        found[pid].append((pid, at(moment - 0.1), at(moment + 0.1)))
    return found


def test_a_position_is_done_with_its_range_or_on_its_own():
    done = done_at([(10, 0, at(5)), (30, 20, at(6))], [(3, False, at(4)), (4, False, at(4)), (4, True, at(8))])
    assert done(1) == done(10) == at(5)
    assert done(15) is None
    assert done(3) is None
    assert done(4) == at(8)
    assert done(31) is None


def test_what_begins_after_it_was_done_with_is_told():
    done = done_at([(10, 0, at(5))], [])
    assert again_after("g", [run(4, 4.5)], done, kills()) == []
    assert len(again_after("g", [run(6, 6.5)], done, kills())) == 1
    assert again_after("g", [run(6, 6.5)], done, kills(5.7)) == []  # sent before its process was killed
    assert len(again_after("g", [run(6, 6.5)], done, kills(4))) == 1
    assert len(again_after("g", [run(6, 6.5)], done, kills(5.7, pid=8))) == 1


def test_a_repetition_wants_a_kill_or_a_failure():
    twice = [run(1, 2), run(3, 4)]
    assert repeats("g", twice, kills()) == (1, [f"g: {twice[0]} was not killed, and is followed by {twice[1]}"])
    assert repeats("g", twice, kills(2.5)) == (1, [])
    assert len(repeats("g", twice, kills(5))[1]) == 1
    assert repeats("g", [run(1, 2, failed=True), run(3, 4)], kills()) == (1, [])


@pytest.mark.parametrize(("second", "wrong"), [(3, 0), (1.5, 1)])
def test_an_entry_begins_once_the_one_before_it_of_its_key_is_through(second, wrong):
    assert len(out_of_order([run(1, 2, 1), run(second, 5, 2)], set())) == wrong
    assert out_of_order([run(1, 2, 1), run(second, 5, 2, key=2)], set()) == []


def test_an_entry_that_failed_holds_back_those_behind_it_and_one_that_died_does_not():
    failed = [run(1, 2, 1, failed=True), run(3, 4, 2)]
    assert len(out_of_order(failed, set())) == 1
    assert out_of_order(failed, {1}) == []
    assert len(out_of_order([run(1, 2, 2), run(3, 4, 1)], set())) == 1


def test_two_entries_of_a_key_never_run_at_once():
    assert together([run(1, 2, 1), run(3, 4, 2)], kills()) == []
    assert len(together([run(1, 4, 1), run(3, 5, 2)], kills())) == 1
    assert together([run(1, None, 1), run(3, 5, 2)], kills(2)) == []
    assert len(together([run(1, None, 1), run(3, 5, 2)], kills(3.5))) == 1


def test_a_run_whose_entry_began_anew_is_fenced_out():
    zombie, anew = run(1, 9, 1), run(4, 5, 1)
    assert together([zombie, anew, run(6, 7, 2)], kills()) == []
    assert len(together([zombie, anew, run(4.5, 7, 2)], kills())) == 1
    assert len(together([zombie, run(3, 3.5, 2), anew], kills())) == 1
    assert len(repeats("g", [zombie, anew], kills())[1]) == 1
