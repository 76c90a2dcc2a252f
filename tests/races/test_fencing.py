"""A superseded delivery changes nothing, whatever it comes to; each also with its guard taken out, to see it fail."""

from __future__ import annotations

import asyncio

import pytest

from django_pgbus.models import Message
from django_pgbus.queues import heartbeat, sql
from django_pgbus.tasks.executor import Executor, Superseded
from django_pgbus.tasks.watch import Watch
from tests import jobs
from tests.line import (
    COMMITTED,
    LEASE,
    changed,
    claim_one,
    fail,
    give_up,
    hand_back,
    holding,
    lapse,
    put,
    release,
    snooze,
    succeed,
)
from tests.sessions import sessions

pytestmark = [COMMITTED, pytest.mark.races]


def renew(delivery):
    return [delivery.id] if not heartbeat.renew(holding(delivery), LEASE).superseded else []


OLDER = "message.delivery = outcome.delivery", "true"
RELEASED = "message.leased_until IS NOT NULL", "true"
OLDER_HELD = "message.delivery = held.delivery", "true"
# What a run may come to, and the guards of its statement: against an older delivery, against a released one.
ENDINGS = {
    "complete": (succeed, "SUCCEED", OLDER, RELEASED),
    "fail": (fail, "PUT_OFF", OLDER, RELEASED),
    "snooze": (snooze, "PUT_OFF", OLDER, RELEASED),
    "give up": (give_up, "GIVE_UP", OLDER, RELEASED),
    "hand back": (hand_back, "RETURN_TO_LINE", OLDER_HELD, RELEASED),
    "renew": (renew, "RENEW", OLDER_HELD, ("message.leased_until > statement_timestamp()", "true")),
}


def released(delivery):
    lapse(delivery.id)
    assert release(delivery.id) == [delivery.id]


def taken_over(delivery):
    released(delivery)
    assert claim_one().delivery > delivery.delivery


def handed_back_by_its_supervisor(delivery):
    assert hand_back(delivery) == [delivery.id]
    assert claim_one().delivery > delivery.delivery


@pytest.mark.proves("the-delivery-number-fences")
@pytest.mark.parametrize("guarded", [True, False], ids=["holds", "fails without its guard"])
@pytest.mark.parametrize("supersede", [released, taken_over, handed_back_by_its_supervisor])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_superseded_delivery_changes_nothing(ending, supersede, guarded, monkeypatch):
    end, statement, older, not_leased = ENDINGS[ending]
    (id,) = put()
    delivery = claim_one()
    supersede(delivery)
    row = Message.objects.values().get(id=id)
    if not guarded:
        monkeypatch.setattr(sql, statement, changed(statement, *(not_leased if supersede is released else older)))
    untouched = not end(delivery) and Message.objects.filter(id=id).values().first() == row
    # A renewal whose guard against older deliveries is missing would lengthen its successor's lease.
    assert untouched is guarded


@pytest.mark.proves("the-delivery-number-fences")
@pytest.mark.parametrize("ending", [name for name in ENDINGS if name != "renew"])
def test_an_ending_that_waited_for_the_release_changes_nothing(ending):
    """Both saw the lapsed lease; the look was first, and the run that comes back waits for it and finds it gone."""
    end = ENDINGS[ending][0]
    (id,) = put()
    delivery = claim_one()
    lapse(id)
    with sessions(2) as (look, run):
        look.open()
        assert look.do(release, id) == [id]
        outcome = run.begin(end, delivery)
        run.wait_until_blocked()
        look.commit()
        assert not outcome.result(20)
    assert (claim_one().delivery, Message.objects.get().attempts) == (delivery.delivery + 1, 1)


def test_a_run_that_comes_back_before_anybody_looked_is_settled():
    """The lease lapsed, but nobody released it or took over: it may still complete."""
    (id,) = put()
    delivery = claim_one()
    lapse(id)
    assert succeed(delivery) == {id}


def test_an_older_renewal_cannot_shorten_its_successors_lease():
    (id,) = put()
    old = claim_one()
    taken_over(old)
    before = Message.objects.get(id=id).leased_until
    beat = heartbeat.renew(holding(old), 1.0)
    assert [d.id for d in beat.superseded] == [id]
    assert old.superseded
    assert Message.objects.get(id=id).leased_until == before


@pytest.mark.parametrize("job", [jobs.note, jobs.anote], ids=["sync", "async"])
@pytest.mark.parametrize("why", ["superseded", "not confirmed for a lease"])
def test_what_may_have_been_taken_over_does_not_start(why, job):
    """Buffered in a process that stood still: its threads wake up before its heart finds out."""
    jobs.calls.clear()
    job.enqueue("never")
    delivery = claim_one()
    if why == "superseded":
        delivery.superseded = True
    else:
        delivery.confirmed_at -= LEASE + 0.1
    executor = Executor(worker="w", watch=Watch())
    run = executor.prepare(delivery)
    outcome = asyncio.run(executor.arun(run)) if job is jobs.anote else run.sync()
    assert type(outcome) is Superseded
    assert jobs.calls == []
