"""What another transaction holds keeps no worker from its other work, and decides nothing before it ends."""

from __future__ import annotations

import time

import pytest

from django_pgbus.models import Archived
from django_pgbus.queues import heartbeat
from django_pgbus.queues.heartbeat import Held
from django_pgbus.tasks import lifecycle
from tests.constrained import alone, alone_or_none, enqueue, keys, one, parked, run, slots, unique
from tests.jobs import noop
from tests.line import COMMITTED, LEASE, claim, fail, make_due, state, succeed
from tests.running import a_worker
from tests.sessions import sessions, until

pytestmark = [COMMITTED, pytest.mark.races]


def test_a_job_is_not_dropped_for_a_key_that_nobody_came_to_hold():
    """A caller enqueues with the key and rolls back: whoever drops its duplicates must not drop the only one."""
    id = enqueue(alone_or_none, "k")
    with sessions() as caller:
        caller.open()
        caller.do(enqueue, unique, "k")
        (delivery,) = lifecycle.pick_up(claim()).contested
        caller.roll_back()
    assert lifecycle.pick_up([delivery]).taken == [delivery]
    assert not Archived.objects.exists()
    assert keys() == {"k": id}


def test_a_pick_up_waits_for_no_caller_that_releases_its_slot():
    id = enqueue(one, "a")
    fail(run(), delay=60)
    with sessions() as person:
        person.open()
        assert person.do(lifecycle.release, "a") == 1
        make_due(id)
        lifecycle.move_due(["default"])
        (delivery,) = lifecycle.pick_up(claim()).contested
        person.commit()
    assert lifecycle.pick_up([delivery]).parked == [delivery]
    assert (state(id), list(slots("a"))) == ("ready", [id])


def test_a_pick_up_waits_for_no_caller_that_discards_its_job():
    id = enqueue(one, "a")
    (delivery,) = claim()
    with sessions() as person:
        person.open()
        assert person.do(lifecycle.discard, [id]).marked == {id}
        assert lifecycle.pick_up([delivery]).contested == [delivery]
        person.commit()
    assert lifecycle.pick_up([delivery]).taken == [delivery]


def test_a_worker_works_on_and_takes_what_was_contested_as_soon_as_it_can():
    with sessions() as caller:
        caller.open()
        caller.do(enqueue, unique, "k")
        held, others = enqueue(alone, "k"), [int(noop.enqueue().id) for _ in range(5)]
        with a_worker():
            until(lambda: all(state(id) == "succeeded" for id in others))
            assert state(held) == "running"
            caller.roll_back()
            until(lambda: state(held) == "succeeded")


# --- who waits for a key ------------------------------------------------------------------------------


def test_a_newcomer_does_not_overtake_who_was_parked_for_the_key():
    enqueue(alone, "k")
    holder = run()
    waiter = enqueue(alone, "k")
    assert lifecycle.pick_up(claim()).parked
    newcomer = enqueue(alone, "k")  # it stands in the line before the waiter comes back to it
    succeed(holder)
    picked = lifecycle.pick_up(claim())
    assert [d.id for d in picked.taken] == [waiter]
    assert parked("k") == [newcomer]


def test_a_key_is_kept_for_a_waiter_only_while_it_may_be_claimed():
    enqueue(alone, "k")
    holder = run()
    waiter = int(alone.using(queue_name="slow").enqueue("k").id)
    slow = [lifecycle.Level("slow", 0)]
    assert lifecycle.pick_up(claim(levels=slow)).parked
    succeed(holder)
    assert keys() == {"k": waiter}
    newcomer = enqueue(alone, "k")
    lifecycle.pause_queue("slow")
    assert [d.id for d in lifecycle.pick_up(claim()).taken] == [newcomer]


# --- the look after the commit ------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["settled", "parked"])
def test_a_beat_between_commit_and_look_supersedes_nobody(end, monkeypatch):
    """The message is gone or parked already, and the process has not yet let go of it."""
    enqueue(one, "a")
    delivery = run() if end == "settled" else None
    if delivery is None:
        slots_gone()
        (delivery,) = claim()
    held = Held()
    held.add([delivery])
    found = []
    monkeypatch.setattr(lifecycle, "let_in", lambda *args: found.append(heartbeat.renew(held, LEASE)))
    if end == "settled":
        delivery.ended = True  # as the capsule says before the outcome is written
        succeed(delivery)
    else:
        assert lifecycle.pick_up([delivery]).parked == [delivery]
    assert [beat.superseded for beat in found] == [[]]


def slots_gone() -> None:
    from django_pgbus.models import Slot

    Slot.objects.update(message_id=-1)


def test_patience_is_short():
    """A claim of many goes on after a moment, whoever holds what one of them needs."""
    enqueue(alone, "k")
    with sessions() as caller:
        caller.open()
        caller.do(enqueue, unique, "k")
        began = time.monotonic()
        assert lifecycle.pick_up(claim()).contested
        assert time.monotonic() - began < 15
        caller.roll_back()
