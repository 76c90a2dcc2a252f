"""A person takes a running job from its worker: it is fenced out first, and runs once more."""

from __future__ import annotations

import pytest

from django_pgbus.models import Message, Slot
from django_pgbus.queues import heartbeat
from django_pgbus.tasks import lifecycle
from tests import jobs
from tests.constrained import enqueue, one
from tests.line import COMMITTED, LEASE, claim, claim_one, fail, give_up, holding, put, snooze, state, succeed
from tests.running import a_worker
from tests.sessions import PATIENCE, execute, sessions, until

pytestmark = [COMMITTED, pytest.mark.races]

ENDINGS = {"succeed": succeed, "fail": fail, "snooze": snooze, "give up": give_up}
ENDED = {"succeed": "succeeded", "fail": "delayed", "snooze": "delayed", "give up": "dead"}


def now():
    return execute("SELECT statement_timestamp()")[0][0]


def test_it_is_ready_again_and_its_worker_hears_of_it_with_the_next_beat():
    (id,) = put()
    delivery = claim_one()
    assert lifecycle.hand_back_running([id]) == [id]
    message = Message.objects.get(id=id)
    assert (message.leased_until, message.delivery, message.attempts, message.suspect) == (None, 2, 0, False)
    assert heartbeat.renew(holding(delivery), LEASE).superseded == [delivery]
    assert succeed(delivery) == set()
    assert [(d.id, d.delivery) for d in claim()] == [(id, 3)]


def test_only_what_runs_is_taken():
    running, ready = put(2)
    assert [d.id for d in claim(limit=1)] == [running]
    assert lifecycle.hand_back_running([running, ready, 10**9]) == [running]


@pytest.mark.proves("hand-back-fences-the-run-out")
def test_what_was_claimed_since_the_person_looked_is_left_alone():
    (id,) = put()
    seen = now()
    delivery = claim_one()
    assert lifecycle.hand_back_running([id], seen) == []
    assert lifecycle.hand_back_running([id], now()) == [id]
    assert succeed(delivery) == set()


def test_what_is_being_discarded_is_left_alone():
    (id,) = put()
    claim()
    lifecycle.discard([id])
    assert lifecycle.hand_back_running([id]) == []
    assert state(id) == "running"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_that_ends_first_has_ended(ending):
    (id,) = put()
    delivery = claim_one()
    with sessions(2) as (worker, person):
        worker.open()
        worker.do(ENDINGS[ending], delivery)
        taken = person.begin(lifecycle.hand_back_running, [id])
        person.wait_until_blocked()
        worker.commit()
        assert taken.result(PATIENCE) == []
    assert state(id) == ENDED[ending]


@pytest.mark.proves("hand-back-fences-the-run-out")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_that_ends_later_changes_nothing(ending):
    (id,) = put()
    delivery = claim_one()
    with sessions(2) as (person, worker):
        person.open()
        assert person.do(lifecycle.hand_back_running, [id]) == [id]
        late = worker.begin(ENDINGS[ending], delivery)
        worker.wait_until_blocked()
        person.commit()
        assert not late.result(PATIENCE)
    assert state(id) == "ready"


def test_of_two_people_one_takes_it():
    (id,) = put()
    claim()
    with sessions(2) as (one_person, other):
        one_person.open()
        assert one_person.do(lifecycle.hand_back_running, [id]) == [id]
        taken = other.begin(lifecycle.hand_back_running, [id])
        other.wait_until_blocked()
        one_person.commit()
        assert taken.result(PATIENCE) == []
    assert Message.objects.get(id=id).delivery == 2


def test_one_that_was_claimed_anew_between_look_and_lock_is_left_alone(monkeypatch):
    (id,) = put()
    claim()
    hand_back = lifecycle.hand_back

    def meanwhile(pairs, **more):
        hand_back(pairs)
        claim_one()
        return hand_back(pairs, **more)

    monkeypatch.setattr(lifecycle, "hand_back", meanwhile)
    assert lifecycle.hand_back_running([id]) == []
    assert (state(id), Message.objects.get(id=id).delivery) == ("running", 3)


def test_it_keeps_its_slot_and_nobody_is_let_in_beside_it():
    id, other = enqueue(one, "a"), enqueue(one, "a")
    lifecycle.pick_up(claim())
    assert lifecycle.hand_back_running([id]) == [id]
    assert (state(other), Slot.objects.get().message_id, Slot.objects.get().leased_until) == ("parked", id, None)
    assert [d.id for d in lifecycle.pick_up(claim()).taken] == [id]


def test_one_that_rolls_back_leaves_the_run_alone():
    (id,) = put()
    delivery = claim_one()
    with sessions() as person:
        person.open()
        person.do(lifecycle.hand_back_running, [id])
        person.roll_back()
    assert succeed(delivery) == {id}


def test_an_async_run_that_is_handed_back_is_cancelled_and_runs_again():
    jobs.reached["awaits"].clear()
    id = int(jobs.awaits.enqueue(60).id)
    with a_worker(beat=0.1, lease=2.0):
        assert jobs.reached["awaits"].wait(PATIENCE)
        jobs.reached["awaits"].clear()
        assert lifecycle.hand_back_running([id]) == [id]
        assert jobs.reached["awaits"].wait(PATIENCE), "it begins once more"
        assert Message.objects.get(id=id).delivery == 3
        lifecycle.discard([id])
        until(lambda: state(id) == "discarded")
