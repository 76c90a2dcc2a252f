"""
Release never takes the slot of a run that is fenced in, unless it is told to, and then fences it out first.

Whichever of release and pick-up comes first, the other sees it: a statement that removes a slot repeats its proof on
the slot's row, and the pick-up is the UPDATE of that row.
"""

from __future__ import annotations

import pytest

from django_pgbus import concurrency
from django_pgbus.concurrency import slots as slots_module
from django_pgbus.models import Delayed, Slot
from django_pgbus.queues import heartbeat
from django_pgbus.tasks import lifecycle
from tests.constrained import claim_and_pick_up, enqueue, one, parked, slots
from tests.line import COMMITTED, LEASE, claim, claim_one, fail, holding, make_due, state, succeed
from tests.races.guards import (
    as_if_it_died_before_it_looked,
    at_once,
    came_to,
    fails_if,
    nobody_looks_again,
    started,
    waits,
    without,
)
from tests.sessions import sessions

pytestmark = [COMMITTED, pytest.mark.races]


def release(key="a"):
    return concurrency.release(key)


def release_all(key="a"):
    return concurrency.release(key, even_running=True)


def every_pick_up_finds_a_slot(monkeypatch):
    """if the limit is not tested again at pick-up"""
    monkeypatch.setattr(slots_module, "start_leases", set)


@fails_if(every_pick_up_finds_a_slot)
def test_a_job_whose_slot_was_released_before_its_pick_up_is_parked():
    first = enqueue(one, "a")
    with as_if_it_died_before_it_looked():
        second = enqueue(one, "a", after=None)
        assert release() == 1
    lifecycle.let_in(["a"])  # the best goes first, and the first stands in the line already
    assert slots("a") == {second: 1}
    picked = claim_and_pick_up()
    assert ([d.id for d in picked.taken], [d.id for d in picked.parked]) == ([second], [first])
    assert slots("a") == {second: 1}


@pytest.mark.proves("release-spares-who-runs")
@fails_if(without("concurrency.FREE_SEEN", ("slot.leased_until IS NOT DISTINCT FROM seen.leased_until", "true")))
def test_a_release_that_waited_for_a_pick_up_leaves_its_slot():
    """What it saw on the slot's row is tested again after the wait: the lease has changed."""
    id = enqueue(one, "a")
    with sessions(2) as (worker, person):
        worker.open()
        worker.do(slots_module.start_leases, [id])
        begun = person.begin(release)
        assert waits(person, begun)
        worker.commit()
        assert came_to(begun) == 0
    assert slots("a") == {id: 1}


@fails_if(without("concurrency.FREE_SEEN", ("message.leased_until IS NOT NULL", "false")))
def test_a_release_that_meets_a_claim_leaves_the_slot():
    """Its job was to be tried again and stood among the delayed; it is claimed while the release is under way."""
    delivery = started(one, "a")
    fail(delivery, delay=60)
    assert Delayed.objects.exists()
    with pytest.MonkeyPatch.context() as patch:
        real = slots_module.free_seen

        def meanwhile(seen):
            with sessions() as worker:
                worker.do(make_due, delivery.id)
                worker.do(lifecycle.move_due, ["default"])
                assert worker.do(claim_one).id == delivery.id
            return real(seen)

        patch.setattr(slots_module, "free_seen", meanwhile)
        assert release() == 0
    assert slots("a") == {delivery.id: 1}


@fails_if(without("LOCK_QUIET", "SKIP LOCKED"))
def test_a_release_passes_over_what_is_being_picked_up():
    id = enqueue(one, "a")
    delivery = claim_one()
    with sessions(2) as (worker, person):
        worker.open()
        assert worker.do(lifecycle.pick_up, [delivery]).taken == [delivery]
        assert at_once(person, release) == 0
        assert at_once(person, release_all) == 0, "locked means live"
        worker.commit()
    assert slots("a") == {id: 1}
    assert succeed(delivery) == {id}


@fails_if(without("LOCK_LEASED", "FOR UPDATE OF message"))
def test_a_pick_up_waits_for_a_release_that_leaves_its_slot():
    id = enqueue(one, "a")
    delivery = claim_one()
    with sessions(2) as (person, worker):
        person.open()
        assert person.do(release) == 0, "it is claimed, and so it is as good as running"
        begun = worker.begin(lifecycle.pick_up, [delivery])
        assert waits(worker, begun)
        person.commit()
        assert begun.result(20).taken == [delivery]
    assert slots("a") == {id: 1}


@fails_if(
    without("LOCK_LEASED", ("message.delivery = held.delivery", "true"), ("message.leased_until IS NOT NULL", "true"))
)
def test_a_pick_up_that_waited_for_its_eviction_finds_itself_lost():
    """The sterner text: the claimed job goes back into the line under a raised number, and its pick-up comes too late."""
    id = enqueue(one, "a")
    delivery = claim_one()
    with sessions(2) as (person, worker):
        person.open()
        assert person.do(release_all) == 1
        begun = worker.begin(lifecycle.pick_up, [delivery])
        assert waits(worker, begun)
        person.commit()
        assert begun.result(20).lost == [delivery]
    assert (state(id), succeed(delivery)) == ("ready", set())


@fails_if(without("CLAIM", "SKIP LOCKED"))
def test_a_claim_passes_over_what_is_being_released():
    enqueue(one, "a")
    other = enqueue(one, "b")
    with sessions(2) as (person, worker):
        person.open()
        assert person.do(release) == 1
        assert [d.id for d in at_once(worker, claim)] == [other]
        person.commit()


@pytest.mark.proves("release-spares-who-runs")
@pytest.mark.parametrize("comes_back_by", ["beat", "completion"])
@fails_if(nobody_looks_again, every_pick_up_finds_a_slot)
def test_release_of_all_never_goes_past_the_limit(comes_back_by):
    """The run that held the slot is fenced out, the next is let in, and the old job has to wait for its turn."""
    old = started(one, "a")
    with as_if_it_died_before_it_looked():
        second = enqueue(one, "a")
    assert release_all() == 1
    assert slots("a") == {second: 1}
    picked = claim_and_pick_up()
    assert [d.id for d in picked.taken] == [second]
    if comes_back_by == "beat":
        assert heartbeat.renew(holding(old), LEASE).superseded == [old]
    else:
        assert succeed(old) == set()
    assert (slots("a"), parked()) == ({second: 1}, [old.id])


@fails_if(without("LOCK_QUIET", "SKIP LOCKED"))
def test_two_who_release_free_a_slot_once():
    id = enqueue(one, "a")
    waiting = enqueue(one, "a")
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(release) == 1
        assert at_once(bob, release) == 0
        ann.commit()
    assert slots("a") == {waiting: 1}
    assert state(id) == "ready"
    assert Slot.objects.count() == 1
