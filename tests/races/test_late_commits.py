"""
A message that commits after higher positions were claimed is not lost below the floor.

The floor of a worker moves only past what was claimed some time before its previous claim; here its clock is turned
on by hand, so that the floor is above the late message for certain.
"""

from __future__ import annotations

import pytest

from django_pgbus.queues import line as line_module
from django_pgbus.queues.line import SETTLE, Line
from django_pgbus.queues.message import Level
from tests.line import COMMITTED, DEFAULT, LEASE, claim, claim_one, put, succeed
from tests.sessions import sessions, until

pytestmark = [COMMITTED, pytest.mark.races]


class Clock:
    """The monotonic clock of the line, turned on by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(line_module, "time", clock)
    return clock


def passed_over(line, clock, claimed_above=1):
    """Claim what is there, and go on claiming until the floor has passed it."""
    claimed = claim(line)
    assert len(claimed) == claimed_above
    for _ in range(3):
        clock.pass_(2 * SETTLE)
        assert claim(line) == []
    assert line.floors[DEFAULT].floor == max(delivery.position for delivery in claimed)
    return claimed


def look(line, clock, leases=LEASE):
    clock.pass_(5)
    return line.poll([DEFAULT], ["default"], leases)


@pytest.fixture
def late(clock):
    """A line whose floor is above a message that only now is committed."""
    line = Line()
    with sessions() as producer:
        producer.open()
        (id,) = producer.do(put)
        put()
        passed_over(line, clock)
        producer.commit()
    assert claim(line) == []
    return line, id


def test_a_late_commit_is_found_by_its_wake_up(late):
    line, id = late
    line.lower(DEFAULT, 1)
    assert claim_one(line=line).id == id


@pytest.mark.proves("found-without-a-wake-up")
def test_a_late_commit_is_found_by_a_look(late, clock):
    line, id = late
    assert look(line, clock).free == {DEFAULT}
    assert claim_one(line=line).id == id


def test_a_late_commit_is_found_by_a_look_after_the_worker_was_idle(clock):
    """An idle worker takes over the end of the line as its floor; the late one was in it already."""
    line = Line()
    put()
    look(line, clock)
    succeed(claim_one(line=line))
    with sessions() as producer:
        producer.open()
        (id,) = producer.do(put)
        for _ in range(5):
            look(line, clock)
        assert line.floors[DEFAULT].floor >= 2
        producer.commit()
    assert claim(line) == []
    assert look(line, clock).free == {DEFAULT}
    assert claim_one(line=line).id == id


def test_a_short_late_commit_needs_neither():
    """Its wake-up may have been coalesced: a floor moves past a position only 50 ms after a claim that saw it."""
    line = Line()
    with sessions() as producer:
        producer.open()
        (id,) = producer.do(put)
        put()
        assert len(claim(line)) == 1
        producer.commit()
    assert claim_one(line=line).id == id


@pytest.mark.proves("found-without-a-wake-up")
def test_without_wake_up_and_look_it_would_be_lost(late, clock):
    """What the nets above are for: claims alone never find it."""
    line, _ = late
    put()
    for _ in range(5):
        clock.pass_(1)
        claim(line)
    assert claim(line) == []


def test_a_wake_up_is_read_after_the_claim_in_flight(clock):
    """One that was read before the claim raised the floor would be overwritten; `Consumer` reads notes between claims."""
    line = Line()
    with sessions() as producer:
        producer.open()
        (id,) = producer.do(put)
        put()
        line.lower(DEFAULT, 1)  # as if the note had been read too early
        passed_over(line, clock)
        producer.commit()
    assert claim(line) == []
    line.lower(DEFAULT, 1)
    assert claim_one(line=line).id == id


def test_lowering_reaches_below_what_claims_have_passed_but_not_the_floor(clock):
    line = Line()
    ids = put(2)
    with sessions() as other:
        other.open()
        other.sql("SELECT 1 FROM pgbus_messages WHERE id = %s FOR UPDATE", ids[0])
        assert claim_one(line=line).id == ids[1]
        other.commit()
    line.lower(DEFAULT, 1)
    clock.pass_(1)
    assert claim_one(line=line).id == ids[0]


def test_the_first_position_ever_is_not_below_the_floor(clock):
    """A fresh sequence says 1 before it has given it: an idle worker must not take that as passed."""
    with sessions() as other:
        other.sql("ALTER SEQUENCE pgbus_position RESTART WITH 1")
    line = Line()
    for _ in range(5):
        look(line, clock)
    (id,) = put()
    assert claim_one(line=line).id == id


def test_a_long_row_of_leases_above_the_floor_does_not_hide_the_rest(clock):
    """Other workers hold more than a look reads: the floor must not pass what is free behind it."""
    line = Line()
    look(line, clock)
    put(1100)
    put(1)
    look(line, clock)
    assert len(claim(Line(), limit=1100)) == 1100
    look(line, clock)
    assert len(claim(line)) == 1


def test_looks_prove_in_between_polls_too(clock):
    """Polls are more frequent than looks; what one of them proves must not be forgotten before the next look."""
    line = Line()
    put(3)
    claim(line)
    look(line, clock)

    def moved():
        line.poll([DEFAULT], ["default"], LEASE)  # no look: too early
        look(line, clock)
        return line.floors[DEFAULT].base > 0

    until(moved)


def test_wake_ups_that_come_late_do_not_hold_the_floor_down(clock):
    """Under load most of them do: what they name was claimed already, and only what is not below them is in doubt."""
    line = Line()
    for _ in range(40):
        put()
        (delivery,) = claim(line)
        succeed(delivery)
        clock.pass_(0.01)
        line.lower(DEFAULT, delivery.position)
    assert delivery.position - line.floors[DEFAULT].floor < 20


def test_a_wake_up_from_far_below_takes_the_floor_down_to_it(clock):
    line = Line()
    put(10)
    first, *_ = passed_over(line, clock, 10)
    line.lower(DEFAULT, first.position)
    assert line.floors[DEFAULT].floor == line.floors[DEFAULT].reach() == first.position - 1


def test_a_claim_that_stopped_at_its_limit_lets_the_floor_rise_only_as_far_as_it_looked(clock):
    line = Line()
    with sessions() as producer:
        producer.open()
        late = producer.do(put, 3)
        put()
        claim(line)
        producer.commit()
    clock.pass_(1)
    assert [delivery.id for delivery in claim(line, 1)] == late[:1]
    clock.pass_(1)
    assert [delivery.id for delivery in claim(line)] == late[1:]


def test_levels_behind_one_that_fills_a_claim_have_not_been_looked_at(clock):
    line, levels = Line(), [Level("default", 9), DEFAULT]
    with sessions() as producer:
        producer.open()
        (late,) = producer.do(put)
        put()
        claim(line, levels=levels)
        producer.commit()
    for _ in range(5):
        clock.pass_(1)
        put(priority=9)
        assert claim(line, 1, levels)[0].level.priority == 9
    assert claim_one(line=line, levels=levels).id == late
