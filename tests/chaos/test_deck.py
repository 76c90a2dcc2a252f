"""Each fault comes once before any comes again, and is noted; one that lasts when it is over."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.chaos import deck

PIDS = [7]


@pytest.fixture
def noted(monkeypatch):
    """Return what is written down, in place of a server."""
    rows = []

    def patiently(statement, *values):
        if statement == deck.NOTE:
            rows.append(values[0])
        return [(None,)]

    monkeypatch.setattr(deck, "patiently", patiently)
    return rows


def test_each_comes_once_before_any_comes_again(noted):
    cards = deck.Deck(1, {name: lambda: (PIDS,) for name in ("a", "b", "c")})
    for nth in range(1, 4):
        for _ in range(3):
            cards.strike()
        assert cards.happened == Counter(a=nth, b=nth, c=nth)
        assert cards.decks == nth
    assert Counter(noted) == cards.happened


def test_the_seed_decides_the_order(noted):
    def order(seed):
        noted.clear()
        cards = deck.Deck(seed, {str(n): lambda: (PIDS,) for n in range(20)})
        for _ in range(20):
            cards.strike()
        return list(noted)

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_what_lasts_is_noted_when_it_is_over(noted):
    ended = []
    cards = deck.Deck(1, {"long": lambda: (PIDS, "", 1000.0, lambda: ended.append("long"))})
    cards.strike()
    cards.end()
    assert (noted, ended) == ([], [])
    cards.end(all_of_them=True)
    assert (noted, ended) == (["long"], ["long"])
    assert cards.lasting == []


def test_what_lasts_is_noted_of_those_too_that_were_born_meanwhile(monkeypatch):
    rows = []
    monkeypatch.setattr(deck, "patiently", lambda statement, *values: rows.append(values) or [(None,)])
    cards = deck.Deck(1, {"long": lambda: ([7], "", 0.0, lambda: [7, 8])})
    cards.strike()
    cards.end()
    assert rows[-1][:2] == ("long", [7, 8])


def test_what_ends_while_another_ends_is_ended_once(noted):
    ended = []
    cards = deck.Deck(1, {})

    def end_others() -> None:
        ended.append("first")
        cards.end()

    for name, end in (("first", end_others), ("second", lambda: ended.append("second"))):
        cards.lasting.append(deck.Lasting(time.monotonic() - 1, end, name, PIDS, None, ""))
    cards.end()
    assert ended == ["first", "second"]
    assert noted == ["second", "first"]


def test_the_way_is_disturbed_by_one_at_a_time(noted):
    faults = {"stall": lambda: (PIDS, "", 1000.0, lambda: None), "drop": lambda: (PIDS,)}
    cards = deck.Deck(1, faults)
    for _ in range(20):
        cards.strike()
        if cards.happened["stall"]:
            break
    drops = cards.happened["drop"]
    for _ in range(20):
        cards.strike()
    assert cards.happened == Counter(stall=1, drop=drops)
    cards.end(all_of_them=True)
    for _ in range(4):
        cards.strike()
        cards.end(all_of_them=True)
    assert cards.happened["drop"] > drops
