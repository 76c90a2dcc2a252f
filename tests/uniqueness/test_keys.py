"""At most one job per key: each promise on one connection."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_pgbus import JobNotUnique, concurrency, enqueue_many
from django_pgbus.models import Archived, BlockedExecution, Message, UniquenessKey
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.sweeps import KeyReaper
from django_pgbus.uniqueness.keys import discard_lock
from tests.constrained import (
    alone,
    alone_and_one,
    alone_or_none,
    claim_and_pick_up,
    enqueue,
    keys,
    make_parked_due,
    parked,
    run,
    slots,
    unique,
    unique_and_one,
    unique_or_logged,
    unique_or_none,
)
from tests.line import (
    COMMITTED,
    claim_one,
    fail,
    give_up,
    hand_back,
    lapse,
    make_due,
    release,
    snooze,
    state,
    succeed,
)

pytestmark = COMMITTED


@pytest.mark.proves("one-job-per-key")
def test_a_second_job_with_the_key_is_refused_and_the_holder_named():
    first = enqueue(unique, "a")
    with pytest.raises(JobNotUnique, match=f"job or batch {first} holds the key 'a'") as caught:
        unique.enqueue("a", 2)
    assert (caught.value.key, caught.value.holder) == ("a", str(first))
    assert Message.objects.count() == 1


@pytest.mark.proves("refusal-leaves-the-transaction-usable")
def test_a_refusal_leaves_the_callers_transaction_usable():
    with transaction.atomic():
        enqueue(unique, "a")
        with pytest.raises(JobNotUnique):
            unique.enqueue("a")
        enqueue(unique, "b")
    assert set(keys()) == {"a", "b"}


def test_a_rollback_gives_the_key_back():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        enqueue(unique, "a")
        1 / 0  # noqa: B018
    assert not keys()
    enqueue(unique, "a")


@pytest.mark.parametrize("task", [unique_or_none, unique_or_logged])
def test_a_dropped_duplicate_returns_the_holders_result(task):
    first = enqueue(task, "a")
    assert task.enqueue("a").id == str(first)
    assert Message.objects.count() == 1


def test_log_says_so_and_discard_is_silent(caplog):
    for task in (unique_or_none, unique_or_logged):
        enqueue(task, task.name)
        task.enqueue(task.name)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.proves("a-key-is-freed-by-its-own-holder")
def test_the_key_is_held_until_the_job_is_settled():
    first = enqueue(unique, "a")
    for step in (hand_back, lambda d: fail(d, delay=60)):
        delivery = run()
        assert keys() == {"a": first}
        step(delivery)
        assert keys() == {"a": first}
    make_due(first)
    lifecycle.move_due(["default"])
    succeed(run())
    assert not keys()


@pytest.mark.parametrize("settle", [succeed, give_up])
def test_settling_frees_the_key(settle):
    enqueue(unique, "a")
    settle(run())
    assert not keys()


def test_a_discard_frees_the_key():
    first = enqueue(unique, "a")
    lifecycle.discard([first])
    assert not keys()
    later = enqueue(unique, "a", after=60)
    lifecycle.discard([later])
    assert not keys()


def test_discard_parked_frees_the_keys():
    enqueue(unique_and_one, "a")
    UniquenessKey.objects.filter(key="a").update(key="z")
    second = enqueue(unique_and_one, "a")
    assert state(second) == "parked"
    assert concurrency.discard_parked("limit-a") == 1
    assert set(keys()) == {"z"}


@pytest.mark.proves("a-key-is-freed-by-its-own-holder")
def test_only_its_own_key_is_freed():
    first = enqueue(unique, "a")
    delivery = run()
    assert discard_lock("a", first)
    second = enqueue(unique, "a")
    succeed(delivery)
    assert keys() == {"a": second}


@pytest.mark.proves("a-lock-is-discarded-as-shown")
def test_discard_lock_frees_exactly_the_one_that_was_shown():
    first = enqueue(unique, "a")
    assert not discard_lock("a", first + 1)
    assert discard_lock("a", first)
    assert not keys()
    assert succeed(run()) == {first}


@pytest.mark.proves("bulk-neither-deadlocks-nor-fails-as-a-whole")
def test_duplicates_inside_a_batch_are_refused_each_for_itself():
    results = enqueue_many(unique, [(("a",), {}), (("b",), {}), (("a",), {})])
    assert [isinstance(result, JobNotUnique) for result in results] == [False, False, True]
    assert results[2].holder == results[0].id


def test_a_key_that_is_too_long_is_hashed_and_its_text_kept():
    long = "ä" * 300
    enqueue(unique, long)
    row = UniquenessKey.objects.get()
    assert (len(row.key) < 255, row.name) == (True, long)
    with pytest.raises(JobNotUnique, match="ää"):
        unique.enqueue(long)
    assert discard_lock(long, row.message_id)


def test_the_reaper_frees_a_key_only_on_proof():
    places = [enqueue(unique, key) for key in ("ready", "delayed", "running", "gone")]
    fail(run(limit=1), delay=60)
    run(limit=1)
    parked_one = enqueue(unique_and_one, "x"), enqueue(unique_and_one, "y")
    Message.objects.filter(id=places[3]).delete()
    UniquenessKey.objects.update(created_at="2000-01-01T00:00Z")
    assert KeyReaper().reap() == 1
    assert set(keys()) == {"ready", "delayed", "running", "x", "y"}
    assert parked_one


@pytest.mark.proves("a-redrive-takes-key-and-slot-again")
def test_a_redrive_takes_its_key_again_or_says_who_holds_it():
    first = enqueue(unique, "a")
    give_up(run())
    second = enqueue(unique, "a")
    redriven = lifecycle.redrive([first])
    assert (redriven.ids, redriven.refused[first].holder) == ([], second)
    succeed(run())
    assert lifecycle.redrive([first]).ids == [first]
    assert keys() == {"a": first}


def test_a_unique_and_limited_task_takes_both_or_neither():
    first = enqueue(unique_and_one, "a")
    with pytest.raises(JobNotUnique):
        unique_and_one.enqueue("a")
    assert (keys(), slots()) == ({"a": first}, {first: 1})
    succeed(run())
    assert (keys(), slots()) == ({}, {})


# --- while_executing ----------------------------------------------------------------------------------


@pytest.mark.proves("one-run-per-key")
def test_many_may_wait_and_one_runs():
    first, second = enqueue(alone, "a"), enqueue(alone, "a")
    picked = claim_and_pick_up()
    assert [d.id for d in picked.taken] == [first]
    row = BlockedExecution.objects.get()
    assert (row.id, row.waits_for, row.key, row.attempts) == (second, "key", "a", 0)
    succeed(picked.taken[0])
    assert (state(second), keys()) == ("ready", {"a": second})
    assert UniquenessKey.objects.get().delivery is None  # kept for it until it is picked up
    assert run().id == second
    assert keys() == {"a": second}


@pytest.mark.parametrize("step", [succeed, give_up, fail, snooze, hand_back])
def test_whatever_ends_the_run_frees_the_key(step):
    enqueue(alone, "a")
    delivery = run()
    step(delivery)
    assert not keys()


def test_a_task_that_drops_is_archived_as_discarded():
    first, second = enqueue(alone_or_none, "a"), enqueue(alone_or_none, "a")
    picked = claim_and_pick_up()
    assert [d.id for d in picked.dropped] == [second]
    row = Archived.objects.get()
    assert (row.outcome, row.attempts, row.note) == ("discarded", 0, "Another job held its key.")
    assert state(first) == "running"


def test_a_key_whose_delivery_lapsed_is_taken_over_and_the_old_run_fenced_out():
    first, second = enqueue(alone, "a"), enqueue(alone, "a")
    old = claim_and_pick_up(limit=1).taken[0]
    lapse(first)
    new = run(limit=1)
    assert new.id == second
    assert succeed(old) == set()
    assert keys() == {"a": second}
    assert state(first) == "ready"


def test_a_key_whose_holder_was_released_by_a_look_is_free_for_another():
    first, second = enqueue(alone, "a"), enqueue(alone, "a")
    old = claim_and_pick_up(limit=1).taken[0]
    lapse(first)
    release(first)
    assert run(limit=1).id == second
    assert succeed(old) == set()


def test_its_own_key_from_an_earlier_delivery_is_its_own():
    first = enqueue(alone, "a")
    run()
    lapse(first)
    release(first)
    assert run().id == first


def test_a_key_held_until_executed_is_never_taken_over():
    held = enqueue(unique, "a")
    run()
    lapse(held)
    waiting = enqueue(alone, "a")
    assert claim_and_pick_up().taken == []
    assert state(waiting) == "parked"
    assert keys() == {"a": held}


@pytest.mark.proves("slot-and-key-together-or-neither")
def test_a_delivery_takes_slot_and_key_together_or_neither():
    """It waits for the key, and gives its slot to another meanwhile."""
    first = enqueue(alone_and_one, "a", "1")
    running = run()
    second = enqueue(alone_and_one, "a", "2")
    assert claim_and_pick_up().taken == []
    assert slots() == {first: 1}
    third = enqueue(alone_and_one, "b", "2")
    assert run().id == third
    succeed(running)  # the key is free; the slot is not, and the second waits for that now
    row = BlockedExecution.objects.get()
    assert (row.id, row.waits_for, row.key) == (second, "semaphore", "2")


def test_crossed_waits_for_slot_and_key_end():
    """One has the key that the other needs, and the other the slot; whoever waits holds neither."""
    ids = [enqueue(alone_and_one, key, limit) for key, limit in ("ax", "by", "ay", "bx")]
    done = []
    for _ in range(20):
        for delivery in claim_and_pick_up().taken:
            done.append(delivery.id)
            succeed(delivery)
        if len(done) == 4:
            break
    assert sorted(done) == ids
    assert (keys(), slots(), parked()) == ({}, {}, [])


def test_a_parked_task_that_is_not_due_waits_for_no_key():
    enqueue(alone, "a")
    delivery = run()
    snooze(delivery)
    assert state(delivery.id) == "delayed"
    make_parked_due(delivery.id)
    assert claim_one
