"""The record: parts take each other's place, what failed is told and takes nothing away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import run, systems
from tests.benchmarks.goals import GOALS, met, number, reached, rows
from tests.benchmarks.record import Record
from tests.benchmarks.report import Goal, Report


def report(bench: str = "commits", value: float | None = 0.9, **more: Any) -> dict[str, Any]:
    settings = {"runs": 5, "others_used": [0.01], "versions": {"pgbus": "6.1"}, "postgres": {"server_version": "18.6"}}
    made = Report(
        bench=bench,
        settings=settings | more.pop("settings", {}),
        runs=[{"wake": 100}],
        goals=reached("commits", P8=value) if bench == "commits" else {},
        checks={"lost": 0},
    )
    return made.as_dict() | more


def test_what_is_measured_again_takes_the_place_of_the_old(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "record.json"
    first = Record()
    first.add(report(value=0.5), 1.0, {})
    first.add(report("batch"), 1.0, {})
    first.write(place)
    second = Record.read(place)
    second.add(report(value=0.9), 2.0, {"cores": 2})
    second.write(place)
    found = json.loads(place.read_text())
    assert found["goals"] == {"P8": {"reached": 0.9, "goal": 0.85, "at_most": False, "met": True}}
    assert [*found["parts"]] == ["commits", "batch"]
    assert found["parts"]["commits"]["environment"] == {"cores": 2}
    assert [*tmp_path.rglob("*.new")] == []


def test_what_fails_is_told_and_leaves_what_was_there() -> None:
    record = Record()
    record.add(report(), 1.0, {})
    record.fail("commits", RuntimeError("no disk"))
    record.fail("jobs", ValueError("x" * 5000))
    assert record.goals["P8"]["met"]
    assert record.failed["commits"] == "RuntimeError: no disk"
    assert len(record.failed["jobs"]) == 2000
    assert record.faults == ["commits failed", "jobs failed"]
    record.add(report(), 1.0, {})
    assert record.faults == ["jobs failed"]


def test_a_check_and_a_peer_that_failed_are_faults() -> None:
    record = Record()
    record.add(report(checks={"lost": 0, "doubled": 3}, settings={"failed": {"oban": "no"}}), 1.0, {})
    assert record.faults == ["commits: oban failed", "commits: doubled is 3, not 0"]


def test_no_file_is_an_empty_record(tmp_path: Path) -> None:
    assert Record.read(tmp_path / "none.json") == Record()


# --- goals ---------------------------------------------------------------------------------------------


def test_what_was_not_measured_is_not_claimed() -> None:
    assert met("P8", {}) is None
    (row,) = rows("P8", {})
    assert (row.wanted, row.reached, row.verdict) == ("≥ 0.85 x", "-", "not measured")
    unknown = {"P8": Goal(None, 0.85).as_dict()}
    assert met("P8", unknown) is None
    assert [row.verdict for row in rows("P8", unknown)] == ["not measured"]


def test_a_goal_is_met_by_all_of_its_figures() -> None:
    ratios = {"P2.pending": 1.0, "P2.delayed": 0.95, "P2.archived": 0.9}
    every = {name: {"reached": value} for name, value in ratios.items()}
    assert met("P2", every) is True
    assert met("P2", every | {"P2.delayed": {"reached": 0.89}}) is False
    assert met("P2", {name: goal for name, goal in every.items() if name != "P2.delayed"}) is None
    assert met("P2", {"P2.delayed": {"reached": 0.1}}) is False


def test_at_most_is_another_direction() -> None:
    assert met("P9", {name: {"reached": 0.0} for name in GOALS["P9"].parts}) is True
    assert met("P9", {name: {"reached": 81.0} for name in GOALS["P9"].parts}) is False


def test_a_benchmark_has_to_tell_all_of_its_figures() -> None:
    assert reached("jobs", P1=None, P1__refskip=0.5)["P1"].met is None
    for wrong in ({"P1": 1.0}, {"P1": 1.0, "P1__refskip": 1.0, "P2": 1.0}):
        with pytest.raises(ValueError, match="P1.refskip"):
            reached("jobs", **wrong)


def test_all_ten_goals_have_a_benchmark() -> None:
    assert [*GOALS] == [f"P{n}" for n in range(1, 11)]
    assert {wanted.bench for wanted in GOALS.values()} <= {*run.BENCHES}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1.5, "1.5"), (1234.0, "1,234"), (1234.56, "1,235"), (0.8567, "0.857"), (0.0004, "0.0004")],
)
def test_numbers_that_people_can_read(value: float, text: str) -> None:
    assert number(value) == text


# --- what is asked for ---------------------------------------------------------------------------------


def test_peers_have_their_own_names_and_the_yardstick_is_always_there() -> None:
    assert systems.names("pgqueuer,django-tasks-db,djtasksdb") == ("pgqueuer", "djtasksdb", "refskip")
    with pytest.raises(SystemExit, match="rabbit"):
        systems.names("pgqueuer,rabbit")


def test_a_peer_without_an_environment_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BENCH_PEERS", raising=False)
    assert systems.peer("pgqueuer") is None
    for name in ("sql", "celery"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    monkeypatch.setenv("BENCH_PEERS", str(tmp_path))
    assert systems.peer("pgqueuer") is None
    assert systems.peer("refskip") is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert systems.peer("celery") is None  # no redis-server


def test_benchmarks_keep_their_order() -> None:
    assert run.chosen_of("burst,jobs") == ("jobs", "burst")
    assert run.chosen_of(None) == run.BENCHES
    with pytest.raises(SystemExit, match="speed"):
        run.chosen_of("jobs,speed")
