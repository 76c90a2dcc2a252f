"""A worker and what is unique or limited: whoever is let in starts at once, without waiting for a poll or a sweep."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from django.db import connection

from django_pgbus import Snooze, ensures_uniqueness, limits_concurrency, task
from django_pgbus.models import Message, Slot
from django_pgbus.tasks import lifecycle
from tests.constrained import alone, alone_and_one, enqueue, keys, one, parked, slots, two, unique_and_one
from tests.line import COMMITTED, long_up, state  # noqa: F401
from tests.running import a_worker
from tests.sessions import until

pytestmark = [COMMITTED, pytest.mark.needs_session("it never polls, and is woken by notifications", listen="none")]
NEVER = 60.0  # seconds between polls: longer than the test has patience

most = {"now": 0, "ever": 0}
counting = threading.Lock()


def _run() -> None:
    with counting:
        most["now"] += 1
        most["ever"] = max(most["ever"], most["now"])
    time.sleep(0.005)
    with counting:
        most["now"] -= 1


@limits_concurrency(to=2, key=lambda: "counted")
@task
def counted() -> None:
    _run()


@ensures_uniqueness(key=lambda *args: "counted alone", strategy="while_executing")
@task(max_attempts=3, backoff=lambda exception, result: 0)
def counted_alone(fails: bool = False) -> None:
    _run()
    if fails:
        raise ValueError("no")


@limits_concurrency(to=1, key=lambda: "async")
@task
async def counted_async() -> None:
    with counting:
        most["now"] += 1
        most["ever"] = max(most["ever"], most["now"])
    await asyncio.sleep(0.005)
    with counting:
        most["now"] -= 1


@limits_concurrency(to=1, key=lambda: "transactional")
@task(transactional=True)
def counted_transactional() -> None:
    assert connection.in_atomic_block
    _run()


@limits_concurrency(to=1, key=lambda: "snoozing")
@task(takes_context=True)
def snoozes_once(context) -> None:
    if Slot.objects.filter(message_id=int(context.task_result.id)).exists() and context.task_result.id not in snoozed:
        snoozed.append(context.task_result.id)
        raise Snooze(0.2)


snoozed: list[str] = []


@pytest.fixture(autouse=True)
def fresh():
    most.update(now=0, ever=0)
    snoozed.clear()


def all_done(ids):
    return lambda: all(state(id) in ("succeeded", "dead") for id in ids)


@pytest.mark.parametrize(
    ("made", "at_once"),
    [(counted, 2), (counted_alone, 1), (counted_async, 1), (counted_transactional, 1)],
    ids=lambda made: getattr(made, "name", None),
)
def test_never_more_at_once_and_nobody_waits_for_a_poll(made, at_once):
    ids = [enqueue(made) for _ in range(12)]
    with a_worker(threads=4, poll=NEVER):
        until(all_done(ids))
    assert {state(id) for id in ids} == {"succeeded"}
    assert most["ever"] == at_once
    assert (keys(), slots(), parked()) == ({}, {}, [])


def test_two_workers_are_held_to_one_limit():
    ids = [enqueue(counted) for _ in range(20)] + [enqueue(counted_alone) for _ in range(5)]
    with a_worker(threads=4, poll=NEVER), a_worker(threads=4, poll=NEVER):
        until(all_done(ids))
    assert most["ever"] <= 3, "two of one, one of the other"
    assert (keys(), slots(), parked()) == ({}, {}, [])


def test_a_run_that_fails_lets_in_who_waits_for_its_key():
    ids = [enqueue(counted_alone, True), enqueue(counted_alone), enqueue(counted_alone, True)]
    with a_worker(threads=4, poll=NEVER):
        until(all_done(ids))
    assert [state(id) for id in ids] == ["dead", "succeeded", "dead"]
    assert most["ever"] == 1
    assert (keys(), parked()) == ({}, [])


def test_slot_and_key_and_uniqueness_together():
    ids = [enqueue(alone_and_one, "k", limit) for limit in "xyxyx"]
    ids += [enqueue(unique_and_one, letter) for letter in "abc"]
    ids += [enqueue(one, "x") for _ in range(3)] + [enqueue(alone, "k"), enqueue(two, "y")]
    with a_worker(threads=4, poll=NEVER):
        until(all_done(ids))
    assert (keys(), slots(), parked()) == ({}, {}, [])


def test_a_limited_job_that_is_due_later_starts_then():
    """No message moves when it is due: it is parked, and becomes a candidate."""
    with a_worker(poll=NEVER):
        id = enqueue(counted, after=0.3)
        assert state(id) == "parked"
        until(all_done([id]))


def test_a_limited_job_that_snoozes_gives_its_slot_to_the_next_and_runs_again():
    ids = [enqueue(snoozes_once) for _ in range(3)]
    with a_worker(threads=4, poll=NEVER):
        until(all_done(ids))
    assert sorted(map(int, snoozed)) == ids
    assert {lifecycle.find(id).attempts for id in ids} == {1}
    assert (slots(), parked()) == ({}, [])


def test_what_is_stopped_in_mid_flight_goes_on_with_the_next_worker():
    ids = [enqueue(counted) for _ in range(30)]
    with a_worker(threads=4, poll=NEVER):
        until(lambda: state(ids[0]) == "succeeded")
    assert set(slots()) <= set(Message.objects.values_list("id", flat=True))
    assert not Slot.objects.exclude(leased_until=None).exists(), "nothing runs"
    with a_worker(threads=4, poll=NEVER):
        until(all_done(ids))
    assert most["ever"] == 2
