"""`Batch` as its users meet it: the block, its members, how far it is, its key, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import threading
import time
from datetime import timedelta
from unittest import mock

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connection, transaction
from django.db.backends.postgresql.base import DatabaseWrapper

from django_pgbus import (
    Batch,
    BatchDoesNotExist,
    BatchError,
    BatchFinished,
    ConcurrencyLimitExceeded,
    InvalidKey,
    InvalidPayload,
    JobNotUnique,
    aenqueue_many,
    current_batch,
    enqueue_many,
)
from django_pgbus.batches import sql
from django_pgbus.models import Batch as Row
from django_pgbus.models import BatchCount, Delayed, Message, UniquenessKey
from django_pgbus.tasks.compat import InvalidTask, task_enqueued
from django_pgbus.testing import run_enqueued
from tests import jobs
from tests.batches import tasks
from tests.batches.tasks import CALLBACKS, called
from tests.constrained import alone, one, one_or_error, one_or_none, parked, unique, unique_or_none
from tests.jobs import noop
from tests.line import COMMITTED, claim, give_up, succeed
from tests.sessions import execute, sessions, until

pytestmark = COMMITTED


def opened(*members, **options):
    with Batch("some", **{**CALLBACKS, **options}) as batch:
        for member in members or (noop, noop):
            member.enqueue()
    return batch


def finish_all(batch):
    succeed(*[delivery for delivery in claim() if delivery.batch == batch.id])


# --- members ------------------------------------------------------------------------------------------


def test_what_is_enqueued_in_the_block_is_a_member():
    outside = noop.enqueue()
    batch = opened(noop, noop.using(priority=3), noop.using(run_after=timedelta(hours=1)))
    assert batch.progress().total == 3
    assert Message.objects.filter(batch_id=batch.id).count() == 2
    assert Delayed.objects.filter(batch_id=batch.id).count() == 1
    assert Message.objects.get(id=int(outside.id)).batch_id is None
    assert noop.enqueue().id
    assert batch.progress().total == 3


def test_members_in_bulk_are_counted_by_one_row():
    with Batch() as batch:
        enqueue_many(noop, [((), {})] * 1500)
        enqueue_many(noop.using(run_after=timedelta(hours=1)), [((), {})] * 3)
        assert enqueue_many(noop, []) == []
    assert (batch.progress().total, BatchCount.objects.count()) == (1503, 3)


def test_only_members_that_were_let_in_are_counted():
    with Batch() as batch:
        unique.enqueue("a")
        unique_or_none.enqueue("a")
        outcomes = enqueue_many(unique, [(("a",), {}), (("b",), {}), (("b",), {})])
        with pytest.raises(JobNotUnique):
            unique.enqueue("a")
        one_or_error.enqueue("k")
        with pytest.raises(ConcurrencyLimitExceeded):
            one_or_error.enqueue("k")
        one_or_none.enqueue("k")
    assert [isinstance(outcome, JobNotUnique) for outcome in outcomes] == [True, False, True]
    assert batch.progress().total == 3


def test_a_parked_member_is_outstanding():
    with Batch(**CALLBACKS) as batch:
        one.enqueue("a")
        one.enqueue("a")
    assert (batch.progress().outstanding, len(parked("a"))) == (2, 1)
    finish_all(batch)
    assert (batch.progress().outstanding, called()) == (1, {})
    finish_all(batch)
    assert (batch.progress().outstanding, called()) == (0, {"finish": 1, "success": 1})


def test_add_enqueues_a_member_from_inside_the_block():
    def helper(batch):
        return batch.add(jobs.note, "a"), batch.add(noop, order=1)

    with Batch() as batch:
        results = helper(batch)
    assert batch.progress().total == 2
    assert {int(result.id) for result in results} == set(Message.objects.values_list("id", flat=True))


def test_a_savepoint_that_is_rolled_back_takes_its_members_along():
    with Batch() as batch:
        noop.enqueue()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            noop.enqueue()
            raise ZeroDivisionError
    assert batch.progress().total == 1 == Message.objects.count()


# --- the block ----------------------------------------------------------------------------------------


def test_an_empty_batch_is_finished_at_once():
    with Batch(**CALLBACKS) as batch:
        pass
    assert (batch.progress().finished_at is not None, batch.progress().percent) == (True, 100)
    assert called() == {"finish": 1, "success": 1}


def test_a_block_that_raises_leaves_nothing():
    with pytest.raises(ZeroDivisionError), Batch(key="import", **CALLBACKS) as batch:
        noop.enqueue()
        raise ZeroDivisionError
    assert not any(model.objects.exists() for model in (Row, BatchCount, Message, UniquenessKey))
    assert batch.id is None
    with pytest.raises(BatchDoesNotExist):
        batch.progress()
    assert noop.enqueue()
    assert Message.objects.get().batch_id is None


def test_a_block_whose_transaction_was_given_up_leaves_nothing():
    with Batch() as batch:
        noop.enqueue()
        transaction.set_rollback(True)
    assert (batch.id, Row.objects.count(), Message.objects.count()) == (None, 0, 0)


def test_a_batch_of_a_transaction_that_is_rolled_back_leaves_nothing():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        opened()
        raise ZeroDivisionError
    assert not any(model.objects.exists() for model in (Row, BatchCount, Message))
    assert called() == {}


def test_a_batch_object_can_be_tried_again_after_it_failed():
    batch = Batch()
    with pytest.raises(ZeroDivisionError), batch:
        raise ZeroDivisionError
    with batch:
        noop.enqueue()
    assert batch.progress().total == 1


def test_a_block_inside_a_block_is_an_error():
    with Batch() as outer:
        noop.enqueue()
        with pytest.raises(BatchError, match="open already"), Batch():
            pass
        with pytest.raises(BatchError, match="open already"), outer:
            pass
        noop.enqueue()
    assert (outer.progress().total, Row.objects.count()) == (2, 1)


def test_nothing_is_added_after_the_end():
    batch = opened()
    with pytest.raises(BatchError, match=rf"opened again, also as Batch.get\({batch.id}\)"):
        batch.add(noop)
    with pytest.raises(BatchError, match="`async with batch:`.$"):
        Batch().add(noop)
    assert batch.progress().total == 2


def test_it_can_be_opened_again_until_it_is_finished():
    batch = opened()
    with batch:
        noop.enqueue()
    with Batch.get(batch.id) as again:
        again.add(noop)
    assert (batch.progress().total, called()) == (4, {})
    finish_all(batch)
    assert called() == {"finish": 1, "success": 1}
    with pytest.raises(BatchFinished, match="has ended"), batch:
        pass
    assert (batch.id, noop.enqueue().id is not None) == (again.id, True)


def test_a_block_that_opened_it_again_and_raised_leaves_it_as_it_was():
    batch = opened()
    with pytest.raises(ZeroDivisionError), batch:
        noop.enqueue()
        raise ZeroDivisionError
    assert (batch.id is not None, batch.progress().total) == (True, 2)


def test_opening_one_again_that_has_ended_fails_each_time():
    batch = opened()
    finish_all(batch)
    again = Batch.get(batch.id)
    for _ in range(2):
        with pytest.raises(BatchFinished), again:
            pass
    assert (again.id, Row.objects.count()) == (batch.id, 1)


def test_opening_one_again_that_is_gone_fails_each_time():
    batch = opened()
    Row.objects.all().delete()
    for known in (batch, batch):
        with pytest.raises(BatchDoesNotExist), known:
            pass
    assert not Row.objects.exists()


def test_a_batch_whose_outer_transaction_was_rolled_back_can_be_tried_again():
    batch = Batch(**CALLBACKS)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        with batch:
            noop.enqueue()
        raise ZeroDivisionError
    with batch:
        noop.enqueue()
    finish_all(batch)
    assert (Row.objects.count(), called()) == (1, {"finish": 1, "success": 1})


def fail_in_sql():
    with contextlib.suppress(psycopg.Error), connection.cursor() as cursor:
        cursor.connection.execute("SELECT 1 / 0")


def fail_in_the_orm():
    with contextlib.suppress(IntegrityError):
        Row.objects.create(properties=None, callbacks="{}")


def lose_the_connection():
    connection.connection.close()


@pytest.mark.parametrize("spoil", [fail_in_sql, fail_in_the_orm, lose_the_connection])
def test_a_block_that_swallowed_an_error_of_the_database_says_that_nothing_is_stored(spoil):
    batch = Batch()
    with pytest.raises(BatchError, match="Nothing of the batch is stored"), batch:
        noop.enqueue()
        spoil()
    connection.close()
    assert (batch.id, Row.objects.count(), Message.objects.count()) == (None, 0, 0)


def test_an_error_of_the_database_in_a_savepoint_is_no_matter():
    with Batch() as batch:
        noop.enqueue()
        with contextlib.suppress(IntegrityError), transaction.atomic():
            Row.objects.create(properties=None, callbacks="{}")
    assert batch.progress().total == 1


class LostError(Exception):
    pass


commit = DatabaseWrapper._commit


def lose_the_reply(self):
    commit(self)
    raise LostError


def test_a_second_try_after_a_lost_reply_to_the_commit_finds_the_first():
    batch = Batch(**CALLBACKS)
    with mock.patch.object(DatabaseWrapper, "_commit", lose_the_reply), pytest.raises(LostError), batch:
        noop.enqueue()
    for _ in range(2):
        with pytest.raises(BatchError, match=r"was stored.*Batch.get\("), batch:
            noop.enqueue()
    (row,) = Row.objects.all()
    assert Batch.get(row.id).progress().total == 1 == Message.objects.count()


def test_a_second_try_after_a_lost_reply_to_the_commit_around_it_finds_the_first():
    batch = Batch(**CALLBACKS)
    with mock.patch.object(DatabaseWrapper, "_commit", lose_the_reply), pytest.raises(LostError):
        with transaction.atomic(), batch:
            noop.enqueue()
    with pytest.raises(BatchError, match="was stored"), transaction.atomic(), batch:
        noop.enqueue()
    assert Message.objects.count() == 1


def test_in_the_transaction_that_opened_it_it_is_opened_again():
    batch = Batch(**CALLBACKS)
    with transaction.atomic():
        for _ in range(2):
            with batch:
                noop.enqueue()
    assert batch.progress().total == 2


def test_a_second_try_after_the_end_of_an_asynchronous_block_was_cancelled_finds_the_first():
    batch = Batch(**CALLBACKS)
    storing, stored = threading.Event(), threading.Event()

    def slowly(self):
        storing.set()
        time.sleep(0.2)
        commit(self)
        stored.set()

    async def run():
        async with batch:
            await noop.aenqueue()

    async def run_and_cancel():
        running = asyncio.create_task(run())
        while not storing.is_set():  # noqa: ASYNC110  (set by a thread)
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with mock.patch.object(DatabaseWrapper, "_commit", slowly):
        async_to_sync(run_and_cancel)()
        assert stored.wait(20)
        until(lambda: not batch.is_open)
    with pytest.raises(BatchError, match="was stored"):
        async_to_sync(run)()
    assert Message.objects.count() == 1


def test_an_empty_asynchronous_block_ends_at_once():
    async def run():
        async with Batch(**CALLBACKS) as batch:
            pass
        return batch

    assert async_to_sync(run)().progress().finished_at is not None
    assert called() == {"finish": 1, "success": 1}


def test_members_in_bulk_in_an_asynchronous_block():
    async def run(*keys):
        async with Batch() as batch:
            await aenqueue_many(noop, [((), {})] * 3)
            await aenqueue_many(unique, [((key,), {}) for key in keys])
        return batch

    assert async_to_sync(run)("a", "b").progress().total == 5
    with pytest.raises(JobNotUnique):
        async_to_sync(run)("c", "c")
    assert (Row.objects.count(), Message.objects.count()) == (1, 5)


def test_a_block_left_in_another_context_ends_its_transaction():
    batch = Batch()
    contextvars.copy_context().run(batch.__enter__)
    batch.__exit__(None, None, None)
    assert (connection.in_atomic_block, batch.is_open) == (False, False)
    assert Message.objects.filter(id=int(noop.enqueue().id), batch_id=None).exists()


def test_a_block_entered_in_another_context_is_over_there_too():
    batch, context = Batch(), contextvars.copy_context()
    context.run(batch.__enter__)
    batch.__exit__(None, None, None)
    result = context.run(noop.enqueue)
    assert Message.objects.get(id=int(result.id)).batch_id is None


def test_of_two_threads_with_one_object_the_second_is_refused():
    batch = Batch(**CALLBACKS)
    with sessions(2) as (ann, bob):
        ann.do(batch.__enter__)
        with pytest.raises(BatchError, match="open already"):
            bob.do(batch.__enter__)
        ann.do(batch.__exit__, None, None, None)
        assert bob.do(lambda: connection.in_atomic_block) is False
    assert Row.objects.count() == 1


def test_an_asynchronous_batch_that_was_refused_can_be_tried_again():
    holder, batch = opened(noop, key="import"), Batch(key="import", **CALLBACKS)

    async def run():
        async with batch:
            return await noop.aenqueue()

    with pytest.raises(JobNotUnique):
        async_to_sync(run)()
    finish_all(holder)
    result = async_to_sync(run)()
    assert (result.status.name, batch.progress().total, batch.refused) == ("READY", 1, None)


@pytest.mark.parametrize("again", [False, True])
def test_a_member_that_would_wait_for_its_own_batch_is_refused(again):
    with Batch(key="a") as batch:
        noop.enqueue()
        if not again:
            with pytest.raises(BatchError, match="it would never run"):
                alone.enqueue("a")
    if again:
        with Batch.get(batch.id) as batch, pytest.raises(BatchError, match="it would never run"):
            enqueue_many(alone, [(("a",), {})])
    assert batch.progress().total == 1


@pytest.mark.parametrize("member", [unique, unique_or_none])
def test_a_member_that_could_not_be_enqueued_for_its_own_batch_is_refused(member):
    with Batch(key="a") as batch, pytest.raises(BatchError, match="its own batch holds"):
        member.enqueue("a")
    assert batch.progress().total == 0


@pytest.mark.parametrize("member", [len, "tests.jobs.noop", None])
def test_what_is_no_task_is_no_member(member):
    with Batch() as batch, pytest.raises(TypeError, match="A member of a batch is a task"):
        batch.add(member)


def test_an_argument_of_a_member_may_be_called_task():
    with Batch() as batch:
        batch.add(noop, task=1)
    assert json.loads(Message.objects.get().payload)["kwargs"] == {"task": 1}


def test_a_member_enqueued_in_another_thread_is_refused():
    errors = []

    def elsewhere(batch):
        try:
            batch.add(noop)
        except BatchError as error:
            errors.append(str(error))

    with Batch() as batch:
        thread = threading.Thread(target=elsewhere, args=(batch,))
        thread.start()
        thread.join()
    assert errors
    assert "another thread" in errors[0]
    assert Message.objects.count() == 0


def test_a_batch_in_a_view_is_one_with_its_transaction():
    with transaction.atomic():
        batch = opened(noop)
        assert batch.progress().total == 1
    assert batch.progress().total == 1


# --- asynchronous -------------------------------------------------------------------------------------


def test_an_asynchronous_block_stores_its_members_at_its_end():
    async def run():
        async with Batch(**CALLBACKS) as batch:
            first = await noop.aenqueue()
            await asyncio.gather(batch.aadd(noop, 1), jobs.note.aenqueue("x"))
            assert not await Message.objects.aexists()
        return batch, first, await batch.aprogress()

    batch, first, progress = async_to_sync(run)()
    assert progress.total == 3
    assert Message.objects.get(id=int(first.id)).batch_id == batch.id
    finish_all(batch)
    assert called() == {"finish": 1, "success": 1}


def test_an_asynchronous_block_that_raises_leaves_nothing():
    async def run():
        async with Batch(**CALLBACKS):
            await noop.aenqueue()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async_to_sync(run)()
    assert not any(model.objects.exists() for model in (Row, BatchCount, Message))


def test_an_asynchronous_block_is_refused_as_a_whole_by_a_member_that_is_not_unique():
    held = unique.enqueue("a")

    async def run():
        async with Batch():
            await noop.aenqueue()
            await unique.aenqueue("a")

    with pytest.raises(JobNotUnique):
        async_to_sync(run)()
    assert list(Message.objects.values_list("id", flat=True)) == [int(held.id)]


def test_a_member_that_its_own_policy_drops_in_an_asynchronous_block_says_so():
    unique_or_none.enqueue("a")

    async def run():
        async with Batch() as batch:
            result = await unique_or_none.aenqueue("a")
            await noop.aenqueue()
        return batch, result

    batch, result = async_to_sync(run)()
    assert (batch.progress().total, result.status.name) == (1, "FAILED")


def test_what_outlives_an_asynchronous_block_enqueues_tasks_of_its_own():
    async def run():
        gate = asyncio.Event()

        async def later():
            await gate.wait()
            await noop.aenqueue()

        async with Batch() as batch:
            child = asyncio.create_task(later())
        gate.set()
        await child
        return batch

    batch = async_to_sync(run)()
    assert (batch.progress().total, Message.objects.get().batch_id) == (0, None)


def test_a_receiver_that_raises_in_an_asynchronous_block_leaves_nothing():
    def refuse(**kwargs):
        raise ZeroDivisionError

    async def run():
        async with Batch(**CALLBACKS):
            await noop.aenqueue()

    task_enqueued.connect(refuse)
    try:
        with pytest.raises(ZeroDivisionError):
            async_to_sync(run)()
    finally:
        task_enqueued.disconnect(refuse)
    assert not any(model.objects.exists() for model in (Row, BatchCount, Message))


def test_an_asynchronous_block_opens_a_batch_again():
    batch = opened()

    async def run():
        async with await Batch.aget(batch.id) as again:
            await noop.aenqueue()
        return await again.aprogress()

    assert async_to_sync(run)().total == 3


# --- the end ------------------------------------------------------------------------------------------


def test_callbacks_get_one_dict():
    batch = opened(noop, properties={"file": "orders.csv", "lines": [1, 2.5, None]})
    finish_all(batch)
    (payload,) = Message.objects.filter(task=tasks.SUCCESS).values_list("payload", flat=True)
    assert json.loads(payload) == {
        "args": [
            {
                "id": batch.id,
                "description": "some",
                "properties": {"file": "orders.csv", "lines": [1, 2.5, None]},
                "total": 1,
                "succeeded": 1,
                "failed": 0,
            }
        ],
        "kwargs": {},
    }


def test_callbacks_have_their_own_queue_priority_and_time():
    on_finish = tasks.finish.using(queue_name="mail", priority=7)
    on_success = tasks.success.using(run_after=timedelta(hours=1))
    finish_all(opened(noop, on_finish=on_finish, on_success=on_success))
    row = Message.objects.get(task=tasks.FINISH)
    assert (row.queue, row.priority, row.batch_id) == ("mail", 7, None)
    assert Delayed.objects.get(task=tasks.SUCCESS).batch_id is None


def test_one_that_failed_calls_on_failure_instead_of_on_success():
    batch = opened()
    first, second = claim()
    give_up(first)
    succeed(second)
    assert called() == {"finish": 1, "failure": 1}
    progress = batch.progress()
    assert (progress.total, progress.succeeded, progress.failed, progress.percent) == (2, 1, 1, 100)


def test_without_callbacks_it_is_finished_all_the_same():
    with Batch() as batch:
        noop.enqueue()
    finish_all(batch)
    assert batch.progress().finished_at is not None
    assert BatchCount.objects.count() == 0


def test_progress_on_the_way():
    batch = opened(noop, noop, noop)
    succeed(claim()[0])
    progress = batch.progress()
    assert (progress.total, progress.done, progress.outstanding, progress.percent) == (3, 1, 2, 33)
    assert progress.finished_at is None


def test_members_that_fail_then_succeed_are_a_success():
    batch = opened(jobs.fails_once)
    results = run_enqueued(raise_failures=False, include_delayed=True)
    assert results[0].attempts == 2
    assert (batch.progress().succeeded, batch.progress().failed) == (1, 0)
    assert called() == {"finish": 1, "success": 1}


# --- inside a running member --------------------------------------------------------------------------


def test_a_running_member_reaches_its_batch():
    tasks.seen.clear()
    batch = opened(tasks.asks_for_its_batch, properties={"a": 1})
    tasks.asks_for_its_batch.enqueue()
    run_enqueued()
    assert tasks.seen == [(batch.id, "some", {"a": 1}, 1), None]
    assert current_batch() is None


def test_an_asynchronous_member_reaches_its_batch():
    tasks.seen.clear()
    batch = opened(tasks.asks_for_its_batch_asynchronously)
    run_enqueued()
    assert tasks.seen == [(batch.id, 1)]


def test_in_a_block_the_current_batch_is_that_of_the_block():
    with Batch() as batch:
        assert current_batch() is batch
    assert current_batch() is None


@pytest.mark.parametrize("member", [tasks.adds_another, tasks.adds_another_in_its_transaction])
def test_a_running_member_adds_another(member):
    batch = opened(member)
    run_enqueued()
    progress = batch.progress()
    assert (progress.total, progress.succeeded, progress.finished_at is not None) == (2, 2, True)
    assert called() == {"finish": 1, "success": 1}


# --- keys ---------------------------------------------------------------------------------------------


def test_a_key_is_held_until_the_batch_is_finished():
    batch = opened(key="import")
    with pytest.raises(JobNotUnique) as refused, Batch(key="import"):
        raise AssertionError("the block must not run")
    assert (refused.value.key, refused.value.holder) == ("import", str(batch.id))
    assert Row.objects.count() == 1
    finish_all(batch)
    assert not UniquenessKey.objects.exists()
    opened(key="import")


@pytest.mark.parametrize("policy", ["discard", "log"])
def test_a_batch_that_is_dropped_drops_what_is_enqueued_in_its_block(policy):
    opened(noop, key="import")
    with Batch(key="import", on_conflict=policy) as batch:
        result = noop.enqueue()
        (other,) = enqueue_many(noop, [((), {})])
    assert (result.status.name, other.status.name, batch.id) == ("FAILED", "FAILED", None)
    assert isinstance(batch.refused, JobNotUnique)
    assert (Row.objects.count(), Message.objects.filter(task="tests.jobs.noop").count()) == (1, 1)


def test_an_asynchronous_batch_that_is_dropped_says_so():
    opened(noop, key="import")

    async def run():
        async with Batch(key="import", on_conflict="discard") as batch:
            result = await noop.aenqueue()
        return batch, result

    batch, result = async_to_sync(run)()
    assert (result.status.name, batch.id) == ("FAILED", None)


def test_a_long_key_is_kept_as_its_hash():
    opened(noop, key="k" * 1000)
    with pytest.raises(JobNotUnique), Batch(key="k" * 1000):
        pass
    assert UniquenessKey.objects.get().name == "k" * 1000


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"description": 5}, TypeError, "description"),
        ({"description": "a\x00b"}, InvalidPayload, "description"),
        ({"properties": [1]}, TypeError, "dict"),
        ({"properties": {"a": object()}}, InvalidPayload, r"properties\['a'\]"),
        ({"properties": {"a": float("nan")}}, InvalidPayload, r"properties\['a'\]"),
        ({"properties": {"a": "\ud800"}}, InvalidPayload, r"properties\['a'\]"),
        ({"properties": {"a": "x" * 2_000_000}}, InvalidPayload, "properties"),
        ({"key": ""}, InvalidKey, "empty"),
        ({"key": "a\x00"}, InvalidKey, "NUL"),
        ({"key": 5}, InvalidKey, "int"),
        ({"on_conflict": "raise"}, ValueError, "on_conflict"),
        ({"on_finish": "tests.jobs.noop"}, InvalidTask, "on_finish"),
        ({"on_success": lambda batch: None}, InvalidTask, "on_success"),
        ({"on_failure": unique}, InvalidTask, "unique or limited"),
        ({"on_failure": one}, InvalidTask, "unique or limited"),
        ({"on_finish": tasks.takes_nothing}, InvalidTask, r"def takes_nothing\(batch\)"),
        ({"on_finish": tasks.takes_two}, InvalidTask, "missing a required argument"),
        ({"on_finish": tasks.takes_only_the_context}, InvalidTask, r"takes_only_the_context\(context, batch\)"),
        ({"on_conflict": "discard"}, ValueError, "needs a key"),
    ],
)
def test_what_cannot_be_used_is_refused_before_any_sql(options, error, match, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(error, match=match):
        Batch(**options)


@pytest.mark.parametrize("id", ["abc", 2**70, True, 1.5, -1, None, [1]])
def test_what_is_no_id_of_a_batch_is_not_looked_for(id, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(BatchDoesNotExist):
        Batch.get(id)


def test_a_batch_that_is_not_there():
    with pytest.raises(BatchDoesNotExist):
        Batch.get(5)
    assert Batch.get(str(opened().id)).id


# --- plans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["STANDING", "DESERTED"])
def test_however_many_counts_one_batch_has_others_are_not_slowed_down(name):
    """On a connection whose plans are not pinned, with statistics of a table that is all one batch."""
    execute("INSERT INTO pgbus_batch_counts (batch_id, added) SELECT 1, 1 FROM generate_series(1, 30000)")
    execute("ANALYZE pgbus_batch_counts")
    opened()
    ids = list(range(1, 501))
    plan = "\n".join(line for (line,) in execute("EXPLAIN " + getattr(sql, name).sql, {"ids": ids}))
    assert "Index" in plan
    assert "Seq Scan on pgbus_batch_counts" not in plan, plan
