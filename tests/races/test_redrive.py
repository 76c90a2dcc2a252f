"""A redriven dead letter goes into the line once, under its id, with its history."""

from __future__ import annotations

import pytest

from django_pgbus.models import DeadLetter, Message
from django_pgbus.queues import sql
from django_pgbus.tasks import lifecycle
from tests.line import COMMITTED, claim_one, give_up, put, state, succeed
from tests.sessions import PATIENCE, sessions

pytestmark = [COMMITTED, pytest.mark.races]


def redrive(ids):
    return lifecycle.redrive(ids).ids


@pytest.fixture
def dead():
    (id,) = put()
    give_up(claim_one())
    return id


@pytest.mark.proves("retry-brings-it-back-once")
def test_two_who_redrive_and_it_is_in_the_line_once(dead):
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(redrive, [dead]) == [dead]
        late = bob.begin(redrive, [dead])
        bob.wait_until_blocked()
        ann.commit()
        assert late.result(PATIENCE) == []
    assert Message.objects.filter(id=dead).count() == 1


def test_a_redrive_against_a_discard_and_one_of_them_finds_nothing(dead):
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(redrive, [dead]) == [dead]
        late = bob.begin(lifecycle.discard_dead, [dead])
        bob.wait_until_blocked()
        ann.commit()
        assert late.result(PATIENCE) == []
    assert state(dead) == "ready"


def test_a_redrive_that_rolls_back_leaves_the_dead_letter(dead):
    with sessions() as person:
        person.open()
        person.do(redrive, [dead])
        person.roll_back()
    assert DeadLetter.objects.get().id == dead
    assert not Message.objects.exists()


@pytest.mark.proves("retry-brings-it-back-once")
def test_it_runs_again_with_fresh_attempts_its_history_and_a_higher_delivery(dead):
    redrive([dead])
    delivery = claim_one()
    assert (delivery.id, delivery.attempts, delivery.delivery > 1) == (dead, 1, True)
    assert "ValueError" in delivery.errors
    assert succeed(delivery) == {dead}


def test_a_claim_waits_for_no_redrive(dead):
    other = put()
    with sessions() as person:
        person.open()
        person.do(redrive, [dead])
        assert [claim_one().id] == other
        person.commit()
    assert claim_one().id == dead


@pytest.mark.proves("retry-brings-it-back-once")
def test_the_run_that_died_cannot_come_back_after_the_redrive(dead):
    (old_id,) = put()
    old = claim_one()
    give_up(old)
    redrive([old_id])
    assert succeed(old) == set()
    assert state(old_id) == "ready"


@pytest.mark.parametrize("decide", [redrive, lifecycle.discard_dead])
def test_a_decision_that_met_a_conflict_is_repeated_whole(dead, decide, monkeypatch):
    """Also for ids that can be read only once."""
    from django.db import OperationalError

    name = {redrive: "REDRIVE", lifecycle.discard_dead: "DISCARD_DEAD"}[decide]
    real, tries = getattr(sql, name), []

    class Conflict(OperationalError):
        sqlstate = "40P01"

    class Once:
        def rows(self, **params):
            tries.append(params["ids"])
            if len(tries) == 1:
                raise Conflict("deadlock")
            return real.rows(**params)

    monkeypatch.setattr(sql, name, Once())
    assert decide(id for id in [dead]) == [dead]
    assert tries == [[dead], [dead]]
