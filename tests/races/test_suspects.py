"""
A job that kills its worker runs out of attempts, and its neighbours do not (semantics 2.4).

Played by hand: a process claims, starts some, dies, and its supervisor reaps what it held. What a real worker does
between claim and start stands in tests/worker.
"""

from __future__ import annotations

import uuid

import pytest

from django_pgbus.models import Message
from django_pgbus.queues import heartbeat
from django_pgbus.queues.line import Line
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.lifecycle import HeldMessage
from tests.line import (
    COMMITTED,
    DEFAULT,
    LEASE,
    SUSPECTS,
    claim,
    claim_one,
    fail,
    fails_without,
    hand_back,
    holding,
    lapse,
    put,
    release,
    succeed,
)

pytestmark = [COMMITTED, pytest.mark.races]

THREADS = 10
MAX_ATTEMPTS = 5


def attempts():
    return dict(Message.objects.values_list("id", "attempts"))


def held(deliveries, started):
    return [
        HeldMessage(id=d.id, delivery=d.delivery, started=d.id in started or d.level.suspect, suspect=d.level.suspect)
        for d in deliveries
    ]


def run_until_dead(killer):
    """Play one life of a process: fill the buffer, run in order, a suspect alone beside a few others, die or finish."""
    line = Line()
    suspect = claim(line, 1, [SUSPECTS])
    others = claim(line, 40, [DEFAULT])
    ran = [*suspect, *others]
    spent = [d for d in ran if d.attempts > MAX_ATTEMPTS]
    ran = [d for d in ran if d not in spent]
    dies = next((place for place, d in enumerate(ran) if d.id == killer), None)
    if dies is None:
        succeed(*ran)
    else:
        last_start = max(dies + 1, THREADS)
        survived = ran[:dies][: max(0, dies - THREADS)]
        succeed(*survived)
        started = {d.id for d in ran[:last_start]}
        lifecycle.reap(held([d for d in ran if d not in survived], started))
    return spent


@pytest.mark.proves("a-killer-runs-out-of-attempts")
def test_one_of_a_hundred_kills_its_process_and_no_innocent_runs_out_of_attempts():
    ids = put(100)
    killer = ids[37]
    spent = []
    for _ in range(60):
        if not Message.objects.exists():
            break
        if gone := run_until_dead(killer):
            spent += gone
            for delivery in gone:
                lifecycle.give_up(
                    [
                        lifecycle.GaveUp(
                            delivery=delivery, reason="exhausted", error=None, ran_for=0, ended=0, not_run=True
                        )
                    ],
                    0,
                )
    assert [d.id for d in spent] == [killer]
    assert not Message.objects.exists()
    dead = lifecycle.find(killer)
    assert (dead.state, dead.attempts) == ("dead", MAX_ATTEMPTS)
    assert {lifecycle.find(id).state for id in ids if id != killer} == {"succeeded"}


def test_an_attempt_counts_only_if_it_had_started():
    put(3)
    first, second, third = claim()
    lifecycle.reap(held([first, second, third], {first.id}))
    assert attempts() == {first.id: 1, second.id: 0, third.id: 0}
    assert set(Message.objects.values_list("suspect", flat=True)) == {True}


@pytest.mark.proves("a-killer-runs-out-of-attempts")
def test_if_a_suspect_ran_only_its_attempt_counts():
    put(3)
    first, *rest = claim()
    lifecycle.reap(held([first], {first.id}))
    (suspect,) = claim(levels=[SUSPECTS])
    hand_back(*rest)
    neighbours = claim(levels=[DEFAULT])
    lifecycle.reap(held([suspect, *neighbours], {d.id for d in neighbours}))
    assert attempts() == {first.id: 2, **{d.id: 0 for d in neighbours}}


@pytest.mark.proves("a-killer-runs-out-of-attempts")
@fails_without("RELEASE_LAPSED", "AND other.started", "AND false")
def test_without_a_supervisor_the_look_judges_in_the_same_way():
    put(3)
    first, *rest = claim()
    lapse(first.id)
    heartbeat.renew(holding(*rest), LEASE)
    release(first.id)
    hand_back(*rest)
    worker = uuid.uuid4()
    (suspect,) = claim(levels=[SUSPECTS], worker=worker)
    neighbours = claim(levels=[DEFAULT], worker=worker)
    for neighbour in neighbours:
        neighbour.started = True
    heartbeat.renew(holding(suspect, *neighbours), LEASE)
    lapse(suspect.id, *(d.id for d in neighbours))
    assert len(release(suspect.id, *(d.id for d in neighbours))) == 3
    assert attempts() == {first.id: 1, **{d.id: 0 for d in neighbours}}


def test_a_suspect_of_another_process_excuses_nobody():
    put(2)
    first, second = claim()
    lifecycle.reap(held([first], {first.id}))
    (suspect,) = claim(levels=[SUSPECTS], worker=uuid.uuid4())
    second.started = True
    heartbeat.renew(holding(second), LEASE)
    lapse(suspect.id, second.id)
    release(suspect.id, second.id)
    assert attempts() == {first.id: 2, second.id: 1}


def test_a_lapsed_run_counts_if_a_beat_had_said_that_it_started():
    put(2)
    started, buffered = claim()
    started.started = True
    heartbeat.renew(holding(started, buffered), LEASE)
    lapse(started.id, buffered.id)
    release(started.id, buffered.id)
    assert attempts() == {started.id: 1, buffered.id: 0}
    entry = Message.objects.get(id=started.id).errors[0]
    assert entry["exception"] == "django_pgbus.exceptions.WorkerLost"
    assert (entry["attempt"], set(entry)) == (
        1,
        {"exception", "traceback", "worker", "attempt", "started_at", "failed_at"},
    )


def test_suspects_form_a_level_of_their_own():
    put(2)
    suspect, other = claim()
    lifecycle.reap(held([suspect], {suspect.id}))
    hand_back(other)
    assert [d.id for d in claim(levels=[DEFAULT])] == [other.id]
    assert [d.id for d in claim(levels=[SUSPECTS])] == [suspect.id]


@pytest.mark.parametrize("end", [fail, hand_back], ids=["fails", "is handed back"])
def test_a_normal_outcome_clears_the_mark_and_a_hand_back_does_not(end):
    put()
    delivery = claim_one()
    lifecycle.reap(held([delivery], {delivery.id}))
    end(claim_one())
    lifecycle.move_due(["default"])
    assert Message.objects.get().suspect is (end is hand_back)


def test_a_culprit_that_is_reaped_twice_counts_once():
    """The supervisor repeats a repair whose reply was lost."""
    put()
    delivery = claim_one()
    assert lifecycle.reap(held([delivery], {delivery.id})) == [delivery.id]
    assert lifecycle.reap(held([delivery], {delivery.id})) == []
    assert attempts() == {delivery.id: 1}
