"""
What becomes of a delivery that has to claim its event, whoever else is at it.

In none of this is an event lost, or a handler that is alive run beside itself.
"""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager

import pytest
import time_machine
from django.db import OperationalError, transaction

from django_pgbus import publish, signals
from django_pgbus.idempotency import claims as verbs
from django_pgbus.idempotency import sweeps as claim_sweeps
from django_pgbus.idempotency.claims import completed
from django_pgbus.models import Archived, DeadLetter, Delayed, EventCount, Message, ProcessedEvent
from django_pgbus.queues import heartbeat
from django_pgbus.tasks import event_claims, lifecycle
from django_pgbus.tasks.outcomes import HeldMessage
from tests import eventful
from tests.eventful import (
    ONCE,
    claim_event,
    claim_events,
    claim_of,
    declare,
    pick_up,
    picked_up,
    publish_once,
    silence_claim,
)
from tests.line import (
    COMMITTED,
    LEASE,
    fail,
    give_up,
    hand_back,
    holding,
    lapse,
    make_due,
    release,
    server_started,
    snooze,
    state,
    succeed,
)
from tests.races.guards import (
    at_once,
    at_the_same_time,
    fails_if,
    patient,  # noqa: F401  (a fixture for all tests here)
    waits,
    without,
)
from tests.races.test_lost_replies import completer, success, superseded  # noqa: F401  (fixtures)
from tests.running import a_worker
from tests.sessions import execute, sessions, until

pytestmark = [COMMITTED, pytest.mark.races]


@pytest.fixture(autouse=True)
def nothing_is_remembered():
    completed.clear()
    eventful.ran.clear()
    yield
    completed.clear()


# --- what the tests do --------------------------------------------------------------------------------


def holder_and_duplicate(number=1):
    """Return the event, the delivery that runs, and another message of the same event that was claimed."""
    event = uuid.uuid4()
    holder = picked_up(event)
    for _ in range(number):
        publish_once(event)
    duplicates = sorted(claim_events(), key=lambda delivery: delivery.id)
    assert len(duplicates) == number
    return event, holder, *duplicates


def fall_silent(delivery):
    """Let its process have been silent for longer than a lease."""
    lapse(delivery.id)
    silence_claim(delivery.event)


def silent_holder_and_duplicate(number=1):
    event, holder, *duplicates = holder_and_duplicate(number)
    fall_silent(holder)
    return event, holder, *duplicates


def pass_by(seconds):
    """Let so much time have passed for all leases."""
    for table in ("pgbus_messages", "pgbus_processed_events"):
        execute(f"UPDATE {table} SET leased_until = leased_until - make_interval(secs => %s)", [seconds])


def held_by(event, handler=ONCE):
    """Return (message, delivery, completed) of a claim, or None."""
    claim = claim_of(event, handler)
    return claim and (claim.message_id, claim.delivery, claim.completed_at is not None)


def is_held(event, delivery):
    return held_by(event) == (delivery.id, delivery.delivery, False)


def copies(event):
    """Return where the copies of an event are that may still run."""
    found = []
    for model in (Message, Delayed, DeadLetter):
        found += list(model.objects.filter(event_id=event).values_list("id", flat=True))
    return sorted(found)


def beat(delivery):
    return heartbeat.renew(holding(delivery), LEASE)


def age(seconds, event):
    """Let a claim have been completed so long ago."""
    execute(
        "UPDATE pgbus_processed_events SET completed_at = completed_at - make_interval(secs => %s) WHERE event_id = %s",
        [seconds, event],
    )


def redelivered(delivery):
    """Claim its message again."""
    (again,) = [one for one in claim_events() if one.id == delivery.id]
    assert again.delivery > delivery.delivery
    return again


def comes_to_one_run(event, running=()):
    """Let everything come to its end that is there, and see that it was done once, and nothing of it is left."""
    for run in running:
        succeed(run)
    for _ in range(10):
        pass_by(LEASE + 1)
        release(*Message.objects.filter(leased_until__isnull=False).values_list("id", flat=True))
        make_due(*Delayed.objects.values_list("id", flat=True))
        lifecycle.move_due(["@events"])
        if found := claim_events():
            succeed(*pick_up(*found).taken)
        if not copies(event):
            break
    assert copies(event) == [], "it is somewhere for ever"
    assert held_by(event)[2], "nobody has done it"
    done = Archived.objects.filter(event_id=event, outcome="succeeded").count()
    assert done == 1, f"it counts as done {done} times"


@contextmanager
def told(signal):
    """Collect what a signal says."""
    said = []

    def note(**kwargs):
        said.append(kwargs)

    signal.connect(note)
    try:
        yield said
    finally:
        signal.disconnect(note)


# --- what is broken on purpose ------------------------------------------------------------------------


ANYBODYS = without("idempotency.TAKE", ("coalesce(claim.leased_until, '-infinity') < statement_timestamp()", "true"))
ITS_MESSAGE_MAY_BE_LEASED = without("idempotency.TAKE", ("AND message.leased_until IS NOT NULL", "AND false"))
WITHOUT_ITS_MESSAGE = without(
    "idempotency.LOOK",
    (
        "EXISTS (\n               SELECT 1",
        "true OR EXISTS (\n               SELECT 1",
    ),
)
STAMPS_COMPLETED = without("idempotency.STAMP", "WHERE claim.completed_at IS NULL")
STAMPS_OTHERS = without("idempotency.STAMP", "AND claim.delivery = held.delivery")
COMPLETES_OTHERS = without(
    "idempotency.COMPLETE",
    "WHERE claim.message_id = excluded.message_id\n      AND claim.delivery = excluded.delivery\n"
    "      AND claim.completed_at IS NULL",
    ("DO UPDATE\n    SET", "DO UPDATE\n    SET message_id = excluded.message_id,"),
)


def its_only_copy_is_a_duplicate(monkeypatch):
    """if a message that meets its own claim is a duplicate"""

    def judge(decided, delivery, claim):
        if claim is None or claim.silent:
            decided.picked.contested.append(delivery)
        else:
            decided.skipped.append((delivery, "completed" if claim.completed else "owned", claim.age))

    monkeypatch.setattr(event_claims, "_judge", judge)


def nobody_is_fenced_out(monkeypatch):
    """if the old holder is not fenced out"""
    monkeypatch.setattr(lifecycle, "_fenced_out", lambda holders: set())


def a_claim_goes_back_with_its_message(monkeypatch):
    """if a hand back of a running one releases its claim"""
    real = lifecycle._return

    def returned(rows, *args, keeps_claims=False, **kwargs):
        return real(rows, *args, **kwargs)

    monkeypatch.setattr(lifecycle, "_return", returned)


def what_has_ended_is_stamped(monkeypatch):
    """if what has ended is renewed"""

    def stamp(deliveries):
        verbs.sql.STAMP.count(
            ids=[d.id for d in deliveries], deliveries=[d.delivery for d in deliveries], lease=f"{LEASE} seconds"
        )

    monkeypatch.setattr(heartbeat, "on_renewed", [stamp])


def pending_ones_are_remembered(monkeypatch):
    """if what is owned is remembered as done"""
    real = event_claims.Decided.announced

    def announced(self):
        completed.add(event_claims.key_of(delivery) for delivery, *_ in self.skipped)
        return real(self)

    monkeypatch.setattr(event_claims.Decided, "announced", announced)


# --- the table of outcomes ----------------------------------------------------------------------------


def test_the_first_delivery_claims_its_event_and_runs():
    event = publish_once()
    delivery = claim_event()
    assert pick_up(delivery).taken == [delivery]
    assert is_held(event, delivery)
    comes_to_one_run(event, [delivery])


def test_a_handler_that_may_run_twice_claims_nothing():
    event = uuid.uuid4()
    declare()
    for _ in range(2):
        publish("eventful.plain", event_id=event)
    assert len(pick_up(*claim_events()).taken) == 2
    assert not ProcessedEvent.objects.exists()


def test_each_handler_has_its_own_claim():
    event = uuid.uuid4()
    declare()
    publish("eventful.once", event_id=event)
    execute("UPDATE pgbus_messages SET task = 'tests.eventful.another'")
    publish("eventful.once", event_id=event)
    picked = pick_up(*claim_events())
    assert len(picked.taken) == 2
    assert ProcessedEvent.objects.count() == 2


def test_of_two_messages_in_one_claim_the_first_runs_and_the_other_is_skipped():
    event = uuid.uuid4()
    publish_once(event)
    publish_once(event)
    first, second = claim_events()
    picked = pick_up(first, second)
    assert (picked.taken, picked.skipped) == ([first], [second])
    comes_to_one_run(event, [first])


@pytest.mark.parametrize("when", ["before it is decided", "while it is decided"])
def test_a_claim_that_is_purged_between_insert_and_read_is_claimed(when, monkeypatch):
    event, holder, duplicate = holder_and_duplicate()
    succeed(holder)
    with sessions() as sweeper:

        def purged(real):
            def call(*args):
                monkeypatch.undo()
                sweeper.sql("DELETE FROM pgbus_processed_events")
                return real(*args)

            return call

        completed.clear()
        if when == "before it is decided":
            monkeypatch.setattr(event_claims, "decide", purged(event_claims.decide))
        else:
            real = event_claims.decide

            def decide(*args):
                monkeypatch.setattr(verbs, "look", purged(verbs.look))
                return real(*args)

            monkeypatch.setattr(event_claims, "decide", decide)
        server_started(monkeypatch, "1 day")
        picked = pick_up(duplicate)
    assert picked.taken == [duplicate]
    assert is_held(event, duplicate)


def test_what_vanishes_each_time_it_is_looked_at_is_asked_for_again(monkeypatch):
    """Not skipped, not lost, not run without a claim."""
    _, _, duplicate = holder_and_duplicate()
    monkeypatch.setattr(verbs, "take", lambda deliveries: set())
    monkeypatch.setattr(verbs, "look", lambda keys: {})
    assert pick_up(duplicate).contested == [duplicate]
    monkeypatch.undo()
    assert state(duplicate.id) == "running"


@pytest.mark.proves("a-silent-claim-is-taken-over-after-its-holder")
@fails_if(nobody_is_fenced_out)
def test_a_silent_claim_is_taken_over_once_its_holder_is_fenced_out():
    event, holder, duplicate = silent_holder_and_duplicate()
    with told(signals.claim_taken_over) as said:
        assert pick_up(duplicate).taken == [duplicate]
    assert is_held(event, duplicate)
    assert (state(holder.id), lifecycle.find(holder.id).delivery) == ("ready", holder.delivery + 1)
    assert succeed(holder) == set()
    assert [one["delivery"] for one in said] == [duplicate]
    assert said[0]["age"] >= 0
    comes_to_one_run(event, [duplicate])


def test_a_live_claim_of_another_message_lets_the_duplicate_be_skipped():
    event, holder, duplicate = holder_and_duplicate()
    before = claim_of(event)
    with told(signals.event_skipped) as said:
        picked = pick_up(duplicate)
    assert picked.skipped == picked.gone == [duplicate]
    assert state(duplicate.id) == "skipped"
    archived = Archived.objects.get(id=duplicate.id)
    assert (archived.note, archived.attempts, archived.event_id) == ("owned", 0, event)
    after = claim_of(event)
    assert (after.processed_at, after.leased_until) == (before.processed_at, before.leased_until)
    assert len(completed) == 0
    (skipped,) = said
    assert (skipped["delivery"], skipped["reason"]) == (duplicate, "owned")
    assert skipped["age"] >= 0
    comes_to_one_run(event, [holder])


@pytest.mark.proves("the-only-copy-is-never-skipped")
@fails_if(its_only_copy_is_a_duplicate)
def test_the_only_copy_of_an_event_is_never_skipped_for_its_own_claim():
    """Redelivered while its claim is live, it waits for the end of that lease, and no attempt counts."""
    event = uuid.uuid4()
    holder = picked_up(event)
    lifecycle.hand_back([(holder.id, holder.delivery)], even_running=True)
    again = redelivered(holder)
    with told(signals.event_waits) as said:
        picked = pick_up(again)
    assert copies(event) == [holder.id], "it was the only one"
    assert picked.waiting == picked.gone == [again]
    row = Delayed.objects.get(id=holder.id)
    assert (row.reason, row.delivery, row.attempts) == ("owned", again.delivery, again.attempts - 1)
    ((margin,),) = execute(
        "SELECT extract(epoch FROM delayed.due_at - claim.leased_until) FROM pgbus_delayed AS delayed"
        " JOIN pgbus_processed_events AS claim ON claim.message_id = delayed.id"
    )
    assert 0 <= margin < 1
    assert [one["delivery"] for one in said] == [again]
    comes_to_one_run(event)


@pytest.mark.parametrize("known", ["by the claim", "by the cache"])
def test_what_is_completed_is_skipped(known):
    event, holder, duplicate, third = holder_and_duplicate(2)
    succeed(holder)
    if known == "by the claim":
        completed.clear()
    with told(signals.event_skipped) as said:
        assert pick_up(duplicate).skipped == [duplicate]
        assert pick_up(third).skipped == [third]
    assert [one["reason"] for one in said] == [
        "completed" if known == "by the claim" else "cached",
        "cached",  # now it is known here
    ]
    assert set(Archived.objects.filter(outcome="skipped").values_list("id", flat=True)) == {duplicate.id, third.id}
    comes_to_one_run(event)


# --- two takers ---------------------------------------------------------------------------------------


@pytest.mark.proves("an-idempotent-handler-runs-once")
@fails_if(at_the_same_time(ANYBODYS, ITS_MESSAGE_MAY_BE_LEASED))
def test_of_two_who_take_over_an_abandoned_claim_one_wins():
    event, _, first, second = silent_holder_and_duplicate(2)
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(pick_up, first).taken == [first]
        begun = bob.begin(pick_up, second)
        bob.wait_until_blocked()
        ann.commit()
        lost = begun.result(20)
    assert lost.taken == []
    assert is_held(event, first)
    if lost.contested:  # What it saw was the old claim.
        lost = pick_up(second)
    assert lost.skipped == [second]
    comes_to_one_run(event, [first])


def test_the_second_taker_has_it_if_the_first_rolls_back():
    event, _, first, second = silent_holder_and_duplicate(2)
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(pick_up, first).taken == [first]
        begun = bob.begin(pick_up, second)
        bob.wait_until_blocked()
        ann.roll_back()
        picked = begun.result(20)
    if picked.contested:
        picked = pick_up(second)
    assert picked.taken == [second]
    assert is_held(event, second)
    comes_to_one_run(event, [second])


def test_two_first_deliveries_at_the_same_time_make_one_run():
    event = uuid.uuid4()
    publish_once(event)
    publish_once(event)
    first, second = claim_events()
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(pick_up, first).taken == [first]
        begun = bob.begin(pick_up, second)
        bob.wait_until_blocked()
        ann.commit()
        assert begun.result(20).skipped == [second]
    comes_to_one_run(event, [first])


@pytest.mark.parametrize("winner", ["the message of the holder", "another"])
def test_the_redelivered_message_and_a_duplicate_want_the_silent_claim_and_one_has_it(winner):
    event, holder, duplicate = silent_holder_and_duplicate()
    release(holder.id)
    again = redelivered(holder)
    one, other = (again, duplicate) if winner == "the message of the holder" else (duplicate, again)
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(pick_up, one).taken == [one]
        begun = bob.begin(pick_up, other)
        bob.wait_until_blocked()
        ann.commit()
        assert begun.result(20).skipped == [other]
    comes_to_one_run(event, [one])


@pytest.mark.proves("a-silent-claim-is-taken-over-after-its-holder")
@fails_if(at_the_same_time(nobody_is_fenced_out, ITS_MESSAGE_MAY_BE_LEASED))
def test_a_claim_is_not_taken_over_from_a_holder_that_was_not_fenced_out():
    """Its message is locked: it is about to be settled, and what can be seen of its lease is old."""
    event, holder, duplicate = silent_holder_and_duplicate()
    with sessions(2) as (worker, taker):
        worker.open()
        worker.sql("SELECT 1 FROM pgbus_messages WHERE id = %s FOR UPDATE", holder.id)
        assert at_once(taker, pick_up, duplicate).contested == [duplicate]
        assert is_held(event, holder)
        assert worker.do(succeed, holder) == {holder.id}
        worker.commit()
    assert pick_up(duplicate).skipped == [duplicate]
    comes_to_one_run(event)


@pytest.mark.parametrize("end", [succeed, fail, give_up, hand_back, snooze])
def test_a_holder_that_comes_back_during_the_take_over_finds_itself_superseded(end):
    event, holder, duplicate = silent_holder_and_duplicate()
    with sessions(2) as (taker, worker):
        taker.open()
        assert taker.do(pick_up, duplicate).taken == [duplicate]
        begun = worker.begin(end, holder)
        assert waits(worker, begun)
        taker.commit()
        assert not begun.result(20)
    assert is_held(event, duplicate)
    comes_to_one_run(event, [duplicate])


@pytest.mark.parametrize("end", [succeed, fail, give_up, hand_back, snooze])
def test_a_silent_holder_that_ends_first_has_ended(end):
    event, holder, duplicate = silent_holder_and_duplicate()
    with sessions(2) as (worker, taker):
        worker.open()
        assert worker.do(end, holder)
        begun = taker.begin(pick_up, duplicate)
        assert waits(taker, begun)
        worker.commit()
        picked = begun.result(20)
    if picked.contested:
        picked = pick_up(duplicate)
    assert (picked.skipped if end is succeed else picked.taken) == [duplicate]
    assert held_by(event) == ((holder.id, holder.delivery, True) if end is succeed else (duplicate.id, 1, False))
    if end is give_up:
        assert DeadLetter.objects.get().id == holder.id
        lifecycle.redrive([holder.id])
    comes_to_one_run(event, [duplicate] if picked.taken else [])


# --- clocks and beats ---------------------------------------------------------------------------------


@pytest.mark.proves("the-databases-clock")
@pytest.mark.parametrize("minutes", [-10, 10])
def test_hosts_whose_clocks_are_ten_minutes_apart_agree(minutes):
    event, holder, duplicate, third = holder_and_duplicate(2)
    away = time.time() + minutes * 60
    with time_machine.travel(away):
        assert pick_up(duplicate).skipped == [duplicate], "it is alive, whatever the time is here"
        fall_silent(holder)
        assert pick_up(third).taken == [third]
        publish_once(event)
        fourth = [one for one in claim_events() if one.id not in {holder.id}]
    assert pick_up(*fourth).skipped == fourth, "and so is who took it over there"
    assert is_held(event, third)
    comes_to_one_run(event, [third])


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_claim_made_by_a_host_with_a_wrong_clock_lapses_when_it_should(minutes):
    event = uuid.uuid4()
    with time_machine.travel(time.time() + minutes * 60):
        holder = picked_up(event)
        beat(holder)
    publish_once(event)
    duplicate = claim_event()
    pass_by(LEASE - 1)
    execute(
        "UPDATE pgbus_messages SET leased_until = clock_timestamp() + interval '1 hour' WHERE id = %s", [duplicate.id]
    )
    assert verbs.look([event_claims.key_of(duplicate)])[event, ONCE].silent is False
    pass_by(2)
    assert pick_up(duplicate).taken == [duplicate]
    comes_to_one_run(event, [duplicate])


@pytest.mark.proves("the-only-copy-is-never-skipped")
@pytest.mark.parametrize("since", range(0, 10, 3))
def test_with_the_slowest_legal_beat_a_crash_loses_nothing_and_nobody_is_doubled(since, settings):
    """Beats at a third of the lease, the crash at any time after the last one: silent when the lease ends, not before."""
    settings.PGBUS = {"VISIBILITY_TIMEOUT": LEASE, "HEARTBEAT_INTERVAL": LEASE / 3}
    event, holder, duplicate = holder_and_duplicate()
    for _ in range(4):
        pass_by(LEASE / 3)
        beat(holder)
        beat(duplicate)
    pass_by(since)
    beat(duplicate)
    pass_by(LEASE - since - 1)
    assert verbs.look([(event, ONCE)])[event, ONCE].silent is False
    publish_once(event)
    (third,) = [one for one in claim_events() if one.id not in {holder.id, duplicate.id}]
    assert pick_up(third).skipped == [third]
    beat(duplicate)
    pass_by(2)
    assert pick_up(duplicate).taken == [duplicate]
    comes_to_one_run(event, [duplicate])


def test_a_claim_taken_long_after_the_last_beat_of_its_message_is_no_longer_than_both_leases():
    """The lease of the claim begins with it: redelivered at once, the only copy waits, and then runs."""
    event = publish_once()
    delivery = claim_event()
    pass_by(LEASE - 1)
    assert pick_up(delivery).taken == [delivery]
    pass_by(2)  # the message has lapsed, the claim has not
    assert release(delivery.id) == [delivery.id]
    again = redelivered(delivery)
    picked = pick_up(again)
    assert copies(event) == [delivery.id]
    assert picked.taken == picked.skipped == []
    comes_to_one_run(event)


def test_a_beat_renews_message_and_claim_together():
    event = uuid.uuid4()
    holder = picked_up(event)
    before = claim_of(event)
    pass_by(20)
    beat(holder)
    after = claim_of(event)
    assert after.processed_at > before.processed_at
    ((apart,),) = execute(
        "SELECT extract(epoch FROM claim.leased_until - message.leased_until) FROM pgbus_processed_events AS claim"
        " JOIN pgbus_messages AS message ON message.id = claim.message_id"
    )
    assert 0 <= apart < 5


@fails_if(what_has_ended_is_stamped)
def test_what_has_ended_is_stamped_no_more():
    event = uuid.uuid4()
    holder = picked_up(event)
    before = claim_of(event)
    holder.ended = True
    beat(holder)
    assert claim_of(event).leased_until == before.leased_until


@fails_if(STAMPS_COMPLETED)
def test_a_beat_never_arms_a_completed_claim_again():
    event = uuid.uuid4()
    holder = picked_up(event)
    assert succeed(holder) == {holder.id}
    verbs.stamp([holder])  # a beat that renewed the message just before it was settled
    assert claim_of(event).leased_until is None


@fails_if(STAMPS_OTHERS)
def test_a_beat_never_stamps_the_claim_of_another_delivery():
    event = uuid.uuid4()
    old = picked_up(event)
    fall_silent(old)
    release(old.id)
    new = redelivered(old)
    assert pick_up(new).taken == [new]
    before = claim_of(event)
    verbs.stamp([old])
    assert claim_of(event).leased_until == before.leased_until
    assert is_held(event, new)


@fails_if(without("idempotency.STAMP", "SKIP LOCKED"))
def test_a_beat_waits_for_no_settlement():
    event = uuid.uuid4()
    holder = picked_up(event)
    with sessions(2) as (worker, heart):
        worker.open()
        worker.sql("SELECT 1 FROM pgbus_processed_events FOR UPDATE")
        assert at_once(heart, beat, holder).superseded == []
        worker.roll_back()
    assert is_held(event, holder)


def test_the_beat_of_a_silent_holder_brings_nothing_back():
    event, holder, duplicate = silent_holder_and_duplicate()
    beat(holder)
    assert pick_up(duplicate).taken == [duplicate]
    assert beat(holder).superseded == [holder]
    assert is_held(event, duplicate)
    comes_to_one_run(event, [duplicate])


def test_after_a_restart_no_claim_is_taken_over_for_the_length_of_a_lease(monkeypatch):
    event, holder, duplicate = silent_holder_and_duplicate()
    monkeypatch.undo()
    server_started(monkeypatch, "10 seconds")
    assert pick_up(duplicate).skipped == [duplicate]
    beat(holder)
    assert is_held(event, holder)
    assert succeed(holder) == {holder.id}


# --- an operator --------------------------------------------------------------------------------------


@fails_if(its_only_copy_is_a_duplicate, a_claim_goes_back_with_its_message)
def test_a_running_one_that_an_operator_hands_back_is_not_run_beside_itself_and_not_lost():
    """Its run is told with the next beat; until then, or until the lease is over, nobody begins anew."""
    event = uuid.uuid4()
    holder = picked_up(event)
    assert lifecycle.hand_back([(holder.id, holder.delivery)], even_running=True) == [holder.id]
    again = redelivered(holder)
    picked = pick_up(again)
    assert picked.taken == []
    assert copies(event) == [holder.id]
    assert beat(holder).superseded == [holder]
    comes_to_one_run(event)


def test_what_an_operator_handed_back_is_there_if_its_run_dies():
    """The old hole: the second reader throws away the message, then the holder dies."""
    event = uuid.uuid4()
    holder = picked_up(event)
    publish_once(event)
    (duplicate,) = claim_events()
    lifecycle.hand_back([(holder.id, holder.delivery)], even_running=True)
    again = redelivered(holder)
    assert pick_up(duplicate).skipped == [duplicate]
    assert pick_up(again).waiting == [again]
    assert copies(event) == [holder.id]
    comes_to_one_run(event)


@pytest.mark.parametrize("end", [succeed, fail, give_up, hand_back, snooze])
def test_a_run_that_was_handed_back_by_an_operator_ends_nothing(end):
    event = uuid.uuid4()
    holder = picked_up(event)
    lifecycle.hand_back([(holder.id, holder.delivery)], even_running=True)
    assert not end(holder)
    assert is_held(event, holder), "its claim lasts as long as a lease: it was not told yet"
    comes_to_one_run(event)


def test_a_dead_letter_that_is_redriven_while_a_duplicate_runs_is_skipped_under_its_event():
    event = uuid.uuid4()
    dead = picked_up(event)
    give_up(dead)
    assert claim_of(event) is None
    holder = picked_up(event)
    assert lifecycle.redrive([dead.id]).ids == [dead.id]
    again = redelivered(dead)
    assert again.event == event
    assert pick_up(again).skipped == [again]
    comes_to_one_run(event, [holder])


def test_a_dead_letter_that_is_redriven_after_its_event_was_done_is_skipped():
    event = uuid.uuid4()
    dead = picked_up(event)
    give_up(dead)
    succeed(picked_up(event))
    age(3600 * 24 * 30, event)
    assert claim_sweeps.purge_claims() == 0, "a copy of it may still come"
    completed.clear()
    lifecycle.redrive([dead.id])
    again = redelivered(dead)
    assert pick_up(again).skipped == [again]
    comes_to_one_run(event)


def test_a_dead_letter_whose_event_nobody_has_done_runs():
    event = uuid.uuid4()
    dead = picked_up(event)
    give_up(dead)
    lifecycle.redrive([dead.id])
    again = redelivered(dead)
    assert pick_up(again).taken == [again]
    comes_to_one_run(event, [again])


@fails_if(WITHOUT_ITS_MESSAGE)
def test_a_duplicate_is_not_skipped_for_a_holder_whose_message_is_gone():
    """Somebody deleted it by hand. Its run may go on, but can end nothing: the duplicate is the only copy."""
    event, holder, duplicate = holder_and_duplicate()
    execute("DELETE FROM pgbus_messages WHERE id = %s", [holder.id])
    picked = pick_up(duplicate)
    assert picked.taken == []
    assert copies(event) == [duplicate.id]
    assert beat(holder).superseded == [holder]
    assert succeed(holder) == set()
    comes_to_one_run(event)


@fails_if(without("idempotency.LOOK", "AND NOT message.discard_requested"))
def test_a_duplicate_is_not_skipped_for_a_holder_that_is_to_be_discarded():
    """If its run fails, it is settled as discarded: somebody discarded that copy, not the duplicate."""
    event, holder, duplicate = holder_and_duplicate()
    assert lifecycle.discard([holder.id]).marked == {holder.id}
    assert pick_up(duplicate).waiting == [duplicate]
    assert fail(holder) == {holder.id: True}
    comes_to_one_run(event)


def test_a_duplicate_of_a_holder_that_is_to_be_discarded_and_succeeds_is_skipped():
    event, holder, duplicate = holder_and_duplicate()
    lifecycle.discard([holder.id])
    assert pick_up(duplicate).waiting == [duplicate]
    comes_to_one_run(event, [holder])


def test_a_duplicate_of_a_holder_that_waits_for_itself_is_skipped():
    """The message of the holder is among the delayed: it will run."""
    event, holder, duplicate = holder_and_duplicate()
    lifecycle.hand_back([(holder.id, holder.delivery)], even_running=True)
    assert pick_up(redelivered(holder)).waiting
    assert state(holder.id) == "delayed"
    assert pick_up(duplicate).skipped == [duplicate]
    comes_to_one_run(event)


# --- crashes ------------------------------------------------------------------------------------------


def reap(delivery, *, running):
    return lifecycle.reap([HeldMessage(id=delivery.id, delivery=delivery.delivery, started=running, running=running)])


@pytest.mark.parametrize("running", [False, True], ids=["before the handler", "in the handler"])
def test_a_crash_that_the_supervisor_sees_frees_the_claim_at_once(running):
    event = uuid.uuid4()
    holder = picked_up(event)
    assert reap(holder, running=running) == [holder.id]
    assert claim_of(event) is None
    again = redelivered(holder)
    assert pick_up(again).taken == [again]
    comes_to_one_run(event, [again])


def test_a_crash_that_nobody_sees_leaves_a_claim_that_can_be_taken_over():
    event = uuid.uuid4()
    holder = picked_up(event)
    fall_silent(holder)
    assert release(holder.id) == [holder.id]
    assert is_held(event, holder), "a look only puts the message back"
    again = redelivered(holder)
    assert again.level.suspect
    assert pick_up(again).taken == [again]
    assert is_held(event, again)
    comes_to_one_run(event, [again])


def test_a_crash_between_claim_and_pick_up_leaves_no_claim():
    event = publish_once()
    delivery = claim_event()
    lapse(delivery.id)
    release(delivery.id)
    again = redelivered(delivery)
    assert pick_up(delivery).lost == [delivery]
    assert claim_of(event) is None
    assert pick_up(again).taken == [again]
    comes_to_one_run(event, [again])


def test_a_crash_within_the_pick_up_leaves_nothing_of_it():
    event = publish_once()
    delivery = claim_event()
    with sessions() as worker:
        worker.open()
        assert worker.do(pick_up, delivery).taken == [delivery]
        worker.roll_back()
    assert claim_of(event) is None
    comes_to_one_run(event)


@pytest.mark.proves("settled-in-one-transaction")
def test_a_crash_before_the_completion_is_committed_leaves_message_and_claim():
    event = uuid.uuid4()
    holder = picked_up(event)
    with sessions() as worker:
        worker.open()
        assert worker.do(succeed, holder) == {holder.id}
        worker.roll_back()
    assert (state(holder.id), is_held(event, holder)) == ("running", True)
    assert (event, ONCE) not in completed
    comes_to_one_run(event)


def test_a_crash_after_the_completion_was_committed_changes_nothing():
    event, holder, duplicate = holder_and_duplicate()
    assert succeed(holder) == {holder.id}
    completed.clear()
    assert held_by(event) == (holder.id, holder.delivery, True)
    assert pick_up(duplicate).skipped == [duplicate]
    assert reap(holder, running=True) == []
    comes_to_one_run(event)


def test_a_suspect_that_has_to_wait_for_its_own_claim_stays_a_suspect():
    """It may be what ended its worker: nobody may start beside it unseen."""
    event = uuid.uuid4()
    holder = picked_up(event)
    lapse(holder.id)  # the lease of the claim, written a little later, is not quite over
    release(holder.id)
    again = redelivered(holder)
    assert again.level.suspect
    assert pick_up(again).taken == []
    silence_claim(event)
    if state(holder.id) == "running":  # asked for again by the one that has it
        assert pick_up(again).taken == [again]
    else:
        make_due(holder.id)
        lifecycle.move_due(["@events"])
        again = redelivered(again)
        assert pick_up(again).taken == [again]
    assert again.level.suspect
    comes_to_one_run(event, [again])


def test_a_worker_works_on_while_a_suspect_waits_for_its_own_claim():
    """It asks again now and then, and runs it once it may."""
    event = uuid.uuid4()
    holder = picked_up(event)
    lapse(holder.id)
    release(holder.id)
    with a_worker("@*"):
        others = [publish_once() for _ in range(5)]
        until(lambda: all(held_by(other) and held_by(other)[2] for other in others))
        assert (state(holder.id), is_held(event, holder)) == ("running", True)
        assert ("once", event) not in eventful.ran
        silence_claim(event)
        until(lambda: state(holder.id) == "succeeded")
    assert eventful.ran.count(("once", event)) == 1
    assert held_by(event)[2]


@pytest.mark.parametrize("when", ["before the commit", "after it, and the reply was lost"])
def test_a_pick_up_that_fails_in_a_worker_loses_nothing_and_leaves_no_claim(when, monkeypatch):
    real, failed = lifecycle.pick_up, []

    def fails(deliveries):
        if failed:
            return real(deliveries)
        failed.extend(deliveries)
        if when != "before the commit":
            assert real(deliveries).taken == list(deliveries)
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(lifecycle, "pick_up", fails)
    event = publish_once()
    with a_worker("@*"):
        until(lambda: state(failed[0].id) == "succeeded" if failed else False)
    archived = Archived.objects.get(event_id=event)
    assert (archived.attempts, archived.delivery) == (1, 3), "claimed, handed back, claimed"
    assert held_by(event) == (archived.id, 3, True)
    assert eventful.ran == [("once", event)]


# --- completion ---------------------------------------------------------------------------------------


def run_beside_another():
    """Return a run whose claim was deleted by hand, the duplicate that has the claim now, and a neighbour of the first."""
    event, holder, duplicate = holder_and_duplicate()
    neighbour = picked_up()
    execute("DELETE FROM pgbus_processed_events WHERE event_id = %s", [event])
    assert pick_up(duplicate).taken == [duplicate]
    return event, holder, duplicate, neighbour


@pytest.mark.proves("an-idempotent-handler-runs-once")
@fails_if(COMPLETES_OTHERS)
def test_a_completion_whose_claim_is_anothers_rolls_back_and_its_neighbours_do_not():
    event, holder, duplicate, neighbour = run_beside_another()
    assert succeed(holder, neighbour) == {neighbour.id}
    assert (state(holder.id), state(neighbour.id)) == ("running", "succeeded"), "nothing of it is archived"
    assert is_held(event, duplicate)
    comes_to_one_run(event, [duplicate])


@fails_if(COMPLETES_OTHERS)
def test_a_completion_that_comes_after_anothers_rolls_back():
    event, holder, duplicate, _ = run_beside_another()
    assert succeed(duplicate) == {duplicate.id}
    assert succeed(holder) == set()
    assert held_by(event) == (duplicate.id, duplicate.delivery, True)
    comes_to_one_run(event)


def test_of_two_completions_at_the_same_time_one_counts():
    event, holder, duplicate, _ = run_beside_another()
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(succeed, duplicate) == {duplicate.id}
        begun = bob.begin(succeed, holder)
        assert waits(bob, begun)
        ann.commit()
        assert begun.result(20) == set()
    comes_to_one_run(event)


def test_a_run_whose_claim_was_deleted_by_hand_counts_all_the_same():
    event = uuid.uuid4()
    holder = picked_up(event)
    ProcessedEvent.objects.all().delete()
    assert succeed(holder) == {holder.id}
    assert held_by(event) == (holder.id, holder.delivery, True)
    comes_to_one_run(event)


def test_a_silent_run_that_nobody_took_over_completes():
    event = uuid.uuid4()
    holder = picked_up(event)
    fall_silent(holder)
    comes_to_one_run(event, [holder])
    assert held_by(event) == (holder.id, holder.delivery, True)


def test_a_completion_repeated_after_a_lost_reply_is_a_success(completer, superseded):  # noqa: F811
    event, holder, duplicate = holder_and_duplicate()
    assert succeed(holder) == {holder.id}  # committed, and the reply was lost
    completer.settle(success(holder))
    assert superseded == []
    assert (completer.done, completer.superseded) == (1, 0)
    assert pick_up(duplicate).skipped == [duplicate]
    comes_to_one_run(event)


def test_a_superseded_completion_is_told_so(completer, superseded):  # noqa: F811
    event, holder, duplicate = silent_holder_and_duplicate()
    assert pick_up(duplicate).taken == [duplicate]
    completer.settle(success(holder))
    assert superseded == [holder]
    comes_to_one_run(event, [duplicate])


def test_a_pick_up_repeated_after_a_lost_reply_finds_its_own_claim():
    event = uuid.uuid4()
    holder = picked_up(event)
    assert pick_up(holder).taken == [holder]
    assert is_held(event, holder)


# --- whose claim is released --------------------------------------------------------------------------


def discards_it(delivery):
    """Mark it as an operator would, and let it fail."""
    assert lifecycle.discard([delivery.id]).marked == {delivery.id}
    return fail(delivery)


def discards_what_waits(delivery):
    lapse(delivery.id)
    release(delivery.id)
    return lifecycle.discard([delivery.id]).settled


def discards_what_lapses(delivery):
    lifecycle.discard([delivery.id])
    lapse(delivery.id)
    assert release(delivery.id) == []
    return state(delivery.id) == "discarded"


def times_out(delivery):
    lifecycle.fail_timed_out(delivery.id, delivery.delivery, max_attempts=5, ran_for=1.0, worker="w")
    return state(delivery.id) == "delayed"


ENDS = {
    "fails": fail,
    "snoozes": snooze,
    "gives up": give_up,
    "is handed back": hand_back,
    "is reaped": lambda delivery: reap(delivery, running=True),
    "is discarded": discards_it,
    "is discarded while it waits": discards_what_waits,
    "is discarded and lapses": discards_what_lapses,
    "times out with its process": times_out,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_delivery_that_ends_without_having_done_it_releases_its_claim(end):
    event = uuid.uuid4()
    holder = picked_up(event)
    neighbour = picked_up()
    assert ENDS[end](holder)
    assert claim_of(event) is None
    assert is_held(neighbour.event, neighbour)
    publish_once(event)
    (next_one,) = [one for one in claim_events() if one.id != holder.id]
    assert pick_up(next_one).taken == [next_one]
    assert succeed(next_one) == {next_one.id}


@pytest.mark.parametrize("end", ENDS)
def test_a_delivery_that_ends_releases_no_claim_but_its_own(end):
    event, holder, duplicate, _ = run_beside_another()
    assert ENDS[end](holder)
    assert is_held(event, duplicate)
    if end == "gives up":
        lifecycle.redrive([holder.id])
    comes_to_one_run(event, [duplicate])


@fails_if(
    without("idempotency.RELEASE", "AND claim.delivery = ended.delivery"),
)
def test_an_older_delivery_of_the_same_message_releases_nothing():
    event = uuid.uuid4()
    old = picked_up(event)
    fall_silent(old)
    release(old.id)
    new = redelivered(old)
    assert pick_up(new).taken == [new]
    assert verbs.release([(old.id, old.delivery)]) == set()
    assert is_held(event, new)


@fails_if(without("idempotency.RELEASE", "WHERE claim.completed_at IS NULL"))
def test_what_is_completed_is_released_by_nobody():
    event = uuid.uuid4()
    holder = picked_up(event)
    succeed(holder)
    assert verbs.release([(holder.id, holder.delivery)]) == set()
    assert held_by(event) == (holder.id, holder.delivery, True)


def test_a_copy_that_is_skipped_or_waits_releases_nothing():
    event, holder, duplicate = holder_and_duplicate()
    assert pick_up(duplicate).skipped == [duplicate]
    assert not hand_back(duplicate)
    assert not fail(duplicate)
    assert is_held(event, holder)


# --- claims in somebody's open transaction ------------------------------------------------------------


@pytest.fixture
def impatient(patient, monkeypatch):  # noqa: F811
    monkeypatch.setattr(lifecycle, "PATIENCE", "50ms")


@pytest.mark.parametrize("end", ["commit", "roll back"])
def test_a_pick_up_waits_no_longer_than_its_patience(end, impatient):
    """Nothing is decided before the other transaction ends, and the worker has other things to do."""
    event = uuid.uuid4()
    publish_once(event)
    publish_once(event)
    free = publish_once()
    first, second, third = sorted(claim_events(), key=lambda delivery: delivery.id)
    with sessions() as person:
        person.open()
        assert person.do(pick_up, first).taken == [first]
        picked = pick_up(second, third)
        assert (picked.contested, picked.taken) == ([second], [third]), "and its neighbour runs"
        assert is_held(free, third)
        assert state(second.id) == "running"
        person.commit() if end == "commit" else person.roll_back()
    picked = pick_up(second)
    assert (picked.skipped if end == "commit" else picked.taken) == [second]
    comes_to_one_run(event, [first] if end == "commit" else [second])


def test_a_duplicate_of_a_live_holder_is_skipped_though_somebody_has_locked_the_claim(impatient):
    """It is read without a lock."""
    event, holder, duplicate = holder_and_duplicate()
    with sessions(2) as (person, worker):
        person.open()
        person.sql("SELECT 1 FROM pgbus_processed_events FOR UPDATE")
        assert at_once(worker, pick_up, duplicate).skipped == [duplicate]
        person.roll_back()
    comes_to_one_run(event, [holder])


def test_a_take_over_waits_no_longer_than_its_patience(impatient):
    event, _, duplicate = silent_holder_and_duplicate()
    with sessions(2) as (person, worker):
        person.open()
        person.sql("SELECT 1 FROM pgbus_processed_events FOR UPDATE")
        begun = worker.begin(pick_up, duplicate)
        assert begun.result(20).contested == [duplicate]
        person.roll_back()
    assert pick_up(duplicate).taken == [duplicate]
    comes_to_one_run(event, [duplicate])


def test_a_claim_that_somebody_has_locked_keeps_no_other_from_being_taken_over(impatient):
    event, _, duplicate = silent_holder_and_duplicate()
    other, _, its_duplicate = silent_holder_and_duplicate()
    with sessions(2) as (person, worker):
        person.open()
        person.sql("SELECT 1 FROM pgbus_processed_events WHERE event_id = %s FOR UPDATE", event)
        picked = worker.begin(pick_up, duplicate, its_duplicate).result(20)
        assert (picked.contested, picked.taken) == ([duplicate], [its_duplicate])
        person.roll_back()
    comes_to_one_run(other, [its_duplicate])
    comes_to_one_run(event)


# --- what is remembered -------------------------------------------------------------------------------


@fails_if(pending_ones_are_remembered)
def test_only_what_is_completed_is_remembered():
    event, holder, duplicate, third = holder_and_duplicate(2)
    assert len(completed) == 0
    assert pick_up(duplicate).skipped == [duplicate]
    assert len(completed) == 0, "its holder may still fail"
    fail(holder, delay=60)
    assert len(completed) == 0
    assert pick_up(third).taken == [third]
    succeed(third)
    assert (event, ONCE) in completed
    comes_to_one_run(event)


def test_a_completion_that_is_not_committed_is_not_remembered():
    event = uuid.uuid4()
    holder = picked_up(event)
    with transaction.atomic():
        succeed(holder)
        transaction.set_rollback(True)
    assert (event, ONCE) not in completed
    comes_to_one_run(event)


def test_a_completion_seen_in_a_transaction_that_is_rolled_back_is_not_remembered():
    """As in a test of a project: what it saw there never was."""
    event, holder, duplicate = holder_and_duplicate()
    with transaction.atomic():
        succeed(holder)
        assert pick_up(duplicate).skipped == [duplicate]
        transaction.set_rollback(True)
    assert (event, ONCE) not in completed
    assert state(duplicate.id) == "running"
    comes_to_one_run(event, [holder])


def test_a_completion_that_lost_its_claim_is_not_remembered():
    event, holder, duplicate, _ = run_beside_another()
    succeed(holder)
    assert (event, ONCE) not in completed
    comes_to_one_run(event, [duplicate])


def test_what_is_remembered_is_bounded_and_ends(monkeypatch):
    monkeypatch.setattr(verbs, "REMEMBERED", 3)
    keys = [(uuid.uuid4(), ONCE) for _ in range(5)]
    for key in keys:
        completed.add([key])
    assert [key in completed for key in keys] == [False, False, True, True, True]
    monkeypatch.setattr(verbs, "REMEMBERED_FOR", -1.0)
    completed.add(keys[4:])
    assert keys[4] not in completed


# --- retention ----------------------------------------------------------------------------------------


def done_long_ago():
    event = uuid.uuid4()
    succeed(picked_up(event))
    age(3600 * 24 * 8, event)
    return event


def test_a_claim_completed_long_ago_is_forgotten_and_a_younger_one_is_not():
    old, young = done_long_ago(), uuid.uuid4()
    succeed(picked_up(young))
    assert claim_sweeps.purge_claims() == 1
    assert (claim_of(old), held_by(young)[2]) == (None, True)


@fails_if(
    without("idempotency.PURGE_CLAIMS", ("claim.completed_at < statement_timestamp() - %(age)s::interval", "true"))
)
def test_a_pending_claim_is_never_forgotten():
    event = uuid.uuid4()
    holder = picked_up(event)
    execute("DELETE FROM pgbus_messages")
    for column in ("claimed_at", "processed_at", "leased_until"):
        execute(f"UPDATE pgbus_processed_events SET {column} = {column} - interval '30 days'")
    assert claim_sweeps.purge_claims() == 0
    assert is_held(event, holder)


def a_month_ago():
    for column in ("claimed_at", "processed_at", "leased_until"):
        execute(f"UPDATE pgbus_processed_events SET {column} = {column} - interval '30 days'")


@fails_if(without("idempotency.PURGE_DESERTED", ("message.id = claim.message_id", "false")))
def test_a_pending_claim_is_kept_while_its_message_is_anywhere():
    event = uuid.uuid4()
    holder = picked_up(event)
    a_month_ago()
    assert claim_sweeps.purge_deserted() == 0
    fail(holder, delay=3600)
    execute("UPDATE pgbus_delayed SET delivery = %s", [holder.delivery])
    execute(
        "INSERT INTO pgbus_processed_events (event_id, handler, message_id, delivery, leased_until) "
        "VALUES (%s, %s, %s, %s, statement_timestamp() - interval '30 days')",
        [event, ONCE, holder.id, holder.delivery],
    )
    assert claim_sweeps.purge_deserted() == 0


@fails_if(without("idempotency.PURGE_DESERTED", ("- %(age)s::interval", "+ interval '1 hour'")))
def test_a_claim_whose_message_is_nowhere_is_forgotten_after_a_long_silence():
    picked_up(uuid.uuid4())
    execute("DELETE FROM pgbus_messages")
    assert claim_sweeps.purge_deserted() == 0
    a_month_ago()
    assert claim_sweeps.purge_deserted() == 1
    assert not ProcessedEvent.objects.exists()


def keeps_it(table):
    copy = f"FROM {table} AS copy\n              WHERE "
    return without("idempotency.PURGE_CLAIMS", (copy, f"{copy}false AND "))


def none_is_kept(monkeypatch):
    """if copies keep no claim"""
    for table in ("pgbus_messages", "pgbus_delayed", "pgbus_dead_letters"):
        keeps_it(table)(monkeypatch)


@pytest.mark.parametrize("where", ["ready", "running", "delayed", "dead"])
@fails_if(none_is_kept)
def test_a_claim_is_kept_while_a_copy_of_its_event_may_still_come(where):
    event = done_long_ago()
    publish_once(event, delay=60) if where == "delayed" else publish_once(event)
    if where in {"running", "dead"}:
        delivery = claim_event()
        if where == "dead":
            give_up(delivery)
    assert claim_sweeps.purge_claims() == 0
    completed.clear()
    if where == "dead":
        lifecycle.redrive([delivery.id])
    comes_to_one_run(event)


def test_a_copy_of_another_handler_keeps_no_claim():
    event = done_long_ago()
    publish("eventful.plain", event_id=event)
    assert claim_sweeps.purge_claims() == 1


def test_a_purge_waits_for_nobody():
    done_long_ago()
    with sessions(2) as (person, sweeper):
        person.open()
        person.sql("SELECT 1 FROM pgbus_processed_events FOR UPDATE")
        assert at_once(sweeper, claim_sweeps.purge_claims) == 0
        person.roll_back()
    assert claim_sweeps.purge_claims() == 1


# --- counts -------------------------------------------------------------------------------------------


def skips():
    found = {}
    for row in EventCount.objects.filter(status="skipped"):
        found[row.reason] = found.get(row.reason, 0) + row.amount
        assert row.name == ONCE
    return found


@pytest.mark.proves("what-is-skipped-or-met-nobody-is-counted")
def test_skips_are_counted_by_reason_once_each():
    event, holder, *duplicates = holder_and_duplicate(6)
    pick_up(*duplicates[:3])
    succeed(holder)
    completed.clear()
    pick_up(*duplicates[3:4])
    pick_up(*duplicates[4:])
    assert skips() == {"owned": 3, "completed": 1, "cached": 2}
    comes_to_one_run(event)


def test_sums_are_made_of_the_rows_and_lose_none():
    _, _, *duplicates = holder_and_duplicate(4)
    for duplicate in duplicates:
        pick_up(duplicate)
    assert EventCount.objects.count() == 4
    assert claim_sweeps.sum_counts() > 0
    assert (EventCount.objects.count(), skips()) == (1, {"owned": 4})


def test_a_skip_that_is_rolled_back_is_not_counted():
    event, holder, duplicate = holder_and_duplicate()
    with transaction.atomic():
        assert pick_up(duplicate).skipped == [duplicate]
        transaction.set_rollback(True)
    assert skips() == {}
    assert state(duplicate.id) == "running"
    comes_to_one_run(event, [holder])


def test_two_who_sum_at_the_same_time_lose_nothing():
    _, _, *duplicates = holder_and_duplicate(4)
    for duplicate in duplicates:
        pick_up(duplicate)
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(claim_sweeps.sum_counts) > 0
        assert at_once(bob, claim_sweeps.sum_counts) == 0
        ann.commit()
    assert skips() == {"owned": 4}
