"""A delivery number is given once in the life of a task, wherever the task goes in between."""

from __future__ import annotations

import json

import pytest

from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.lifecycle import HeldMessage
from tests.line import (
    COMMITTED,
    claim_one,
    fail,
    fails_without,
    give_up,
    hand_back,
    lapse,
    make_due,
    put,
    release,
    snooze,
)

pytestmark = [COMMITTED, pytest.mark.races]


def retry(delivery):
    fail(delivery)
    lifecycle.move_due(["default"])


def wait(delivery):
    snooze(delivery)
    make_due(delivery.id)
    lifecycle.move_due(["default"])


def reap(delivery):
    lifecycle.reap([HeldMessage(id=delivery.id, delivery=delivery.delivery, started=True)])


def let_lapse(delivery):
    lapse(delivery.id)
    release(delivery.id)


def redrive(delivery):
    give_up(delivery)
    lifecycle.redrive([delivery.id])


WAYS = {"retry": retry, "snooze": wait, "hand back": hand_back, "reap": reap, "lapse": let_lapse, "redrive": redrive}


def through_everything_twice():
    put()
    numbers = []
    for way in [*WAYS.values(), *reversed(WAYS.values())]:
        delivery = claim_one()
        numbers.append(delivery.delivery)
        way(delivery)
    numbers.append(claim_one().delivery)
    assert numbers == sorted(set(numbers)), numbers


@pytest.mark.proves("the-number-only-rises")
def test_delivery_numbers_only_ever_rise():
    through_everything_twice()


@fails_without("REDRIVE", "delivery + 1", "0")
def test_a_redrive_starts_the_attempts_again_and_not_the_deliveries():
    through_everything_twice()


@fails_without("CLAIM", "delivery = message.delivery + 1", "delivery = message.delivery")
def test_each_claim_has_a_number_of_its_own():
    through_everything_twice()


@pytest.mark.parametrize(
    ("way", "attempts"),
    [("retry", 1), ("snooze", 0), ("hand back", 0), ("reap", 1), ("lapse", 0), ("redrive", 0)],
)
def test_attempts_are_counted_apart_from_deliveries(way, attempts):
    """A retry and a lost run that had started are attempts; a claim that came to no run is none."""
    put()
    WAYS[way](claim_one())
    delivery = claim_one()
    assert (delivery.delivery > 1, delivery.attempts) == (True, attempts + 1)


@pytest.mark.proves("a-stop-costs-no-attempt")
def test_five_deploys_over_one_long_job_do_not_use_up_its_attempts():
    put()
    for _ in range(5):
        hand_back(claim_one())
    delivery = claim_one()
    assert (delivery.attempts, delivery.errors) == (1, None)


@pytest.mark.proves("failures-end-as-dead-letters")
def test_the_history_goes_wherever_the_task_goes_and_keeps_the_last_ten():
    (id,) = put()
    for _ in range(12):
        retry(claim_one())
    redrive(claim_one())
    let_lapse(claim_one())
    delivery = claim_one()
    assert len(json.loads(delivery.errors)) == 10
    assert delivery.id == id
