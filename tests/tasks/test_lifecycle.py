"""Every transition of a task, by what it leaves in the tables."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest
from django.db import transaction

from django_pgbus import signals
from django_pgbus.models import Archived, DeadLetter, Delayed, Message, QueueState
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.lifecycle import GaveUp, HeldMessage, PutOff, Success
from tests.line import (
    COMMITTED,
    claim,
    claim_one,
    fail,
    give_up,
    hand_back,
    lapse,
    long_up,  # noqa: F401
    make_due,
    put,
    release,
    snooze,
    state,
    succeed,
    work,
)
from tests.sessions import execute

pytestmark = COMMITTED

CARRIED = ("queue", "priority", "task", "backend", "payload", "enqueued_at")


def carried(model, id):
    return model.objects.values(*CARRIED).get(id=id)


def seconds_ago(moment):
    return float(execute("SELECT extract(epoch FROM statement_timestamp() - %s::timestamptz)", [moment])[0][0])


# --- enter ----------------------------------------------------------------------------------------------


def test_enqueued_it_is_ready():
    one = lifecycle.enqueue(work(queue="mail", priority=-7, backend="other"))
    message = Message.objects.get(id=one.id)
    assert (message.queue, message.priority, message.backend) == ("mail", -7, "other")
    assert (message.delivery, message.attempts, message.errors, message.leased_until) == (0, 0, None, None)
    assert message.enqueued_at == one.enqueued_at
    assert state(one.id) == "ready"


def test_enqueued_for_later_it_is_delayed():
    one = lifecycle.enqueue(work(due=timedelta(minutes=1)))
    assert state(one.id) == "delayed"
    assert Delayed.objects.get(id=one.id).reason == "scheduled"


def test_many_get_their_ids_in_the_order_of_their_payloads():
    payloads = [f'{{"args": [{n}], "kwargs": {{}}}}' for n in range(2001)]
    sent = lifecycle.enqueue_many(work(), payloads)
    stored = dict(execute("SELECT id, payload::text FROM pgbus_messages"))
    assert [stored[one.id] for one in sent] == payloads
    places = dict(execute("SELECT id, position FROM pgbus_messages"))
    assert [places[one.id] for one in sent] == sorted(places.values())


def test_many_are_all_or_nothing():
    """Also where they are more than one statement takes."""
    with pytest.raises(Exception, match="json"):
        lifecycle.enqueue_many(work(), ["{}"] * 1500 + ["broken"])
    assert not Message.objects.exists()


def test_none_are_none(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert lifecycle.enqueue_many(work(), []) == []


def test_a_payload_is_kept_as_it_was_written():
    text = '{"args": [1e22, -0.0, "\\u00e4"], "kwargs": {"b": 1, "a": 2}}'
    lifecycle.enqueue(lifecycle.NewWork(task="t", payload=text, queue="default"))
    assert claim_one().payload == text


# --- move -----------------------------------------------------------------------------------------------


def test_claimed_it_runs():
    (id,) = put()
    worker = uuid.uuid4()
    delivery = claim_one(worker=worker)
    message = Message.objects.get(id=id)
    assert (delivery.delivery, delivery.attempts, delivery.started) == (1, 1, False)
    assert (message.worker, message.delivery, message.attempts, message.suspect) == (worker, 1, 1, False)
    found = lifecycle.find(id)
    assert (found.state, found.worker, found.started_at) == ("running", worker, message.claimed_at)


def test_due_it_is_ready_again_with_all_it_carries():
    (id,) = put(queue="mail", priority=4)
    delivery = claim_one(levels=[lifecycle.Level("mail", 4)])
    before = carried(Message, id)
    fail(delivery)
    assert carried(Delayed, id) == before
    make_due(id)
    lifecycle.move_due(["mail"])
    assert carried(Message, id) == before
    message = Message.objects.get(id=id)
    assert (message.delivery, message.attempts, len(message.errors), message.suspect) == (1, 1, 1, False)


def test_handed_back_it_is_ready_and_no_attempt_is_counted():
    (id,) = put()
    delivery = claim_one()
    before = Message.objects.get(id=id)
    assert hand_back(delivery) == [id]
    message = Message.objects.get(id=id)
    assert (message.attempts, message.delivery, message.leased_until, message.errors) == (0, 2, None, None)
    assert (message.suspect, message.started) == (False, False)
    assert message.position > before.position


@pytest.mark.parametrize(("started", "attempts"), [(True, 1), (False, 0)])
def test_reaped_it_is_a_suspect(started, attempts):
    (id,) = put()
    delivery = claim_one()
    assert lifecycle.reap([HeldMessage(id=id, delivery=delivery.delivery, started=started)]) == [id]
    message = Message.objects.get(id=id)
    assert (message.suspect, message.attempts, message.delivery) == (True, attempts, 2)
    assert len(message.errors or []) == attempts


def test_released_after_its_lease_it_is_a_suspect_and_keeps_its_number():
    (id,) = put()
    claim()
    lapse(id)
    assert release(id) == [id]
    message = Message.objects.get(id=id)
    assert (message.suspect, message.delivery, message.leased_until) == (True, 1, None)


def test_nothing_is_returned_for_nothing(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert lifecycle.hand_back([]) == []
        assert lifecycle.reap([]) == []
        assert lifecycle.release_lapsed([], 30.0) == []


# --- leave ----------------------------------------------------------------------------------------------


def test_succeeded_it_is_archived_with_its_result_and_its_times():
    (id,) = put()
    worker = uuid.uuid4()
    delivery = claim_one(worker=worker)
    before, now = carried(Message, id), time.monotonic()
    done = Success(delivery=delivery, result='{"a": 1}', ran_for=2.0, ended=now - 5.0)
    assert lifecycle.succeed([done], now) == {id}
    archived = Archived.objects.get(id=id)
    assert carried(Archived, id) == before
    assert (archived.outcome, archived.result, archived.note) == ("succeeded", '{"a": 1}', "")
    assert (archived.worker, archived.delivery, archived.attempts) == (worker, 1, 1)
    assert archived.finished_at - archived.started_at == timedelta(seconds=2)
    assert seconds_ago(archived.finished_at) == pytest.approx(5, abs=1)
    assert not Message.objects.exists()


def test_failed_it_waits_for_its_next_attempt_with_the_error():
    (id,) = put()
    delivery = claim_one()
    assert fail(delivery, delay=50) == {id: False}
    delayed = Delayed.objects.get(id=id)
    assert (delayed.reason, delayed.attempts, delayed.delivery) == ("retry", 1, 1)
    assert -seconds_ago(delayed.due_at) == pytest.approx(50, abs=1)
    (entry,) = delayed.errors
    assert entry["exception"] == "builtins.ValueError"
    assert {"traceback", "worker", "attempt", "started_at", "failed_at"} <= set(entry)


def test_snoozed_it_waits_and_no_attempt_is_counted():
    (id,) = put()
    assert snooze(claim_one(), delay=50) == {id: False}
    delayed = Delayed.objects.get(id=id)
    assert (delayed.reason, delayed.attempts, delayed.delivery, delayed.errors) == ("snoozed", 0, 1, None)


@pytest.mark.parametrize("reason", ["exhausted", "gave_up"])
def test_given_up_it_is_a_dead_letter(reason):
    (id,) = put()
    delivery = claim_one()
    before = carried(Message, id)
    assert give_up(delivery, reason=reason) == {id: False}
    letter = DeadLetter.objects.get(id=id)
    assert carried(DeadLetter, id) == before
    assert (letter.reason, letter.attempts, letter.delivery, len(letter.errors)) == (reason, 1, 1, 1)
    assert seconds_ago(letter.died_at) < 5
    assert letter.started_at <= letter.died_at


def test_given_up_without_a_run_counts_none():
    put()
    delivery = claim_one()
    lifecycle.give_up([GaveUp(delivery=delivery, reason="exhausted", error=None, ran_for=0, ended=0, not_run=True)], 0)
    assert (DeadLetter.objects.get().attempts, DeadLetter.objects.get().errors) == (0, None)


def test_the_last_ten_errors_are_kept():
    (id,) = put()
    for number in range(13):
        delivery = claim_one()
        error = f'{{"exception": "E{number}", "traceback": ""}}'
        lifecycle.put_off([PutOff(delivery=delivery, delay=0, reason="retry", error=error, ran_for=0, ended=0)], 0)
        make_due(id)
        lifecycle.move_due(["default"])
    assert [entry["exception"] for entry in Message.objects.get().errors] == [f"E{n}" for n in range(3, 13)]


def test_outcomes_of_many_are_written_together_and_each_by_itself():
    ids = put(6)
    deliveries = claim()
    assert succeed(*reversed(deliveries[:4])) == set(ids[:4])
    assert set(fail(*deliveries[4:], delay=9)) == set(ids[4:])
    assert succeed(*deliveries) == set()


@pytest.mark.parametrize(("attempts", "place"), [(2, "delayed"), (1, "dead")])
def test_timed_out_beyond_its_hard_limit_it_failed(attempts, place):
    (id,) = put()
    delivery = claim_one()
    told = []

    def note(delivery, hard, **kwargs):
        told.append((delivery.id, hard))

    signals.task_timed_out.connect(note)
    lifecycle.fail_timed_out(id, delivery.delivery, max_attempts=attempts, ran_for=12.5, worker="w")
    signals.task_timed_out.disconnect(note)
    assert state(id) == place
    assert told == [(id, True)]
    entry = lifecycle.find(id).errors
    assert "TaskTimeout" in entry
    assert "12.5 s" in entry


def test_timed_out_under_an_older_delivery_nothing_happens():
    (id,) = put()
    old = claim_one()
    hand_back(old)
    lifecycle.fail_timed_out(id, old.delivery, max_attempts=1, ran_for=1, worker="w")
    lifecycle.fail_timed_out(10**9, 1, max_attempts=1, ran_for=1, worker="w")
    assert state(id) == "ready"


# --- a person's decisions ---------------------------------------------------------------------------------


def test_redriven_it_is_ready_with_fresh_attempts():
    (id,) = put()
    give_up(claim_one())
    assert lifecycle.redrive([id, 10**9]).ids == [id]
    message = Message.objects.get(id=id)
    assert (message.attempts, message.delivery, len(message.errors)) == (0, 2, 1)


@pytest.mark.parametrize("where", ["ready", "delayed"])
def test_discarded_while_it_waits_it_is_archived_at_once(where):
    (id,) = put()
    if where == "delayed":
        fail(claim_one(), delay=60)
    assert lifecycle.discard([id]).settled == {id}
    archived = Archived.objects.get(id=id)
    assert (archived.outcome, archived.result) == ("discarded", None)
    assert len(archived.errors or []) == (where == "delayed")


def test_discarded_as_a_dead_letter_it_is_archived_with_a_note():
    (id,) = put()
    give_up(claim_one())
    assert lifecycle.discard_dead([id, 10**9]) == [id]
    assert (state(id), Archived.objects.get().note) == ("discarded", "It was a dead letter.")


def test_paused_and_resumed_a_queue_says_by_whom():
    lifecycle.pause_queue("mail", by="ann")
    assert QueueState.objects.get().paused_by == "ann"
    assert lifecycle.resume_queue("mail") is True
    assert QueueState.objects.get().paused_at is None
    assert lifecycle.resume_queue("mail") is False
    assert lifecycle.resume_queue("never") is False


# --- look ---------------------------------------------------------------------------------------------------


def test_it_is_found_wherever_it_is():
    ready, running, delayed, done, dead, gone = put(6)
    deliveries = {d.id: d for d in claim()}
    hand_back(deliveries[ready])
    fail(deliveries[delayed], delay=60)
    succeed(deliveries[done], result='"x"')
    give_up(deliveries[dead])
    hand_back(deliveries[gone])
    lifecycle.discard([gone])
    assert {id: state(id) for id in (ready, running, delayed, done, dead, gone)} == {
        ready: "ready",
        running: "running",
        delayed: "delayed",
        done: "succeeded",
        dead: "dead",
        gone: "discarded",
    }
    assert lifecycle.find(done).result == '"x"'
    assert lifecycle.find(10**9) is None


def test_what_was_settled_under_this_delivery_is_known():
    put(4)
    done, later, dead, running = claim()
    succeed(done)
    fail(later, delay=60)
    give_up(dead)
    assert lifecycle.settled_before([done, later, dead, running]) == {done.id, later.id, dead.id}
    done.delivery += 1
    assert lifecycle.settled_before([done]) == set()


def test_inside_a_callers_transaction_a_transition_is_part_of_it():
    ids = put(2)
    delivery, _ = claim()
    with transaction.atomic():
        succeed(delivery)
        transaction.set_rollback(True)
    assert {state(id) for id in ids} == {"running"}
