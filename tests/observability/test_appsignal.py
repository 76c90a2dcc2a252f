"""AppSignal gets the same numbers, once a minute, from one process."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from django_pgbus.models import Election
from django_pgbus.observability import appsignal, families, metrics
from django_pgbus.observability.families import Kind, Metric, Readings, Section
from django_pgbus.observability.sections import SECTIONS
from tests.admin import rows
from tests.insights.rows import a_row
from tests.line import COMMITTED
from tests.observability.reading import Scraped
from tests.sessions import execute

pytestmark = COMMITTED

RUNS = Metric("pgbus_things_total", "Things.", ("task",), Kind.COUNTER)


class Minute:
    """What AppSignal was told since somebody looked."""

    def __init__(self) -> None:
        self.gauges: dict[tuple[Any, ...], float] = {}
        self.counters: dict[tuple[Any, ...], float] = {}
        self.probes: dict[str, Any] = {}

    def set_gauge(self, name: str, value: float, tags: dict[str, Any] | None = None) -> None:
        self.gauges[name, *(tags or {}).values()] = value

    def increment_counter(self, name: str, value: float, tags: dict[str, Any] | None = None) -> None:
        key = (name, *(tags or {}).values())
        self.counters[key] = self.counters.get(key, 0) + value

    def register(self, name: str, probe: Any) -> None:
        self.probes[name] = probe


@pytest.fixture
def minute(monkeypatch: pytest.MonkeyPatch) -> Minute:
    """The part of the package that we call, in its place."""
    told = Minute()
    package, probes = ModuleType("appsignal"), ModuleType("appsignal.probes")
    package.set_gauge, package.increment_counter, package.probes = told.set_gauge, told.increment_counter, probes  # type: ignore[attr-defined]
    probes.register = told.register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "appsignal", package)
    monkeypatch.setitem(sys.modules, "appsignal.probes", probes)
    return told


@pytest.fixture
def things(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A section whose counters are those of a dict; empty, it cannot be read."""
    counted = {"a": 5}

    def read(readings: Readings) -> None:
        if not counted:
            raise ZeroDivisionError
        for task, number in counted.items():
            readings.set(RUNS, number, task)

    monkeypatch.setattr(metrics, "SECTIONS", [*SECTIONS, Section(name="things", title="", metrics=(RUNS,), read=read)])
    return counted


def test_the_stand_in_is_as_the_package() -> None:
    """`register`, and the two functions: their names and arguments; a probe with a parameter gets what it returned last."""
    real = pytest.importorskip("appsignal")
    probes = pytest.importorskip("appsignal.probes")
    for ours, theirs in (
        (Minute.set_gauge, real.set_gauge),
        (Minute.increment_counter, real.increment_counter),
        (Minute.register, probes.register),
    ):
        assert list(inspect.signature(ours).parameters)[1:] == list(inspect.signature(theirs).parameters)
    assert len(inspect.signature(appsignal.probe).parameters) == 1
    probes.register("pgbus-test", lambda state: (state or 0) + 1)
    try:
        probes._run_probe("pgbus-test")
        probes._run_probe("pgbus-test")
        assert probes._probe_states["pgbus-test"] == 2
    finally:
        probes.unregister("pgbus-test")


def test_it_registers(minute: Minute) -> None:
    appsignal.register()
    assert minute.probes == {"pgbus": appsignal.probe}


def test_every_gauge_of_the_scrape_is_set(minute: Minute) -> None:
    rows.a_message(queue="mail")
    appsignal.probe(None)
    found = Scraped()
    names = {name for name, family in found.families.items() if family.metric.kind is Kind.GAUGE and family.samples}
    assert names <= {key[0] for key in minute.gauges}
    assert minute.gauges["pgbus_queue_depth", "mail"] == 1


def test_dashboards_of_the_gem_find_their_names(minute: Minute) -> None:
    rows.a_message(queue="mail")
    rows.a_delayed(queue="mail")
    rows.a_message(queue="orders")
    rows.a_dead_letter()
    rows.a_worker()
    rows.a_worker(listening=False)
    rows.a_worker(state="draining")
    appsignal.probe(None)
    expected = {
        ("pgbus_queue_visible_depth", "mail"): 1,
        ("pgbus_total_queues",): 3,
        ("pgbus_total_depth",): 3,
        ("pgbus_total_visible",): 2,
        ("pgbus_dlq_depth",): 1,
        ("pgbus_active_processes",): 2,
        ("pgbus_concurrency_slots_held",): 0,
    }
    assert {key: minute.gauges[key] for key in expected} == expected
    latency, age = (
        minute.gauges[f"pgbus_queue_{name}", "mail"] for name in ("latency", "oldest_claimable_age_seconds")
    )
    assert latency == pytest.approx(age * 1000)


def test_counters_tell_what_was_added(minute: Minute, things: dict[str, int]) -> None:
    state = appsignal.probe(None)
    assert minute.counters == {}, "what was counted before belongs to nobody's minute"
    things.update(a=7, b=1)
    state = appsignal.probe(state)
    assert minute.counters == {("pgbus_things", "a"): 2, ("pgbus_things", "b"): 1}
    appsignal.probe(state)
    assert minute.counters == {("pgbus_things", "a"): 2, ("pgbus_things", "b"): 1}


def test_what_could_not_be_read_is_told_with_the_next(minute: Minute, things: dict[str, int]) -> None:
    state = appsignal.probe(None)
    things.clear()
    state = appsignal.probe(state)
    things.update(a=9)
    appsignal.probe(state)
    assert minute.counters == {("pgbus_things", "a"): 4}


def test_what_could_not_be_read_at_first_is_where_counting_begins(minute: Minute, things: dict[str, int]) -> None:
    things.clear()
    state = appsignal.probe(None)
    things.update(a=9)
    state = appsignal.probe(state)
    things.update(a=10)
    appsignal.probe(state)
    assert minute.counters == {("pgbus_things", "a"): 1}


def test_what_may_have_been_left_out_is_where_counting_begins(
    minute: Minute, things: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "MOST_SERIES", 1)
    for queue in "ab":
        rows.a_message(queue=queue)
    state = appsignal.probe(None)
    things.update(a=6, b=100)
    appsignal.probe(state)
    assert minute.counters == {("pgbus_things", "a"): 1}


def test_runs_are_told_with_their_rate(minute: Minute) -> None:
    a_row(task="shop.pay", number=3)
    state = appsignal.probe(None)
    a_row(task="shop.pay", number=2)
    a_row(task="shop.pay", superseded=1)
    appsignal.probe(replace(state, at=state.at - 60))
    expected = {
        ("pgbus_runs", "shop.pay", "default", "succeeded"): 2,
        ("pgbus_runs", "shop.pay", "default", "superseded"): 1,
    }
    assert minute.counters == expected
    assert minute.gauges["pgbus_throughput_rate",] == pytest.approx(2 / 60, rel=0.2)


def test_of_two_processes_one_sends(minute: Minute, things: dict[str, int]) -> None:
    first = appsignal.probe(None)
    minute.gauges.clear()
    second = appsignal.probe(None)
    things.update(a=6)
    first, second = appsignal.probe(first), appsignal.probe(second)
    assert minute.counters == {("pgbus_things", "a"): 1}
    execute("UPDATE pgbus_election SET until = statement_timestamp() WHERE office = 'pgbus'")
    second = appsignal.probe(second)
    things.update(a=8)
    first, second = appsignal.probe(first), appsignal.probe(second)
    assert minute.counters == {("pgbus_things", "a"): 3}
    assert Election.objects.get().worker == second.id
    assert first.counted is None, "what others sent meanwhile is not sent again"


def test_a_section_that_fails_is_not_told_as_nothing(minute: Minute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SECTIONS", [one for one in SECTIONS if one.name != "queues"])
    appsignal.probe(None)
    assert "pgbus_total_depth" not in {key[0] for key in minute.gauges}
    assert ("pgbus_active_processes",) in minute.gauges
