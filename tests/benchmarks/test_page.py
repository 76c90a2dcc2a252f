"""The report and its page: text is escaped, nothing is loaded from elsewhere, nothing is claimed that was not measured."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from tests.benchmarks import estimate, run
from tests.benchmarks.goals import GOALS
from tests.benchmarks.notes import ASPECTS, NOTES
from tests.benchmarks.page import html, markdown, plots, reading
from tests.benchmarks.record import Record
from tests.benchmarks.systems import PEERS

EVIL = '<script>alert("x")</script>'
MACHINE = {
    "cores": 2,
    "processor": f"A {EVIL}",
    "memory_gb": 8.0,
    "system": "Linux",
    "python": "3.13.0",
    "python_optimized": False,
    "fsync_ms": 0.4,
}


def part(bench: str, runs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    settings = {
        "runs": len(runs),
        "others_used": [0.0],
        "versions": {"pgbus": "6.1.3", "pgqueuer": f"1|{EVIL}", "celery": "5.7"},
        "postgres": {"server_version": "18.6 (Debian)", "fsync": "on"},
    }
    medians = {name: value for name, value in runs[0].items() if isinstance(value, (int, float))}
    made = {
        "bench": bench,
        "settings": settings,
        "runs": runs,
        "median": medians,
        "ratios": {},
        "goals": {},
        "checks": {},
    }
    return made | more


def a_record(**changed: Any) -> Record:
    record = Record()
    rate = {"pgbus": 20000, "pgqueuer": 12000, "celery": 900, "pgbus_worker_us": 40.0}
    ratios = {"vs_pgqueuer": 1.6, EVIL: 2.0, "vs_oban": None}
    goals = {"P1": {"reached": 1.6}, "P1.refskip": {"reached": 0.3}}
    record.add(part("jobs", [rate] * 5, ratios=ratios, goals=goals, checks={"lost": 0}) | changed, 60.0, MACHINE)
    spent = {"worker": 45.0, "postgres: pgbus consumer": 5.0}
    drained = {
        "us": 50.0,
        "processor": spent,
        "parts": {"claim: statement": 20.0, "run: the task": 1.0, "hygiene": 24.0},
    }
    steps = [{"step": "commit to heard", "p50": 400.0, "p99": 900.0, "meaning": "the note | arrives"}]
    record.add(part("budget", [{"drain": drained | {"statements": [1]}, "latency": steps}]), 60.0, MACHINE)
    record.failed["depth"] = f"RuntimeError: {EVIL}"
    return record


def test_text_is_escaped_wherever_it_comes_from() -> None:
    page = html.page(a_record())
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4  # the machine, a version, a ratio, an error
    assert "<code>manage.py runworker</code>" in page


def test_words_in_backquotes_are_code_and_the_rest_is_escaped() -> None:
    assert html.code("a < `b < c`") == "a &lt; <code>b &lt; c</code>"


def test_benchmarks_stand_in_their_order() -> None:
    record = a_record()
    record.parts = dict(reversed(record.parts.items()))
    page = html.page(record)
    assert page.index('<h2 id="jobs">') < page.index('<h2 id="budget">')


def test_ratios_name_the_systems() -> None:
    table = reading.ratios(part("jobs", [{}], ratios={"single_vs_djtasksdb": 2.0, "many_vs_oban": None}))
    assert table is not None
    assert table.rows == [["single beside django-tasks-db", "2"]]


def test_the_report_needs_nothing_else() -> None:
    pytest.importorskip("matplotlib")
    page = html.page(a_record())
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []
    assert "@import" not in page
    assert "url(http" not in page


def test_what_was_not_measured_is_told_so() -> None:
    page = html.page(Record())
    assert page.count('class="unmeasured">not measured') == sum(len(goal.parts) for goal in GOALS.values())
    assert 'class="met"' not in page
    assert 'class="missed"' not in page


def test_a_goal_is_shown_as_missed() -> None:
    page = html.page(a_record())
    assert re.search(r'1\.6 x</td><td class="met">met', page)
    assert re.search(r'0\.3 x</td><td class="missed">not met', page)


def test_a_plot_has_the_colours_of_the_page_and_names_of_its_own() -> None:
    pytest.importorskip("matplotlib")
    record = a_record()
    drawn = [plot for one in record.parts.values() for plot in plots.of(one)]
    assert len(drawn) == 2
    assert all("currentColor" in plot and "var(--ours)" in plot for plot in drawn)
    assert not any(re.search(r"#0[1-4]0[1-4]0[1-4]", plot) for plot in drawn)
    names = [name for plot in drawn for name in re.findall(r'\bid="([^"]+)"', plot)]
    assert len(names) == len(set(names))
    pointed = {name for plot in drawn for name in re.findall(r'(?:url\(#|href="#)([^")]+)', plot)}
    assert pointed <= set(names)


def test_a_plot_escapes_its_labels() -> None:
    pytest.importorskip("matplotlib")
    assert "<script" not in plots.bars(EVIL, [plots.Bar(EVIL, [1.0])])
    assert plots.bars("nothing", [plots.Bar("none", [])]) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checks": {"lost": 2}}, "lost is 2"),
        ({"settings": {"runs": 1, "others_used": [], "versions": {}, "postgres": {}}}, "Fewer than 5 runs: jobs"),
        (
            {"settings": {"runs": 5, "others_used": [0.0, 0.3], "versions": {}, "postgres": {}}},
            "Others used more than 4%",
        ),
        (
            {"settings": {"jobs": 10, "runs": 5, "others_used": [], "versions": {}, "postgres": {}}},
            "Smaller than usual",
        ),
    ],
)
def test_trials_are_called_trials(change: dict[str, Any], words: str) -> None:
    assert any(words in caveat for caveat in reading.caveats(a_record(**change)))


def test_parts_of_two_commits_are_told() -> None:
    record = a_record()
    for one in record.parts.values():
        one["commit"] = "abc"
    del record.failed["depth"]
    assert reading.caveats(record) == []
    record.parts["jobs"]["commit"] = "def"
    assert reading.caveats(record) == ["The parts were not all measured at one commit."]
    record.parts["jobs"]["commit"] = "abc"
    record.parts["jobs"]["environment"] = MACHINE | {"cores": 4}
    assert reading.caveats(record) == ["The parts were not all measured on one machine."]


def test_the_budget_of_a_job() -> None:
    table = reading.budget(a_record())
    assert table is not None
    assert dict(table.rows) == {
        "database": "5.0",
        "driver": "20.0",
        "decode": "0.0",
        "user code": "1.0",
        "completion": "0.0",
        "dispatch": "24.0",
    }
    assert reading.budget(Record()) is None


# --- the page of the documentation ---------------------------------------------------------------------


def test_the_page_is_that_of_the_record() -> None:
    expected = markdown.page(Record.read(markdown.RECORD))
    assert markdown.PAGE.read_text() == expected, "run `python -m tests.benchmarks.page RECORD --docs`"


def test_the_page_without_a_record_claims_nothing() -> None:
    page = markdown.page(Record())
    assert "nothing is claimed" in page
    assert "not met" not in page
    assert page.count("| not measured |") == sum(1 + len(goal.parts) for goal in GOALS.values())


def test_the_page_shows_the_budget_where_a_goal_is_not_met() -> None:
    record = a_record()
    page = markdown.page(record)
    assert "Not met: P1." in page
    assert "| driver | 20.0 |" in page
    assert r"the note \| arrives" in page
    assert "<script" not in page
    record.parts["jobs"]["goals"]["P1.refskip"]["reached"] = 0.5
    assert "Where a goal is not met" not in markdown.page(record)


def test_the_record_of_the_page_is_without_statements() -> None:
    record = a_record()
    reduced = markdown.reduced(record.parts["budget"])
    assert "statements" not in reduced["runs"][0]["drain"]
    assert "statements" in record.parts["budget"]["runs"][0]["drain"]
    assert markdown.page(Record({"budget": reduced})) == markdown.page(Record({"budget": record.parts["budget"]}))


# --- everything has what the pages need -----------------------------------------------------------------


@pytest.mark.parametrize("name", run.BENCHES)
def test_every_benchmark_says_what_is_fair_about_it(name: str) -> None:
    blocks = [*reading.fairness(name)]
    assert len(blocks) > 1
    assert blocks[0][0] == "p"
    assert callable(importlib.import_module(f"tests.benchmarks.cases.{name}").run)


def test_every_system_has_notes() -> None:
    assert {*NOTES} == {"pgbus", *PEERS}
    assert all(getattr(notes, aspect) for notes in NOTES.values() for aspect in ASPECTS)


def test_an_estimate_counts_fewer_runs_where_fewer_are_made() -> None:
    assert estimate.runs_of("storm", 5) == 1
    assert estimate.runs_of("jobs", 5) == 5
    assert estimate.seconds("jobs", 5, 0) < estimate.seconds("jobs", 5, 6)
