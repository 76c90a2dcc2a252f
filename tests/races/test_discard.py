"""A discard settles what waits and marks what runs; a marked one never returns to the line, however its run ends."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgbus.models import Archived, Message
from django_pgbus.queues import heartbeat, sql
from django_pgbus.queues.line import Line
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.executor import Executor, HandBack
from django_pgbus.tasks.watch import Watch
from tests import jobs
from tests.line import (
    COMMITTED,
    DEFAULT,
    LEASE,
    changed,
    claim,
    claim_one,
    fail,
    give_up,
    hand_back,
    holding,
    lapse,
    make_due,
    put,
    release,
    snooze,
    state,
    succeed,
)
from tests.running import a_worker
from tests.sessions import PATIENCE, sessions, until

pytestmark = [COMMITTED, pytest.mark.races]


def reap(delivery):
    lifecycle.reap([lifecycle.HeldMessage(id=delivery.id, delivery=delivery.delivery, started=True)])


def let_lapse(delivery):
    lapse(delivery.id)
    release(delivery.id)


def time_out(delivery):
    lifecycle.fail_timed_out(delivery.id, delivery.delivery, max_attempts=5, ran_for=1, worker="w")


ENDINGS = {
    "fail": fail,
    "snooze": snooze,
    "give up": give_up,
    "hand back": hand_back,
    "reap": reap,
    "lapse": let_lapse,
    "time out": time_out,
}


@pytest.mark.proves("a-discard-settles-or-marks")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_marked_run_is_discarded_however_it_ends(ending):
    (id,) = put()
    delivery = claim_one()
    assert lifecycle.discard([id]).marked == {id}
    ENDINGS[ending](delivery)
    assert state(id) == "discarded"
    assert Archived.objects.get().note == ""
    assert not Message.objects.exists()


@pytest.mark.proves("a-discard-settles-or-marks")
def test_a_marked_run_that_succeeds_all_the_same_has_succeeded():
    (id,) = put()
    delivery = claim_one()
    lifecycle.discard([id])
    assert succeed(delivery) == {id}
    assert (state(id), Archived.objects.get().note) == ("succeeded", "The discard came too late.")


@pytest.mark.parametrize("ending", ["hand back", "reap", "lapse"])
def test_an_ending_that_waited_for_the_mark_sees_it(ending, monkeypatch):
    """The person's transaction is still open when the run ends."""
    (id,) = put()
    delivery = claim_one()
    if ending == "lapse":  # A look waits for nobody: it comes again, and then it sees the mark.
        lapse(id)
        with sessions() as person:
            person.open()
            assert person.do(lifecycle.discard, [id]).marked == {id}
            assert release(id) == []
            person.commit()
        assert release(id) == []
    else:
        with sessions(2) as (person, worker):
            person.open()
            assert person.do(lifecycle.discard, [id]).marked == {id}
            late = worker.begin(ENDINGS[ending], delivery)
            worker.wait_until_blocked()
            person.commit()
            late.result(PATIENCE)
    assert state(id) == "discarded"


def test_what_is_claimed_while_the_discard_waits_is_marked(monkeypatch):
    (id,) = put()
    with sessions(2) as (worker, person):
        worker.open()
        worker.do(claim)
        discard = person.begin(lifecycle.discard, [id])
        person.wait_until_blocked()
        worker.commit()
        assert discard.result(PATIENCE).marked == {id}
    assert state(id) == "running"


def test_what_moves_while_the_discard_waits_is_found_where_it_went():
    (id,) = put()
    fail(claim_one())
    make_due(id)
    with sessions(2) as (mover, person):
        mover.open()
        assert len(mover.do(lifecycle.move_due, ["default"])) == 1
        discard = person.begin(lifecycle.discard, [id])
        person.wait_until_blocked()
        mover.commit()
        assert discard.result(PATIENCE).settled == {id}
    assert state(id) == "discarded"


def test_a_claim_passes_over_what_is_being_discarded():
    doomed, other = put(2)
    with sessions() as person:
        person.open()
        assert person.do(lifecycle.discard, [doomed]).settled == {doomed}
        assert [d.id for d in claim()] == [other]
        person.commit()
    assert state(doomed) == "discarded"


def test_a_discard_that_rolls_back_leaves_everything_as_it_was():
    ready, later = put(2)
    line = Line()
    snooze(claim_one(line=line, limit=1))
    with sessions() as person:
        person.open()
        assert person.do(lifecycle.discard, [ready, later]).settled == {ready, later}
        person.roll_back()
    assert {state(ready), state(later)} == {"ready", "delayed"}
    assert len(claim(line)) == 1


def test_each_is_told_apart():
    ids = put(3)
    running, later, ready = claim()
    snooze(later)
    hand_back(ready)
    found = lifecycle.discard([*ids, 10**9])
    assert found.settled == {later.id, ready.id}
    assert found.marked == {running.id}
    assert found.gone == {10**9}


def test_a_discard_takes_its_locks_in_order():
    """Inside a caller's transaction all of them are held at the same time: the line first, then the delayed."""
    order = ["DISCARD_READY", "MARK_DISCARD", "DISCARD_DELAYED"]
    ids = put(2)
    _running, later = claim()
    snooze(later)
    seen = []

    def note(run, text, *args):
        seen.extend(name for name in order if getattr(sql, name).sql == text)
        return run(text, *args)

    with connection.execute_wrapper(note):
        lifecycle.discard(ids)
    assert seen == order


def test_the_beat_tells_its_worker_once():
    (id,) = put()
    delivery = claim_one()
    lifecycle.discard([id])
    held = holding(delivery)
    assert heartbeat.renew(held, LEASE).discarded == [delivery]
    assert heartbeat.renew(held, LEASE).discarded == []
    assert delivery.discard
    assert not delivery.superseded


def test_a_look_never_shows_a_marked_one_as_free():
    (id,) = put()
    claim()
    lifecycle.discard([id])
    lapse(id)
    line = Line()
    assert line.poll([DEFAULT], ["default"], LEASE).free == set()


def test_an_async_run_that_is_discarded_is_cancelled_and_settled():
    result = jobs.awaits.enqueue(60)
    with a_worker(beat=0.1, lease=2.0):
        assert jobs.reached["awaits"].wait(PATIENCE)
        lifecycle.discard([int(result.id)])
        until(lambda: state(int(result.id)) == "discarded")


def test_a_discarded_job_that_had_not_started_does_not_start():
    """It waited in the buffer when its worker learned of the discard."""
    jobs.calls.clear()
    result = jobs.note.enqueue("never")
    delivery = claim_one()
    lifecycle.discard([delivery.id])
    heartbeat.renew(holding(delivery), LEASE)
    outcome = Executor(worker="w", watch=Watch()).prepare(delivery).sync()
    assert type(outcome) is HandBack
    hand_back(outcome.delivery)
    assert state(int(result.id)) == "discarded"
    assert jobs.calls == []


def test_a_claim_that_ignored_leases_would_run_a_marked_one_again(monkeypatch):
    """What keeps a marked message out of the line is that it stays leased, lapsed or not."""
    (id,) = put()
    claim()
    lifecycle.discard([id])
    lapse(id)
    assert claim() == []
    monkeypatch.setattr(sql, "CLAIM", changed("CLAIM", "AND candidate.leased_until IS NULL"))
    assert [d.id for d in claim()] == [id]
