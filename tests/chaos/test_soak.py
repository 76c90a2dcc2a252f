"""What the soak decides with: its verdicts, its books, its schedule; and once, shortly, the whole of it."""

from __future__ import annotations

import copy
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import soak, soak_report
from tests.chaos.soak_books import PARTS, Books
from tests.chaos.soak_page import page
from tests.chaos.soak_report import DOCS, Report, read, shape
from tests.chaos.soak_samples import of_log
from tests.chaos.soak_verdict import Word, judged, sloped, windowed
from tests.chaos.soak_workload import KINDS, MEMBERS, Outcome, Schedule, Sent, shares

HOUR = 3600
KIND = {kind.name: number for number, kind in enumerate(KINDS)}


def hour(value: Any) -> list[tuple[float, float]]:
    """Return a sample each ten seconds for an hour."""
    return [(float(at), float(value(at))) for at in range(0, HOUR, 10)]


def word(value: Any, **options: Any) -> Word:
    verdict = judged(hour(value), warm_up=HOUR / 4, **options)
    assert verdict is not None
    return verdict.word


# --- verdicts -----------------------------------------------------------------------------------------


def test_what_stays_is_flat() -> None:
    assert word(lambda at: 60) == Word.FLAT


@pytest.mark.parametrize(("percent", "expected"), [(4, Word.FLAT), (7, Word.GROWING), (-7, Word.FALLING)])
def test_more_than_five_percent_in_an_hour_is_not_flat(percent: float, expected: Word) -> None:
    assert word(lambda at: 100 + percent * at / HOUR) == expected


def test_a_growth_before_the_end_of_the_warm_up_does_not_count() -> None:
    assert word(lambda at: 100 * min(1.0, at / 800)) == Word.FLAT


@pytest.mark.parametrize("period", [60, 290, 300, 310])
def test_a_sawtooth_is_flat(period: int) -> None:
    assert word(lambda at: 100 + at % period) == Word.FLAT


@pytest.mark.parametrize("period", [60, 290, 300, 310])
def test_a_growth_under_a_sawtooth_is_seen(period: int) -> None:
    assert word(lambda at: 100 + at % period + 50 * at / HOUR) == Word.GROWING


def test_noise_is_not_growth() -> None:
    noise = random.Random(1)
    assert word(lambda at: 100 + noise.uniform(-60, 60)) in {Word.FLAT, Word.UNSTEADY}


def test_growth_under_noise_is_seen() -> None:
    noise = random.Random(2)
    assert word(lambda at: 100 + noise.uniform(-20, 20) + 30 * at / HOUR) == Word.GROWING


def test_one_disturbance_does_not_make_growth() -> None:
    assert word(lambda at: 100 + (500 if 3000 < at < 3200 else 0)) == Word.FLAT


def test_steps_that_go_on_are_growth() -> None:
    assert word(lambda at: 100 + 3 * (at // 600)) == Word.GROWING


def test_a_small_change_of_a_small_thing_is_flat() -> None:
    assert word(lambda at: 0.1 + 0.1 * at / HOUR, small=0.5) == Word.FLAT
    assert word(lambda at: 0.1 + 0.1 * at / HOUR) == Word.GROWING


def test_what_grows_from_nothing_is_growth() -> None:
    assert word(lambda at: max(0, at - 2300)) == Word.GROWING


def test_a_short_run_has_no_verdict() -> None:
    verdict = judged([(at, 1.0 + at) for at in range(600)], warm_up=150)
    assert verdict is not None
    assert verdict.word == Word.SHORT
    assert judged([(1.0, 1.0)], warm_up=2) is None


def test_windows_are_of_equal_length_and_hold_everything() -> None:
    assert windowed([(at, float(at)) for at in range(91)], 9)[0] == (5.0, 4.5)
    assert len(windowed([(at, float(at)) for at in range(91)], 9)) == 9
    assert windowed([(7.0, 3.0)]) == [(7.5, 3.0)] or windowed([(7.0, 3.0)])[0][1] == 3.0


def test_few_points_leave_everything_open() -> None:
    assert sloped([(0, 0), (1, 1), (2, 2)]) == (1.0, -math.inf, math.inf)
    assert sloped([(0, 1)])[0] == 0.0


# --- the schedule -------------------------------------------------------------------------------------


def taken(schedule: Schedule) -> list[tuple[float, int, int]]:
    actions = []
    while (action := schedule.take()) is not None:
        actions.append((action.due, action.number, action.kind))
    return actions


def test_the_shares_are_a_hundred_percent() -> None:
    assert sum(shares()) == pytest.approx(100)
    assert min(shares()) > 0


def test_a_seed_is_a_schedule() -> None:
    one, again, other = (taken(Schedule(rate=50, seconds=20, seed=seed)) for seed in (1, 1, 2))
    assert one == again != other


def test_the_rate_is_that_of_jobs_and_all_kinds_come() -> None:
    actions = taken(Schedule(rate=300, seconds=600, seed=1))
    jobs: Counter[str] = Counter()
    for _, _, kind in actions:
        jobs[KINDS[kind].name] += KINDS[kind].jobs
    assert sum(jobs.values()) == pytest.approx(180_000, rel=0.03)
    assert jobs["plain"] / sum(jobs.values()) == pytest.approx(shares()[0] / 100, rel=0.05)
    assert set(jobs) == {kind.name for kind in KINDS}


def test_no_two_jobs_have_one_number() -> None:
    numbers: Counter[int] = Counter()
    for _, number, kind in taken(Schedule(rate=300, seconds=60, seed=3)):
        numbers.update(range(number, number + (MEMBERS if KINDS[kind].name == "batch" else 1)))
    assert numbers.most_common(1)[0][1] == 1


# --- the books ----------------------------------------------------------------------------------------


def sent(number: int, kind: str, outcome: Outcome = Outcome.SENT, run_after: float = 0.0) -> Sent:
    return Sent(number, KIND[kind], outcome, due=10.0, committed=10.5, run_after=run_after)


def test_a_record_is_read_as_it_was_written() -> None:
    records = [sent(1, "plain"), sent(1 << 40, "batch", Outcome.REFUSED)]
    assert Sent.unpacked(b"".join(record.packed() for record in records)) == records


def test_what_ran_as_often_as_it_must_is_closed() -> None:
    books = Books()
    books.enter([sent(1, "plain"), sent(2, "fails once"), sent(3, "event"), sent(4, "stream entry")])
    books.settle([(1, 0, 11.0), (2, 0, 11.0), (2, 0, 12.0), (3, 0, 11.0), (3, 1, 11.0), (3, 2, 11.0)])
    books.settle([(4, 0, 11.0), (4, 1, 11.0)])
    assert (books.left, books.unexpected) == (0, [])
    assert books.jobs == 6
    assert books.runs == {"plain": 1, "fails once": 2, "event": 3, "stream entry": 2}


def test_what_did_not_run_often_enough_is_lost() -> None:
    books = Books()
    books.enter([sent(1, "plain"), sent(2, "fails once"), sent(3, "event")])
    books.settle([(2, 0, 11.0), (3, 0, 11.0)])
    assert books.lost() == {"plain": 1, "fails once": 1, "event": 2}


def test_what_ran_too_often_is_told() -> None:
    books = Books()
    books.enter([sent(1, "plain"), sent(2, "unique", Outcome.REFUSED), sent(3, "undone", Outcome.UNDONE)])
    books.settle([(1, 0, 11.0), (1, 0, 12.0), (2, 0, 11.0), (3, 0, 11.0)])
    assert books.unexpected == [(1, 0), (2, 0), (3, 0)]
    assert (books.refused, books.undone) == ({"unique": 1}, 1)


def test_a_batch_is_its_members_and_one_end() -> None:
    books = Books()
    books.enter([sent(100, "batch")])
    books.settle([(100 + nth, 0, 11.0) for nth in range(MEMBERS)])
    assert books.left == 1
    books.settle([(100, 1, 12.0)])
    assert (books.left, books.runs["end of a batch"], books.unexpected) == (0, 1, [])
    assert max(kind.parts and len(kind.parts) for kind in KINDS) < PARTS


def test_a_delayed_job_waits_from_its_instant_and_others_from_their_commit() -> None:
    books = Books()
    books.enter([sent(1, "plain"), sent(2, "delayed", run_after=20.0)])
    books.settle([(1, 0, 10.75), (2, 0, 20.5)])
    assert books.waits_until(15.0) == {"start": [0.25], "late": [], "behind": [0.5, 0.5]}
    assert books.waits_until(30.0) == {"start": [], "late": [0.5], "behind": []}


# --- the report ---------------------------------------------------------------------------------------


def ended() -> dict[str, Any]:
    """Return what is found when all is well."""
    return {
        "plan": {"hours": 1.0},
        "samples": [],
        "left": {"in the line": 0},
        "exit_codes": {"producers": 0, "workers": [0, 0]},
        "books": {
            "sent": {"plain": 5, "event": 2, "batch": 1, "dead letter": 3, "stream entry": 9},
            "runs": {"plain": 5},
            "lost": {},
            "doubled": 0,
            "broken": 0,
        },
        "counted": {"succeeded": 5 + 6 + MEMBERS + 1, "superseded": 0},
        "archived": 5 + 6 + MEMBERS + 1,
        "dead_letters": 3,
        "deadlocks": 0.0,
    }


def empty(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr(soak_report, "all_of", lambda found: [])
    return Report(found)


def test_nothing_is_wrong_with_good_books(monkeypatch: pytest.MonkeyPatch) -> None:
    report = empty(ended(), monkeypatch)
    assert (report.faults, report.is_good) == ([], True)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("left", "in the line"), 1),
        (("books", "lost"), {"plain": 1}),
        (("books", "doubled"), 1),
        (("books", "broken"), 1),
        (("books", "runs"), {}),
        (("books", "sent", "plain"), 6),
        (("counted", "succeeded"), 31),
        (("counted", "superseded"), 1),
        (("archived",), 33),
        (("dead_letters",), 2),
        (("deadlocks",), 1.0),
        (("exit_codes", "producers"), 1),
        (("exit_codes", "workers"), [0, -9]),
    ],
)
def test_each_fault_of_the_books_is_told(path: tuple[str, ...], value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = copy.deepcopy(ended())
    place = found
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    report = empty(found, monkeypatch)
    assert report.faults
    assert not report.is_good


def test_a_run_that_did_not_end_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert empty({"plan": {"hours": 1.0}, "samples": []}, monkeypatch).faults


def test_the_shape_of_waits() -> None:
    assert shape([number / 1000 for number in range(100)]) == [100, 0.05, 0.095, 0.099, 0.099]


def test_partitions_count_as_their_log() -> None:
    assert of_log("pgbus_stream_12_p7") == "pgbus_stream_12"
    assert of_log("pgbus_stream_12_p7_pkey") == "pgbus_stream_12_pkey"
    assert of_log("pgbus_stream_keys") == "pgbus_stream_keys"


# --- the page -----------------------------------------------------------------------------------------


def test_the_page_is_that_of_the_record() -> None:
    record = read(DOCS / "soak" / "record.json.gz")
    assert (DOCS / "_soak.md").read_text() == page(record)


def row(**more: Any) -> dict[str, Any]:
    return {
        "group": "memory",
        "name": "worker 1.1",
        "unit": "MB",
        "judged": True,
        "word": "flat",
        "level": 64.25,
        "change": 0.5,
        "percent": 0.8,
    } | more


def summary(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    plan = {"hours": 1.0, "rate": 300.0, "seed": 1, "workers": 2, "processes": 2, "retention": 300.0}
    return {
        **ended(),
        "plan": {**plan, "partition": 1800, "longest_delay": 120.0},
        "machine": {"cores": 2, "python": "3.11.7"},
        "postgres": {"server_version": "18.6", "fsync": "on"},
        "began": "2026-01-01 10:00 UTC",
        "books": {**ended()["books"], "refused": {}, "jobs": 20, "undone": 0},
        "counted": {"succeeded": 32, "failed": 0, "dead": 3},
        "faults": [],
        "others_used": 0.01,
        "series": list(rows),
    } | more


def test_the_page_names_what_is_not_flat() -> None:
    text = page(summary(row(), row(name="worker 1.2", word="growing", percent=12.5)))
    assert "Of 2 series 1 are flat" in text
    assert "- Memory, worker 1.2: +12.5 % in an hour, growing. Not explained." in text
    assert "| worker 1.1 | 64.2 MB | +0.8 % in an hour | flat |" in text


def test_the_page_tells_of_faults_and_of_others() -> None:
    text = page(summary(row(), faults=["lost: 3"], others_used=0.5))
    assert "- **lost: 3**" in text
    assert "**Others used 50% of the processors" in text
    assert "Others used" not in page(summary(row()))


def test_what_others_used_explains_waits_and_no_growth() -> None:
    rows = [row(group="waits", word="growing"), row(name="worker 1.2", word="growing")]
    busy, calm = page(summary(*rows, others_used=0.5)), page(summary(*rows))
    assert (busy.count("Others used the machine"), busy.count("Not explained.")) == (1, 1)
    assert (calm.count("Others used the machine"), calm.count("Not explained.")) == (0, 2)


# --- the whole of it ----------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--minutes", "0.3", "--rate", "30", "--out", str(tmp_path), "--json", "--no-plots"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["faults"] == []
    assert set(found["books"]["sent"]) | {"dead letter", "batch"} >= {
        "plain",
        "async",
        "event",
        "stream entry",
        "limited",
    }
    names = {(one["group"], one["name"]) for one in found["series"]}
    assert {("memory", "worker 2.2"), ("sizes", "pgbus_archive"), ("connections", "all")} <= names
    assert (tmp_path / "soak.json.gz").exists()
