"""The geometry of charts: right, in the order of the numbers, and no business of the language."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import translation

from django_pgbus.admin import charts, words
from django_pgbus.admin.charts import HEIGHT, WIDTH, Series

BEGIN = datetime(2026, 11, 30, 12, tzinfo=UTC)


def times(number: int) -> list[datetime]:
    return [BEGIN + timedelta(minutes=nth) for nth in range(number)]


def tick(at: datetime) -> str:
    return f"{at:%H:%M}"


def numbers(path: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?", path)]


def test_a_line_goes_from_edge_to_edge_and_up_to_the_largest() -> None:
    drawn = charts.sparkline([0, 5, 10])
    assert drawn["line"] == f"M0 {HEIGHT} L500 50 L{WIDTH} 0"
    assert drawn["area"] == drawn["line"] + f" L{WIDTH} {HEIGHT} L0 {HEIGHT}Z"


def test_a_line_of_nothing_lies_at_the_bottom() -> None:
    assert charts.sparkline([0, 0])["line"] == f"M0 {HEIGHT} L{WIDTH} {HEIGHT}"
    assert charts.sparkline([3]) == charts.sparkline([]) == {}


def test_bars_stand_on_each_other() -> None:
    good, bad = Series(kind="good", label="good", values=[6, 0]), Series(kind="bad", label="bad", values=[4, 1])
    drawn = charts.stacked(times(2), [good, bad], tick)
    lower, upper = (shape["path"] for shape in drawn["shapes"])
    assert lower.count("M") == 1, "nothing is drawn for nothing"
    assert numbers(lower)[1] == 40, "six of ten, from below"
    assert numbers(upper)[1] == 0, "and four on top of it"
    assert drawn["scale"] == ["10", "5", "0"]
    assert [row["cells"] for row in drawn["rows"]] == [["6", "4"], ["0", "1"]]


@pytest.mark.parametrize(("largest", "top"), [(0, "1"), (1, "1"), (3, "3"), (7, "8"), (23, "25"), (1200, "1,500")])
def test_a_scale_ends_with_a_number_that_is_easily_read(largest: int, top: str) -> None:
    drawn = charts.stacked(times(1), [Series(kind="good", label="", values=[largest])], tick)
    assert drawn["scale"][0] == top


def test_a_line_of_seconds_ends_where_there_is_no_number() -> None:
    took = Series(kind="busy", label="run", values=[0.2, 0.4, None, 0.5, None])
    drawn = charts.lines(times(5), [took], tick)
    path = drawn["shapes"][0]["path"]
    assert path.count("M") == 2, "one line before the gap, and one after it"
    assert path.count("h200") == 3
    assert drawn["scale"][0].replace("\u00a0", " ") == "500 ms"
    assert [row["cells"][0].replace("\u00a0", " ") for row in drawn["rows"]] == [
        "200 ms",
        "400 ms",
        words.NOTHING,
        "500 ms",
        words.NOTHING,
    ]


def test_beyond_the_longest_scale_there_is_another() -> None:
    drawn = charts.lines(times(1), [Series(kind="busy", label="run", values=[200_000.0])], tick)
    top = numbers(drawn["shapes"][0]["path"])[1]
    assert 0 <= top < HEIGHT


def test_nothing_is_drawn_outside() -> None:
    values = [float(nth % 7) for nth in range(168)]
    drawn = charts.stacked(times(168), [Series(kind="good", label="", values=values)], tick)
    for bar in drawn["shapes"][0]["path"].split("z")[:-1]:
        left, top, wide, high, _ = numbers(bar)
        assert 0 <= left <= left + wide <= WIDTH
        assert 0 <= top <= top + high <= HEIGHT + 0.01


def test_a_chart_of_nothing_is_one() -> None:
    drawn = charts.stacked([], [Series(kind="good", label="", values=[])], tick)
    assert (drawn["empty"], drawn["times"], drawn["rows"]) == (True, [], [])


def test_the_language_changes_the_words_and_not_the_geometry() -> None:
    took = Series(kind="busy", label="run", values=[1.5, 2.5])
    with translation.override("de"):
        drawn = charts.lines(times(2), [took], tick)
        assert "," not in drawn["shapes"][0]["path"]
        assert drawn["rows"][0]["cells"][0].startswith("1,5")


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (1, "100%"), (0.5, "50.0%"), (0.0123, "1.2%"), (0.0001, "below 0.05%"), (0.9996, "above 99.95%")],
)
def test_a_share_in_percent(share: float, text: str) -> None:
    assert words.percent(share).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.001, "below 0.01"), (0.034, "0.03"), (1.26, "1.3"), (12, "12"), (99.96, "100"), (1234.5, "1,234")],
)
def test_a_rate_has_as_many_places_as_matter(value: float, text: str) -> None:
    assert words.decimal(value) == text
