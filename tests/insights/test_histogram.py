"""Percentiles out of buckets, against what the durations themselves say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgbus.insights.histogram import BOUNDS, BUCKETS, NONE, bucket, percentile

DURATIONS = st.lists(st.floats(min_value=0, max_value=5000) | st.sampled_from(BOUNDS), min_size=1, max_size=200)
SHARES = st.floats(min_value=0, max_value=1)


def counted(durations):
    counts = [0] * BUCKETS
    for seconds in durations:
        counts[bucket(seconds)] += 1
    return counts


@pytest.mark.parametrize(("number", "bound"), list(enumerate(BOUNDS)))
def test_a_bound_belongs_to_its_bucket_and_what_is_longer_to_the_next(number, bound):
    assert bucket(bound) == number
    assert bucket(math.nextafter(bound, math.inf)) == number + 1


def test_there_is_a_bucket_for_nothing_and_one_beyond():
    assert (bucket(0.0), bucket(1e9), BUCKETS) == (0, len(BOUNDS), len(NONE))


@given(DURATIONS, SHARES)
def test_it_lies_in_the_bucket_of_the_duration_at_that_rank(durations, q):
    """The one at rank q * n, counted from below, is what a percentile of so many durations is."""
    exact = sorted(durations)[max(1, math.ceil(q * len(durations))) - 1]
    number = bucket(exact)
    found = percentile(counted(durations), q, max(durations))
    low = BOUNDS[number - 1] if number else 0.0
    high = BOUNDS[number] if number < len(BOUNDS) else math.inf
    assert low <= found <= high
    assert found <= max(durations)


@given(DURATIONS, SHARES, SHARES)
def test_a_greater_share_took_at_least_as_long(durations, one, other):
    counts, longest = counted(durations), max(durations)
    one, other = sorted([one, other])
    assert percentile(counts, one, longest) <= percentile(counts, other, longest)
    assert percentile(counts, one) <= percentile(counts, other)


@given(DURATIONS)
def test_all_of_them_took_at_most_as_long_as_the_longest(durations):
    assert percentile(counted(durations), 1.0, max(durations)) == pytest.approx(max(durations))


def test_within_a_bucket_it_is_interpolated():
    counts = [*NONE]
    counts[bucket(0.2)] = 100  # between 0.1 and 0.25
    assert percentile(counts, 0.5) == pytest.approx(0.175)
    assert percentile(counts, 0.5, 0.2) == pytest.approx(0.15), "they end at the longest"


def test_of_nothing_there_is_none():
    assert percentile(NONE, 0.95, 0.0) is None


def test_beyond_the_last_bound_nothing_but_the_longest_is_known():
    counts = [*NONE]
    counts[-1] = 2
    assert percentile(counts, 0.95) == 1800
    assert percentile(counts, 1.0, 4000.0) == 4000
    assert percentile(counts, 0.5, 4000.0) == pytest.approx(2900)


@pytest.mark.parametrize(("q", "same"), [(-1, 0), (2, 1)])
def test_a_share_beyond_all_or_nothing_is_all_or_nothing(q, same):
    counts = counted([0.2, 3])
    assert percentile(counts, q, 3.0) == percentile(counts, same, 3.0)
