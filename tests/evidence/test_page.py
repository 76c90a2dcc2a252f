"""The page of evidence says what is recorded and no more, and quotes what reads as what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from django_pgbus.concurrency import sql as limits
from django_pgbus.postgres import Statement
from django_pgbus.queues import sql as queues
from django_pgbus.tasks import sql as tasks
from tests.benchmarks.record import Record as Benchmarks
from tests.chaos.shadow import Edit
from tests.evidence import chaos, page, quoting, speed, whole
from tests.evidence.removals import taken_away
from tests.evidence.rules import Keeper, all_rules
from tests.evidence.waits import locks_and_waits

RUN: dict[str, Any] = {
    "settings": {"minutes": 10, "kinds": ["plain"]},
    "faults": {"restart": 3, "kill_child": 5},
    "workload": {"plain": {"sent": 1200, "runs": 1201}},
    "checks": {"lost": 0, "paused": 0},
    "wrong": {},
    "seconds": 640.2,
    "commit": "abc",
    "date": "2026-01-01",
}
INSIDE = "SELECT 1 WHERE a AND NOT EXISTS ( SELECT 1 FROM t WHERE (t.x IS NOT NULL) ) AND b"


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the file of a chaos run that is not there yet."""
    file = tmp_path / "chaos.json"
    monkeypatch.setattr(chaos, "CHAOS", file)
    return file


def test_without_a_chaos_run_nothing_rests_on_one(record: Path) -> None:
    text = page.page()
    assert chaos.NONE in text
    assert "the chaos run, which would be the widest of them, is not recorded" in text
    assert "no test shows a crash with `fsync` on, and no [chaos run](#the-chaos-run) that would is recorded" in text
    assert "which was green" not in text


def test_a_green_chaos_run_is_cited(record: Path) -> None:
    record.write_text(json.dumps(RUN))
    text = page.page()
    assert "Green. 640 s" in text
    assert "the recorded chaos run found nothing" in text
    assert "only the recorded [chaos run](#the-chaos-run), which was green, has a crash with `fsync` on" in text
    assert "| plain | sent 1,200, runs 1,201 |" in text


def test_a_fault_that_was_not_in_the_run_was_not_shown(record: Path) -> None:
    record.write_text(json.dumps(RUN | {"faults": {"kill_child": 5}}))
    assert "no test shows a crash with `fsync` on" in page.page()


def test_a_red_chaos_run_is_red_wherever_it_is_cited(record: Path) -> None:
    found = {"checks": {"lost": 0, "paused": 5}, "wrong": {"paused": [f"#{n}" for n in range(5)]}}
    record.write_text(json.dumps(RUN | found))
    text = page.page()
    assert "**Red: `paused`.**" in text
    assert "| `paused` | **5** |" in text
    assert "- `#2`\n- and 2 more" in text
    assert "the recorded chaos run was **red** (`paused`)" in text
    assert "which was green" not in text
    assert "found nothing" not in text


@pytest.mark.parametrize(
    ("fragment", "quote"),
    [
        ("t.x IS NOT NULL", "NOT EXISTS ( SELECT 1 FROM t WHERE (t.x IS NOT NULL) )"),
        ("AND b", "AND b"),
        ("AND NOT EXISTS (", "AND NOT EXISTS ("),
        ("", ""),
        ("nowhere", "nowhere"),
    ],
)
def test_what_is_negated_is_quoted_with_its_negation(fragment: str, quote: str) -> None:
    assert quoting.quoted(INSIDE, fragment) == quote


def test_an_edit_inside_a_negation_is_quoted_with_it() -> None:
    told = quoting.edited(Edit("uniqueness.sql.TAKE_AWAY", "AND message.leased_until IS NOT NULL", "AND false"))
    assert told.startswith("`NOT EXISTS (")
    assert told.endswith("AND false )`")


def test_waits_are_told_with_locks() -> None:
    assert "waits at `pgbus_uniqueness_keys_pkey`" in locks_and_waits(tasks.ENTER)
    assert locks_and_waits(limits.LOCK) == "`semaphores`: `FOR UPDATE` (waits)"
    assert locks_and_waits(limits.LOCK_FREE) == "`semaphores`: `FOR UPDATE SKIP LOCKED` (passes over)"
    assert locks_and_waits(limits.WAIT_TO_CREATE) == "waits for an advisory lock"
    assert locks_and_waits(queues.SEND) == "none"


@pytest.mark.parametrize("name", sorted(whole.statements()))
def test_each_lock_has_its_mode(name: str) -> None:
    statement: Statement = whole.statements()[name]
    assert locks_and_waits(statement).count("`: `") == len(statement.locks)


def test_a_keeper_may_be_a_constraint_and_must_be_there() -> None:
    assert Keeper(name="pgbus_slots_once", clause="").text == "UNIQUE (key, ordinal)"
    with pytest.raises(LookupError):
        Keeper(name="pgbus_slots_twice", clause="").text  # noqa: B018


def test_it_is_said_which_clauses_were_taken_away() -> None:
    rules = {rule.slug: rule for rule in all_rules()}
    claim = Keeper(name="queues.sql.CLAIM", clause="FOR NO KEY UPDATE SKIP LOCKED")
    assert taken_away(claim, rules["one-worker-claims"]) == "yes"
    assert taken_away(claim, rules["one-job-per-key"]) == "[elsewhere](#one-worker-claims)"
    assert taken_away(Keeper(name="pgbus_processed_events_pkey", clause=""), rules["one-worker-claims"]) == "no"


def test_without_a_record_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(speed, "RECORD", tmp_path / "record.json")
    assert speed.state() == "not measured yet"
    assert speed.sentences().startswith("**Not measured yet.**")


def test_a_goal_of_the_benchmarks_that_is_missed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    part = {
        "bench": "commits",
        "goals": {"P8": {"reached": 0.5}},
        "checks": {},
        "settings": {"runs": 5, "others_used": [0.0]},
    }
    record = Benchmarks()
    record.add(part, 1.0, {})
    record.write(tmp_path / "record.json")
    monkeypatch.setattr(speed, "RECORD", tmp_path / "record.json")
    assert speed.state() == "1 **not met**, 9 not measured"
    assert "**Not met**: P8" in speed.sentences()
