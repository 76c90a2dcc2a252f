"""
At most one job per key, whoever else is taking, freeing or clearing it at this moment.

Taking a key waits for an open transaction that takes or frees the same one, since only its end tells which.
"""

from __future__ import annotations

import pytest
from django.db import OperationalError

from django_pgbus import JobNotUnique, enqueue_many
from django_pgbus.models import Archived, Message, UniquenessKey
from django_pgbus.tasks import entrance, lifecycle
from django_pgbus.tasks import sql as tasks_sql
from django_pgbus.tasks.outcomes import PutOff
from django_pgbus.uniqueness import sweeps
from django_pgbus.uniqueness.keys import discard_lock
from tests.constrained import (
    alone_and_one,
    enqueue,
    keys,
    parked,
    run,
    slots,
    unique,
    unique_and_one,
    unique_or_none,
)
from tests.line import COMMITTED, give_up, hand_back, state, succeed
from tests.races.guards import at_once, came_to, fails_if, started, waits, without
from tests.races.test_lost_replies import completer, death, retry, success, superseded  # noqa: F401  (fixtures)
from tests.sessions import sessions

pytestmark = [COMMITTED, pytest.mark.races]

LETS_ALL_IN = "tasks.ENTER", ("OR asked.id IN (SELECT message_id FROM taken)", "OR true")


# --- enqueue against enqueue and settlement -----------------------------------------------------------


@pytest.mark.proves("key-and-slot-with-the-task", "one-job-per-key")
@pytest.mark.parametrize("end", ["commits", "rolls back"])
@fails_if(without(*LETS_ALL_IN))
def test_an_enqueue_waits_for_the_transaction_that_holds_its_key_and_wins_or_is_refused(end):
    enqueue(unique, "other")
    with sessions(2) as (ann, bob):
        ann.open()
        first = ann.do(enqueue, unique, "a")
        begun = bob.begin(enqueue, unique, "a")
        assert waits(bob, begun)
        if end == "commits":
            ann.commit()
            assert came_to(begun) is JobNotUnique
            assert keys()["a"] == first
        else:
            ann.roll_back()
            second = came_to(begun)
            assert keys()["a"] == second
    assert Message.objects.count() == len(keys()) == 2
    with sessions() as carl:
        assert came_to(carl.begin(enqueue, unique, "a")) is JobNotUnique


def test_who_waited_and_drops_returns_the_result_of_the_winner():
    with sessions(2) as (ann, bob):
        ann.open()
        first = ann.do(enqueue, unique_or_none, "a")
        begun = bob.begin(enqueue, unique_or_none, "a")
        bob.wait_until_blocked()
        ann.commit()
        assert begun.result(20) == first
    assert Message.objects.count() == 1


@pytest.mark.parametrize("settle", [succeed, give_up])
def test_an_enqueue_waits_for_a_settlement_that_frees_its_key_and_wins(settle):
    delivery = started(unique, "a")
    with sessions(2) as (worker, web):
        worker.open()
        worker.do(settle, delivery)
        begun = web.begin(enqueue, unique, "a")
        web.wait_until_blocked()
        worker.commit()
        second = begun.result(20)
    assert keys() == {"a": second}


def test_a_settlement_waits_for_no_enqueue_that_is_refused():
    """The caller's transaction that met the key stays open; it locks nothing of the holder's."""
    delivery = started(unique, "a")
    with sessions(2) as (caller, worker):
        caller.open()
        assert came_to(caller.begin(enqueue, unique, "a")) is JobNotUnique
        assert at_once(worker, succeed, delivery) == {delivery.id}
        caller.commit()
    assert keys() == {}


def tried_once(monkeypatch):
    """if it is tried once only"""
    monkeypatch.setattr(entrance, "TRIES", 1)


@pytest.mark.parametrize("vanish", ["succeeds", "is discarded", "loses its lock"])
@fails_if(tried_once)
def test_a_holder_that_vanishes_before_it_is_named_leaves_the_key_to_the_enqueue(vanish):
    delivery = started(unique, "a")
    hand_back(delivery)
    with sessions() as other, pytest.MonkeyPatch.context() as patch:
        real = lifecycle.keys.holders
        ways = {
            "succeeds": lambda: succeed(run()),
            "is discarded": lambda: lifecycle.discard([delivery.id]),
            "loses its lock": lambda: discard_lock("a", delivery.id),
        }

        def meanwhile(wanted):
            patch.setattr(lifecycle.keys, "holders", real)
            other.do(ways[vanish])
            return real(wanted)

        patch.setattr(lifecycle.keys, "holders", meanwhile)
        try:
            second = enqueue(unique, "a")
        except JobNotUnique:
            second = None
    assert keys() == {"a": second}


def test_holders_that_come_and_go_three_times_refuse_without_a_name(monkeypatch):
    """Somebody else is always faster: the caller hears so, instead of trying for ever."""
    enqueue(unique, "a")
    asked = []

    def gone_again(wanted):
        asked.append(wanted)
        return {}

    monkeypatch.setattr(lifecycle.keys, "holders", gone_again)
    with pytest.raises(JobNotUnique, match="came and went") as caught:
        unique.enqueue("a")
    assert (caught.value.holder, len(asked)) == ("", 3)


# --- bulk against bulk --------------------------------------------------------------------------------


def bulk(letters, task=unique):
    """Enqueue one for each letter and return who was let in, or the error of all."""
    outcomes = enqueue_many(task, [((letter,), {}) for letter in letters])
    return [letter for letter, outcome in zip(letters, outcomes, strict=True) if not isinstance(outcome, Exception)]


@pytest.mark.proves("bulk-neither-deadlocks-nor-fails-as-a-whole")
@fails_if(without("tasks.ENTER", ("ORDER BY unique_key, nth", "ORDER BY nth")))
def test_two_bulks_with_keys_in_opposite_order_do_not_deadlock():
    """Each takes its keys in ascending order, whatever the order of its rows; the key in the middle holds both up."""
    with sessions(3) as (between, ann, bob):
        between.open()
        between.do(enqueue, unique, "m")
        first = ann.begin(bulk, "amz")
        ann.wait_until_blocked()
        second = bob.begin(bulk, "zma")
        bob.wait_until_blocked()
        between.roll_back()
        outcomes = [came_to(first), came_to(second)]
        assert all(isinstance(outcome, list) for outcome in outcomes), "a deadlock"
    assert sorted(letter for outcome in outcomes for letter in outcome) == ["a", "m", "z"]


def cut_into_statements_of_two(monkeypatch):
    """if the call is cut into several statements"""

    def enter(works):
        return [
            one
            for start in range(0, len(works), 2)
            for one in lifecycle._enter([entrance.Entrant(work) for work in works[start : start + 2]])
        ]

    monkeypatch.setattr(lifecycle, "enter", enter)


@fails_if(cut_into_statements_of_two)
def test_two_bulks_inside_transactions_do_not_deadlock_however_many_rows_they_have():
    """Keys are taken in ascending order by the whole call: cut in pieces, each would take the first of the other's last."""
    with sessions(3) as (between, ann, bob):
        between.open()
        between.do(enqueue, unique, "m")
        ann.open()
        bob.open()
        first = ann.begin(bulk, "amyz")
        ann.wait_until_blocked()
        second = bob.begin(bulk, "zyma")
        bob.wait_until_blocked()
        between.roll_back()
        outcomes = [came_to(first)]
        (ann.commit if isinstance(outcomes[0], list) else ann.roll_back)()
        outcomes.append(came_to(second))
        (bob.commit if isinstance(outcomes[1], list) else bob.roll_back)()
        assert outcomes == [list("amyz"), []]


def test_a_bulk_of_more_rows_than_one_statement_takes_is_all_or_none(monkeypatch):
    monkeypatch.setattr(lifecycle, "CHUNK", 2)
    real, calls = tasks_sql.ENTER, []

    class FailsLater:
        def rows(self, **params):
            calls.append(params)
            if len(calls) > 1 or len(params["queues"]) > 2:
                raise RuntimeError("no")
            return real.rows(**params)

    monkeypatch.setattr(tasks_sql, "ENTER", FailsLater())
    with pytest.raises(RuntimeError):
        bulk("abcd")
    assert (keys(), Message.objects.count()) == ({}, 0)


def test_a_bulk_beside_one_that_holds_one_of_its_keys_loses_that_row_only():
    enqueue(unique, "b")
    assert bulk("abca") == ["a", "c"]


# --- the reaper ---------------------------------------------------------------------------------------


def gone(key="a"):
    """Leave a key whose message is nowhere."""
    id = enqueue(unique, key)
    Message.objects.filter(id=id).delete()
    return id


def nowhere(table, alias):
    return f"AND NOT EXISTS (SELECT 1 FROM {table} AS {alias} WHERE {alias}.id = held.message_id)"


@pytest.mark.proves("a-key-is-reaped-on-proof-only")
@pytest.mark.parametrize("place", ["ready", "delayed", "parked"])
@fails_if(
    without(
        "uniqueness.REAP",
        nowhere("pgbus_messages", "message"),
        nowhere("pgbus_delayed", "delayed"),
        nowhere("pgbus_blocked_executions", "blocked"),
    )
)
def test_the_reaper_leaves_a_key_that_was_taken_anew_meanwhile(place):
    """Its look found the message nowhere; the key was freed and taken by a successor before the reaper had locked it."""
    id = gone()
    assert discard_lock("a", id)
    if place == "parked":
        enqueue(unique_and_one, "b")
        UniquenessKey.objects.filter(key="b").delete()
        enqueue_parked = enqueue(unique_and_one, "b")
        UniquenessKey.objects.filter(key="b").update(key="a")
        assert parked() == [enqueue_parked]
    else:
        enqueue(unique, "a", after=60 if place == "delayed" else None)
    before = keys()
    assert sweeps.reap(["a"]) == []
    assert keys() == before


def test_the_reaper_leaves_a_key_whose_job_was_redriven_meanwhile():
    delivery = started(unique, "a")
    give_up(delivery)
    UniquenessKey.objects.create(key="z", message_id=delivery.id, strategy="until_executed", queue="default")
    lifecycle.redrive([delivery.id])
    assert sweeps.reap(["a", "z"]) == []
    assert set(keys()) == {"a", "z"}


@pytest.mark.proves("a-key-is-reaped-on-proof-only")
@fails_if(without("uniqueness.LOCK_UNOWNED", "SKIP LOCKED"))
def test_the_reaper_waits_for_nobody():
    id = gone()
    with sessions(2) as (person, reaper):
        person.open()
        assert person.do(discard_lock, "a", id)
        assert at_once(reaper, sweeps.reap, ["a"]) == []
        person.roll_back()
        assert reaper.do(sweeps.reap, ["a"]) == ["a"]
    assert keys() == {}


def test_an_enqueue_that_meets_the_reaper_waits_and_wins():
    gone()
    with sessions(2) as (reaper, web):
        reaper.open()
        assert reaper.do(sweeps.reap, ["a"]) == ["a"]
        begun = web.begin(enqueue, unique, "a")
        web.wait_until_blocked()
        reaper.commit()
        second = begun.result(20)
    assert keys() == {"a": second}


# --- a settlement whose reply was lost ----------------------------------------------------------------


@pytest.mark.proves("a-lost-reply-is-looked-up")
@pytest.mark.parametrize(
    ("outcome", "place"),
    [(success, "succeeded"), (retry, "delayed"), (death, "dead"), ("snooze", "parked")],
    ids=["succeed", "fail", "give up", "snooze"],
)
@fails_if(without("SETTLED", ("WHERE id = ANY (%(ids)s::bigint[])", "WHERE id = ANY (%(ids)s::bigint[]) AND false")))
def test_what_was_settled_is_freed_once_though_the_reply_to_its_commit_was_lost(
    outcome,
    place,
    completer,  # noqa: F811
    superseded,  # noqa: F811
):
    """Meanwhile others hold the slot and the key; the repetition touches neither, and nobody is called superseded."""
    delivery = started(alone_and_one, "k", "s")
    waiting = enqueue(alone_and_one, "k", "s")
    third = enqueue(alone_and_one, "k", "s")
    made = (
        PutOff(delivery=delivery, delay=60, reason="snoozed", error=None, ran_for=0.1, ended=0.0)
        if outcome == "snooze"
        else outcome(delivery, 60)
        if outcome is retry
        else outcome(delivery)
    )
    with pytest.MonkeyPatch.context() as patch:
        name = {"delayed": "put_off", "parked": "put_off", "dead": "give_up"}.get(place, "succeed")
        real = getattr(lifecycle, name)

        def loses_its_reply(*args):
            real(*args)
            raise OperationalError("server closed the connection unexpectedly")

        patch.setattr(lifecycle, name, loses_its_reply)
        with pytest.raises(OperationalError):
            completer.settle(made)
    assert state(delivery.id) == place
    expected_slots = {delivery.id: 1} if place == "delayed" else {waiting: 1}
    assert slots("s") == expected_slots
    if place != "delayed":
        assert run().id == waiting
        assert keys() == {"k": waiting}
    before = keys(), slots(), parked(), Archived.objects.count()
    completer.step_there()
    assert (keys(), slots(), parked(), Archived.objects.count()) == before
    assert third in parked()
    assert superseded == []
