"""
A settlement repeated after a lost COMMIT reply is a success, and changes nothing a second time.

The statement took effect, the connection was lost before its reply: the completer settles the same outcomes again.
"""

from __future__ import annotations

import time
import uuid

import pytest
from django.db import OperationalError, connections

from django_pgbus import signals
from django_pgbus.insights.stats import Window, overall
from django_pgbus.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.queues import sql
from django_pgbus.queues.heartbeat import Held
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.executor import HandBack, Superseded
from django_pgbus.tasks.lifecycle import GaveUp, PutOff, Success
from django_pgbus.worker.completer import Completer
from django_pgbus.worker.reporting import Reporter
from tests.insights.rows import NUMBERS
from tests.line import (
    COMMITTED,
    ERROR,
    claim,
    claim_one,
    fail,
    give_up,
    hand_back,
    lapse,
    put,
    release,
    state,
    succeed,
)
from tests.sessions import sessions

pytestmark = [COMMITTED, pytest.mark.races]


def success(delivery, result="null"):
    return Success(delivery=delivery, result=result, ran_for=0.1, ended=time.monotonic())


def retry(delivery, delay=0.0, error=ERROR):
    return PutOff(delivery=delivery, delay=delay, reason="retry", error=error, ran_for=0.1, ended=time.monotonic())


def death(delivery):
    return GaveUp(delivery=delivery, reason="exhausted", error=ERROR, ran_for=0.1, ended=time.monotonic())


def back(delivery):
    return HandBack(delivery=delivery, ran_for=0.1)


@pytest.fixture
def superseded():
    told = []

    def note(delivery, **kwargs):
        told.append(delivery)

    signals.task_superseded.connect(note)
    yield told
    signals.task_superseded.disconnect(note)


@pytest.fixture
def completer():
    """A completer stepped by hand in a session of its own."""
    with sessions() as session:
        session.do(connections.close_all)
        held = Held()
        completer = Completer(held, Reporter(None, held), lambda: None)
        completer.stop()  # It collects nothing any more: each step writes what is there.

        def settle(*outcomes):
            held.add([outcome.delivery for outcome in outcomes])
            for outcome in outcomes:
                completer.put(outcome)
            return session.do(completer.step)

        completer.settle, completer.step_there = settle, lambda: session.do(completer.step)

        def counted():
            completer._counter.hurries = True
            session.do(completer.step)
            runs = overall(Window.HOUR)
            return {name: number for name in NUMBERS if (number := getattr(runs, name))}

        completer.counted = counted
        completer.held = held
        yield completer
        session.do(completer.disconnect)


def losing_its_reply(monkeypatch, name):
    """Let the connection be lost after the next statement of this name took effect."""
    statement = getattr(sql, name)

    class Lost:
        sql, locks = statement.sql, statement.locks

        def tuples(self, **params):
            statement.tuples(**params)
            monkeypatch.setattr(sql, name, statement)
            raise OperationalError("server closed the connection unexpectedly")

        rows = tuples

    monkeypatch.setattr(sql, name, Lost())


@pytest.mark.proves("a-lost-reply-is-looked-up")
@pytest.mark.parametrize(
    ("outcome", "statement", "where"),
    [(success, "SUCCEED", "succeeded"), (retry, "PUT_OFF", "delayed"), (death, "GIVE_UP", "dead")],
    ids=["succeed", "put off", "give up"],
)
def test_it_is_written_once_and_nobody_is_called_superseded(
    outcome, statement, where, completer, superseded, monkeypatch
):
    ids = put(3)
    outcomes = [outcome(delivery) for delivery in claim()]
    losing_its_reply(monkeypatch, statement)
    with pytest.raises(OperationalError):
        completer.settle(*outcomes)
    assert len(completer) == 3, "kept, to be settled again"
    completer.step_there()
    assert {state(id) for id in ids} == {where}
    assert Archived.objects.count() + Delayed.objects.count() + DeadLetter.objects.count() == 3
    assert superseded == []
    assert (completer.done, completer.superseded, len(completer.held)) == (3, 0, 0)
    assert completer.counted() == {{"succeeded": "succeeded", "delayed": "failed", "dead": "dead"}[where]: 3}


@pytest.mark.parametrize("then", ["it is in the line again", "it runs again"])
def test_one_that_was_put_off_may_have_moved_on_before_the_repetition(then, completer, superseded, monkeypatch):
    (id,) = put()
    outcome = retry(claim_one())
    losing_its_reply(monkeypatch, "PUT_OFF")
    with pytest.raises(OperationalError):
        completer.settle(outcome)
    lifecycle.move_due(["default"])
    if then == "it runs again":
        claim_one()
    before = Message.objects.values().get(id=id)
    completer.step_there()
    assert Message.objects.values().get(id=id) == before
    assert superseded == []


@pytest.mark.parametrize("how", ["released", "taken over", "handed back", "dead", "done by its successor"])
@pytest.mark.proves("a-superseded-run-is-named")
def test_one_that_was_superseded_is_told_so(how, completer, superseded):
    (id,) = put()
    old = claim_one()
    if how == "handed back":
        hand_back(old)
    else:
        lapse(id)
        release(id)
    if how == "taken over":
        claim_one()
    elif how == "dead":
        give_up(claim_one())
    elif how == "done by its successor":
        succeed(claim_one())
    completer.settle(success(old))
    assert superseded == [old]
    assert completer.counted() == {"superseded": 1}


def test_a_repeated_hand_back_changes_nothing():
    (id,) = put()
    delivery = claim_one()
    assert hand_back(delivery) == [id]
    row = Message.objects.values().get()
    assert hand_back(delivery) == []
    assert Message.objects.values().get() == row


def test_one_bad_row_never_fails_its_neighbours(completer, superseded):
    """PostgreSQL refuses the batch because of it; the others are written one by one, it is run again later."""
    ids = put(5)
    good, bad, put_off, bad_too, dead = claim()
    completer.settle(
        success(good), success(bad, result="not json"), retry(put_off), retry(bad_too, error="{"), death(dead)
    )
    assert [state(id) for id in ids] == ["succeeded", "running", "delayed", "running", "dead"]
    assert len(completer.held) == 0, "the leases of the bad ones lapse"
    assert superseded == []
    assert completer.counted() == {"succeeded": 1, "failed": 1, "dead": 1}, "what is run again is counted then"
    lapse(bad.id, bad_too.id)
    assert sorted(release(bad.id, bad_too.id)) == sorted([bad.id, bad_too.id])


def test_a_hand_back_that_fails_is_no_reason_to_forget_the_others(completer, monkeypatch):
    ids = put(2)
    done, returned = claim()

    def broken(pairs):
        raise RuntimeError("no")

    monkeypatch.setattr(lifecycle, "hand_back", broken)
    completer.settle(success(done), back(returned))
    assert [state(id) for id in ids] == ["succeeded", "running"]
    assert len(completer.held) == 0, "its lease lapses"
    assert completer.counted() == {"succeeded": 1}


def test_what_cannot_be_settled_at_all_is_not_renewed_for_ever(completer, monkeypatch):
    """Whatever went wrong: it is not held any longer, so its lease lapses."""
    put()
    delivery = claim_one()

    def broken(*args):
        raise RuntimeError("no")

    monkeypatch.setattr(completer, "_write", broken)
    with pytest.raises(RuntimeError):
        completer.settle(success(delivery))
    assert len(completer.held) == 0


def test_a_superseded_outcome_in_a_batch_is_told_and_the_rest_written(completer, superseded):
    ids = put(2)
    good, gone = claim()
    completer.settle(success(good), Superseded(delivery=gone, ran_for=0.1))
    assert state(ids[0]) == "succeeded"
    assert superseded == [gone]
    assert completer.counted() == {"succeeded": 1, "superseded": 1}


def test_what_was_settled_before_the_connection_was_lost_is_counted_once(completer, superseded, monkeypatch):
    """The whole batch is settled again, also what had been before the reply was lost."""
    put(4)
    first, second, third, fourth = claim()
    losing_its_reply(monkeypatch, "PUT_OFF")
    with pytest.raises(OperationalError):
        completer.settle(success(first), retry(second), death(third), back(fourth))
    completer.step_there()
    assert superseded == []
    assert completer.counted() == {"succeeded": 1, "failed": 1, "dead": 1, "handed_back": 1}


def test_what_a_person_discarded_meanwhile_is_no_dead_letter(completer):
    ids = put(3)
    deliveries = claim()
    lifecycle.discard(ids)
    one, two, three = deliveries
    completer.settle(success(one), death(two), back(three))
    assert completer.counted() == {"succeeded": 1, "failed": 1}


def test_flush_sees_a_batch_that_is_being_written(completer):
    """Between taking it out and having written it, it is neither waiting nor done."""
    put()
    delivery = claim_one()
    seen = []

    class Watched(type(completer._outcomes)):
        def popleft(self):
            seen.append(completer._busy)
            return super().popleft()

    completer._outcomes = Watched()
    completer.settle(success(delivery))
    assert seen == [True]
    assert completer.flush(time.monotonic()) is True


def test_a_claim_whose_reply_was_lost_lapses_and_costs_no_attempt():
    """Nobody knows that he holds it: it is released once its lease is over, as one that never started."""
    (id,) = put()
    claim(worker=uuid.uuid4())
    lapse(id)
    release(id)
    delivery = claim_one()
    assert (delivery.delivery, delivery.attempts) == (2, 1)


def test_fail_is_repeated_without_a_second_attempt_or_entry():
    (id,) = put()
    delivery = claim_one()
    assert fail(delivery, delay=60) == {id: False}
    assert fail(delivery, delay=60) == {}
    row = Delayed.objects.get(id=id)
    assert (row.attempts, len(row.errors)) == (1, 1)
