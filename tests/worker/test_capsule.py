"""How much a capsule holds: what waits behind long jobs goes back, and is not fetched again and again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from django_pgbus.worker import capsule as capsule_module
from django_pgbus.worker.capsule import BUFFER_STALE, Capsule
from tests.running import a_plan


class Stuck:
    """Threads all of which run something long."""

    busy, taken, pending = 4, 0, 0

    def __init__(self) -> None:
        self.buffer: list[Any] = []

    @property
    def buffered(self) -> int:
        return len(self.buffer)

    def put(self, deliveries: list[Any], **how: Any) -> None:
        self.buffer += deliveries

    def take_back(self) -> list[Any]:
        back, self.buffer = self.buffer, []
        return back


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Delivery:
    task = "nowhere.at_all"
    topic = None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(capsule_module, "time", clock)
    return clock


@pytest.fixture
def capsule(clock: Clock) -> Any:
    (declared,) = a_plan("default").capsules
    capsule: Any = Capsule(declared, None, None, None, None, "stuck")  # type: ignore[arg-type]
    capsule.threads = Stuck()
    capsule._measured, capsule._average = True, 0.001
    return capsule


def fill(capsule: Any) -> int:
    deliveries: list[Any] = [Delivery() for _ in range(capsule.room())]
    if deliveries:
        capsule.put(deliveries)
    return len(deliveries)


def test_what_nobody_starts_goes_back_and_is_hardly_fetched_again(capsule: Any, clock: Clock) -> None:
    """Looked at every 2 ms for ten seconds, as the consumer does: it used to fetch it with every look for a while."""
    fetched = []
    for _ in range(5000):
        capsule.stale()
        if fill(capsule):
            fetched.append(clock.now)
        clock.now += 0.002
    assert len(fetched) <= 3
    assert min(after - before for before, after in itertools.pairwise(fetched)) >= BUFFER_STALE


def test_what_was_just_put_there_has_its_time(capsule: Any, clock: Clock) -> None:
    assert fill(capsule)
    clock.now += BUFFER_STALE
    assert capsule.stale()
    capsule.put([Delivery()])
    clock.now += BUFFER_STALE * 0.9
    assert capsule.stale() == []
    clock.now += BUFFER_STALE * 0.2
    assert len(capsule.stale()) == 1
