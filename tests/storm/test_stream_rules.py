"""What must hold of a stream is seen when it does not."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest

from tests.storm.stream_rules import (
    Claimed,
    Ran,
    Tenure,
    again_after,
    claimed_twice,
    done_at,
    out_of_order,
    repeats,
    tenures,
    together,
)

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


def held(began, ended, low=0, high=10, *, pid=7) -> Tenure:
    return Tenure(low, high, pid, at(began), None if ended is None else at(ended))


ALWAYS = [held(0, None)]


def test_two_entries_of_a_key_never_run_at_once():
    assert together([run(1, 2, 1), run(3, 4, 2)], kills(), ALWAYS) == []
    assert len(together([run(1, 4, 1), run(3, 5, 2)], kills(), ALWAYS)) == 1
    assert together([run(1, 4, 1), run(3, 5, 2, key=2)], kills(), ALWAYS) == []
    assert together([run(1, None, 1), run(3, 5, 2)], kills(2), ALWAYS) == []
    assert len(together([run(1, None, 1), run(3, 5, 2)], kills(3.5), ALWAYS)) == 1


def test_a_run_is_fenced_out_when_its_process_loses_the_lease_and_not_before():
    zombie, anew = run(1, 9, 1), run(4, 5, 1, pid=8)
    behind = run(6, 7, 2, pid=8)
    assert together([zombie, anew, behind], kills(), [held(0, 3.9), held(3.9, 8, pid=8)]) == []
    assert len(together([zombie, anew, behind], kills(), [held(0, 4.1), held(3.9, 8, pid=8)])) == 1
    assert len(together([zombie, anew, behind], kills(), [held(0, None), held(3.9, 8, pid=8)])) == 2
    assert len(together([zombie, anew, run(4.5, 7, 2, pid=8)], kills(), [held(0, 3.9), held(3.9, 8, pid=8)])) == 1


def test_a_run_without_an_end_lasts_as_long_as_the_lease_of_its_process():
    stuck = run(1, None, 1)
    assert together([stuck, run(4, 5, 2, pid=8)], kills(), [held(0, 3), held(3, None, pid=8)]) == []
    assert len(together([stuck, run(2, 5, 2)], kills(), [held(0, 3)])) == 1


def test_one_that_was_fenced_out_before_it_began_counts_for_nothing():
    holds = [held(0, 2), held(2, None, pid=8)]
    assert together([run(3, 9, 1), run(4, 5, 1, pid=8)], kills(), holds) == []


def test_two_processes_that_hold_one_range_are_told_though_the_second_began_the_entry_anew():
    assert len(together([run(1, 5, 1), run(2, 4, 1, pid=8)], kills(), [held(0, None), held(0, None, pid=8)])) == 1


def test_a_run_of_a_process_that_never_held_its_entry_is_told():
    for holds in ([], [held(0, None, pid=8)], [held(0, None, 1, 10)], [held(1.5, None)]):
        assert len(together([run(1, 2, 1)], kills(), holds)) == 1
    assert together([run(1, 2, 1)], kills(), [held(0, None, 0, 1, pid=None)]) == []


def test_of_two_that_ran_an_entry_on_its_own_the_one_that_had_it_in_a_range_is_fenced_out():
    lost, alone = held(0, 2), held(3, 9, 0, 1, pid=None)
    zombie, anew = run(4, 5, 1), run(4.5, 6, 1, pid=8)
    assert together([zombie, anew], kills(), [lost, alone]) == []
    assert len(together([zombie, anew], kills(), [alone])) == 1
    assert len(together([zombie, run(4.5, 6, 2, pid=8)], kills(), [lost, alone, held(3, 9, pid=8)])) == 1


def test_a_tenure_ends_with_the_next_claim_of_its_lease():
    first, other = Claimed(1, 0, 10, 7, True, at(0)), Claimed(2, 10, 20, 8, True, at(1))
    given_back, again = Claimed(1, 4, 10, 7, False, at(2)), Claimed(1, 4, 10, 8, True, at(3))
    assert tenures([first, other, given_back, again]) == [
        held(0, 2, 0, 10),
        held(1, None, 10, 20, pid=8),
        held(3, None, 4, 10, pid=8),
    ]


def test_ranges_with_entries_in_common_are_told():
    assert claimed_twice([("a", 0, 5), ("a", 5, 9), ("b", 0, 5)]) == []
    assert len(claimed_twice([("a", 3, 9), ("a", 0, 5)])) == 1
    assert len(claimed_twice([("a", 0, 5), ("a", 0, 5)])) == 1
