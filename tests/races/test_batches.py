"""
A batch ends exactly once, and only when nothing is outstanding: whoever settles members, whoever opens it again.

Whoever finds the batch locked passes over it, and who held the lock looks again after its commit.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from django.db import connections, transaction

from django_pgbus import Batch, BatchFinished
from django_pgbus.batches import counts
from django_pgbus.models import Batch as Row
from django_pgbus.models import BatchCount, Message, UniquenessKey
from django_pgbus.tasks import batch_ends, lifecycle
from django_pgbus.tasks.sweeps import BatchEnder
from tests.batches.tasks import CALLBACKS, called
from tests.jobs import noop
from tests.line import COMMITTED, claim, give_up, succeed
from tests.races.guards import as_if_it_died_before_it_looked, at_once, came_to, fails_if, nobody_looks_again, without
from tests.sessions import execute, sessions, strict_session, until

pytestmark = [COMMITTED, pytest.mark.races]

ENDED = {"finish": 1, "success": 1}
MEMBER = "SELECT 1 FROM pgbus_messages AS message WHERE message.batch_id = batch.id"


def opened(members: int = 2) -> tuple[Batch, list]:
    with Batch(**CALLBACKS) as batch:
        for _ in range(members):
            noop.enqueue()
    return batch, claim()


def nobody_looks_again_after_the_lock(monkeypatch):
    """if who held the lock does not look again"""
    monkeypatch.setattr(batch_ends, "ROUNDS", 1)


# --- the last two -------------------------------------------------------------------------------------


@pytest.mark.proves("a-batch-ends-once")
@fails_if(
    without("batches.LOCK_UNFINISHED", "FOR UPDATE SKIP LOCKED"), without("batches.LOCK_UNFINISHED", "SKIP LOCKED")
)
def test_of_two_who_finish_one_passes_over():
    """Without the lock both enqueue the callbacks; without SKIP LOCKED the second waits for the first's commit."""
    batch, deliveries = opened()
    with as_if_it_died_before_it_looked():
        succeed(*deliveries)
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(batch_ends._finish_one, batch.id)[0] is not None
        assert at_once(bob, lifecycle.finish_batches, [batch.id]) == 0
        ann.commit()
    assert called() == ENDED


@fails_if(nobody_looks_again_after_the_lock, nobody_looks_again)
def test_a_member_that_ends_while_the_batch_is_locked_is_found_by_who_locked_it():
    """Ann looks with one outstanding and holds the lock; Bob settles the last one, finds it locked and goes."""
    _batch, (first, second) = opened()
    fold = counts.fold

    def fold_then_let_bob_settle(id: int):
        standing = fold(id)
        if bob is not None and not done:
            done.append(bob.do(succeed, second))
        return standing

    done: list = []
    with (
        sessions() as bob,
        mock.patch.object(counts, "MANY_ROWS", 0),
        mock.patch.object(batch_ends.counts, "fold", fold_then_let_bob_settle),
    ):
        succeed(first)
    assert (done, called()) == ([{second.id}], ENDED)


@pytest.mark.proves("a-batch-ends-once")
def test_each_of_two_uncommitted_settlements_leaves_the_end_to_the_later():
    _batch, (first, second) = opened()
    with sessions(2) as (ann, bob):
        ann.open()
        bob.open()
        ann.do(succeed, first)
        bob.do(succeed, second)
        ann.commit()
        assert called() == {}
        bob.commit()
    assert called() == ENDED


@pytest.mark.proves("a-batch-ends-once")
def test_twenty_members_that_end_at_the_same_instant_end_it_once():
    batch, deliveries = opened(20)
    start = threading.Barrier(20)

    def end(delivery) -> None:
        try:
            start.wait(20)
            succeed(delivery)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(end, deliveries))
    assert called() == ENDED
    assert (batch.progress().succeeded, BatchCount.objects.count()) == (20, 0)


def test_who_settles_the_last_one_and_dies_leaves_it_to_the_sweep():
    _batch, deliveries = opened()
    with as_if_it_died_before_it_looked():
        succeed(*deliveries)
    assert called() == {}
    assert BatchEnder().sweep() == 1
    assert (BatchEnder().sweep(), called()) == (0, ENDED)


def test_who_finishes_and_dies_before_the_commit_has_finished_nothing():
    batch, deliveries = opened()
    with as_if_it_died_before_it_looked():
        succeed(*deliveries)
    with sessions() as ann:
        ann.open()
        assert ann.do(batch_ends._finish_one, batch.id)[0] is not None
        ann.roll_back()
    assert (called(), batch.progress().finished_at) == ({}, None)
    assert BatchEnder().sweep() == 1
    assert called() == ENDED


# --- nobody waits -------------------------------------------------------------------------------------


def test_settling_and_enqueueing_wait_for_nobody_who_holds_the_batch():
    batch, (first, second) = opened()
    with sessions(2) as (ann, bob):
        ann.open()
        assert ann.do(counts.lock_unfinished, [batch.id]) == [batch.id]
        assert at_once(bob, succeed, first) == {first.id}
        ann.commit()
    assert at_once_here(succeed, second) == {second.id}


def at_once_here(call, *args):
    with sessions() as one:
        return at_once(one, call, *args)


def test_two_callers_that_add_to_one_batch_wait_for_nobody():
    batch, _ = opened()

    def add() -> None:
        with Batch.get(batch.id) as again:
            again.add(noop)

    with sessions(2) as (ann, bob):
        ann.open()
        ann.do(add)
        at_once(bob, add)
        ann.commit()
    assert batch.progress().total == 4


# --- open it again ------------------------------------------------------------------------------------


@fails_if(without("batches.OPEN_AGAIN", "FOR SHARE"))
def test_a_batch_that_is_open_again_is_not_finished_meanwhile():
    """Without the lock it ends with the member settled, and the one being added comes too late."""
    batch, deliveries = opened(1)

    def begin() -> Batch:
        again = Batch.get(batch.id)
        again.__enter__()
        return again

    def end(again: Batch) -> None:
        noop.enqueue()
        again.__exit__(None, None, None)

    with sessions() as caller:
        again = caller.do(begin)
        succeed(*deliveries)
        assert called() == {}
        caller.do(end, again)
        assert called() == {}
        succeed(*claim())
    assert (called(), batch.progress().total) == (ENDED, 2)


def test_a_batch_whose_last_member_ended_while_it_was_open_ends_with_the_block():
    batch, deliveries = opened(1)
    with sessions() as caller:
        caller.open()
        assert caller.do(batch_ends.open_again, batch.id)
        succeed(*deliveries)
        assert called() == {}
        caller.do(lifecycle.let_in_after_commit, (), (), [batch.id])
        caller.commit()
    assert called() == ENDED


def test_a_batch_whose_last_member_ended_while_it_was_open_in_a_block_that_raised_ends_with_the_sweep():
    batch, deliveries = opened(1)
    with sessions() as caller:
        caller.open()
        assert caller.do(batch_ends.open_again, batch.id)
        succeed(*deliveries)
        caller.roll_back()
    assert called() == {}
    assert BatchEnder().sweep() == 1
    assert called() == ENDED


def test_opening_one_again_that_is_being_finished_waits_and_is_told():
    batch, deliveries = opened()
    with as_if_it_died_before_it_looked():
        succeed(*deliveries)

    def again() -> None:
        with Batch.get(batch.id):
            noop.enqueue()

    with sessions(2) as (finisher, caller):
        finisher.open()
        assert finisher.do(batch_ends._finish_one, batch.id)[0] is not None
        call = caller.begin(again)
        caller.wait_until_blocked()
        finisher.commit()
        assert came_to(call) is BatchFinished
    assert (called(), batch.progress().total) == (ENDED, 2)


@fails_if(without("batches.READ_COMMITTED", ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "SELECT 1")))
def test_under_repeatable_read_a_member_added_before_the_lock_was_had_is_seen():
    """By the snapshot of the statement that asked for the lock, the batch would be finished without it."""
    batch, deliveries = opened(1)
    with as_if_it_died_before_it_looked():
        succeed(*deliveries)
    lock = counts.lock_unfinished

    def add() -> None:
        with Batch.get(batch.id) as again:
            again.add(noop)

    def add_after_the_snapshot(ids):
        execute("SELECT 1")
        with sessions() as caller:
            caller.do(add)
        return lock(ids)

    with mock.patch.object(counts, "lock_unfinished", add_after_the_snapshot), strict_session() as finisher:
        finished = finisher.do(lifecycle.finish_batches, [batch.id])
    assert (finished, called(), batch.progress().outstanding) == (0, {}, 1)


def test_a_batch_that_cannot_be_finished_keeps_no_other_from_its_end(caplog):
    broken, deliveries = opened(1)
    whole, more = opened(1)
    with as_if_it_died_before_it_looked():
        succeed(*deliveries, *more)
    execute("UPDATE pgbus_batches SET callbacks = '[]' WHERE id = %s", [broken.id])
    assert BatchEnder().sweep() == 1
    assert f"Batch {broken.id} could not be finished" in caplog.text
    assert (broken.progress().finished_at, whole.progress().finished_at is None) == (None, False)


# --- keys ---------------------------------------------------------------------------------------------


def test_of_two_who_open_a_batch_of_one_key_the_second_waits_and_is_refused():
    def open_one() -> int | None:
        with Batch(key="import", on_conflict="discard") as batch:
            noop.enqueue()
        return batch.id

    with sessions(2) as (ann, bob):
        ann.open()
        first = ann.do(open_one)
        second = bob.begin(open_one)
        bob.wait_until_blocked()
        ann.commit()
        assert second.result(20) is None
    assert [*Row.objects.values_list("id", flat=True)] == [first]


# --- repairs ------------------------------------------------------------------------------------------


@fails_if(without("batches.DESERTED", ("message.batch_id BETWEEN batch.id AND batch.id", "false")))
def test_the_repair_counts_nobody_as_lost_who_is_there():
    batch, deliveries = opened()
    assert lifecycle.repair_batches([batch.id]) == 0
    assert batch.progress().failed == 0
    succeed(*deliveries)
    assert called() == ENDED


def test_the_repair_passes_over_a_batch_that_is_open():
    batch, _deliveries = opened(1)
    with sessions() as caller:
        caller.open()
        assert caller.do(batch_ends.open_again, batch.id)
        Message.objects.all().delete()
        assert at_once_here(lifecycle.repair_batches, [batch.id]) == 0
        caller.commit()
    assert lifecycle.repair_batches([batch.id]) == 1


def test_a_dead_letter_redriven_while_its_batch_ends_counts_once():
    batch, (first, second) = opened()
    with sessions() as person:
        give_up(first)
        person.open()
        assert person.do(lifecycle.redrive, [first.id]).members == {first.id: batch.id}
        succeed(second)
        person.commit()
    succeed(*claim())
    assert (batch.progress().succeeded, batch.progress().failed, called()) == (1, 1, {"finish": 1, "failure": 1})


@pytest.mark.proves("key-and-slot-with-the-task")
def test_a_caller_that_rolls_back_has_added_nothing():
    batch, deliveries = opened(1)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        with Batch.get(batch.id) as again:
            again.add(noop)
        raise ZeroDivisionError
    succeed(*deliveries)
    assert (called(), batch.progress().total) == (ENDED, 1)


# --- dying between any two steps ----------------------------------------------------------------------


class Died(BaseException):
    """What kill -9 looks like from inside: nothing after it happens."""


def dying_before_step(nth: int, call, *args) -> int | None:
    """
    Call in a session that is gone just before its nth statement; return how many it made if it came to its end.

    PostgreSQL rolls back what was open, as it does for a process that was killed; no hook runs and nothing is caught.
    """
    made = 0

    def die(execute, sql, params, many, context):
        nonlocal made
        made += 1
        if made == nth:
            context["connection"].connection.close()
            raise Died
        return execute(sql, params, many, context)

    def run() -> int | None:
        try:
            with connections["default"].execute_wrapper(die):
                call(*args)
        except BaseException as error:
            if not isinstance(error, Died):
                raise
            return None
        return made

    with sessions() as victim, mock.patch("django.db.backends.base.base.logger"):
        came_to_its_end = victim.do(run)
        if came_to_its_end is None:  # PostgreSQL learns of it a moment later.
            until(lambda: not execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [victim.pid]))
        return came_to_its_end


def settle_all(deliveries: list) -> None:
    succeed(*deliveries)


def open_a_batch() -> None:
    with Batch("new", key="import", **CALLBACKS):
        noop.enqueue()
        noop.enqueue()


def steps_of(call, *args) -> int:
    steps = dying_before_step(0, call, *args)
    assert steps
    return steps


@pytest.mark.proves("a-batch-ends-once")
@pytest.mark.needs_session("it waits for the end of a session of its own")
def test_killed_between_any_two_steps_of_the_end_it_ends_once():
    _, deliveries = opened()
    steps = steps_of(settle_all, deliveries)
    assert (steps > 5, called()) == (True, ENDED)
    died = 0
    for nth in range(1, steps + 1):
        before = called()
        batch, deliveries = opened()
        died += dying_before_step(nth, settle_all, deliveries) is None  # a wake-up that was said lately is no step
        succeed(*deliveries)  # if it had not been committed, the next delivery of the same jobs
        BatchEnder().sweep()
        assert BatchEnder().sweep() == 0
        after = called()
        assert {event: after[event] - before[event] for event in ENDED} == ENDED, f"killed before step {nth} of {steps}"
        assert (batch.progress().succeeded, batch.progress().outstanding) == (2, 0)
    assert died >= 8


@pytest.mark.needs_session("it waits for the end of a session of its own")
def test_killed_between_any_two_steps_of_the_block_it_was_never_there():
    steps = steps_of(open_a_batch)
    Row.objects.all().delete()
    UniquenessKey.objects.all().delete()
    died = 0
    for nth in range(1, steps + 1):
        if dying_before_step(nth, open_a_batch) is not None:
            break  # what had to be said once, the first time
        died += 1
        left = Row.objects.count()
        if left:  # it was committed, and died on the way to wake somebody
            assert (left, UniquenessKey.objects.count()) == (1, 1)
            assert Batch.get(Row.objects.get().id).progress().total == 2
            Row.objects.all().delete()
            UniquenessKey.objects.all().delete()
        else:
            assert not UniquenessKey.objects.exists()
    assert died >= 5
    Row.objects.all().delete()
    UniquenessKey.objects.all().delete()
    open_a_batch()
    assert Row.objects.count() == 1


@pytest.mark.needs_session("it waits for the end of a session of its own")
def test_a_caller_that_is_killed_in_the_block_has_opened_nothing():
    def begin() -> None:
        Batch("new", key="import", **CALLBACKS).__enter__()
        noop.enqueue()

    with sessions() as caller:
        caller.do(begin)
        execute("SELECT pg_terminate_backend(%s)", [caller.pid])
        until(lambda: not execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [caller.pid]))
    assert not any(model.objects.exists() for model in (Row, BatchCount, Message, UniquenessKey))
