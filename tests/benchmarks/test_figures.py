"""Medians and ratios: what is missing is None, never a guess."""

from __future__ import annotations

import pytest

from tests.benchmarks import figures


def test_a_ratio_is_the_median_of_the_ratios_within_the_runs() -> None:
    runs = [{"ours": 10, "theirs": 5}, {"ours": 30, "theirs": 10}, {"ours": 100, "theirs": 20}]
    assert figures.median_ratio(runs, "ours", "theirs") == 3.0


@pytest.mark.parametrize("run", [{}, {"ours": 1}, {"theirs": 1}, {"ours": 1, "theirs": 0}, {"ours": None, "theirs": 1}])
def test_a_run_without_both_sides_has_no_ratio(run: dict[str, float | None]) -> None:
    assert figures.median_ratio([run], "ours", "theirs") is None
    assert figures.median_ratio([run, {"ours": 4, "theirs": 2}], "ours", "theirs") == 2.0


def test_medians_are_those_of_numbers() -> None:
    runs = [{"rate": 1, "windows": [1, 2], "held": True}, {"rate": 3, "late": 5}]
    assert figures.medians(runs) == {"rate": 2.0, "late": 5}


def test_percentiles_of_nothing_are_none() -> None:
    assert figures.percentile([], 50) is None
    assert figures.milliseconds("call", []) == {"call_p50_ms": None, "call_p99_ms": None, "call_max_ms": None}


def test_percentiles() -> None:
    found = figures.milliseconds("call", [n / 1000 for n in range(1, 101)])
    assert found == {"call_p50_ms": 51.0, "call_p99_ms": 100.0, "call_max_ms": 100.0}
