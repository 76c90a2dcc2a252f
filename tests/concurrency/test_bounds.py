"""However many are parked, each transaction is bounded, and what one call leaves the sweep goes on with."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from django_pgbus import concurrency, enqueue_many
from django_pgbus.concurrency import slots as slots_module
from django_pgbus.concurrency import sql, sweeps
from django_pgbus.models import BlockedExecution, Message, Semaphore, Slot
from django_pgbus.postgres import Statement
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks import sweeps as tasks_sweeps
from django_pgbus.tasks.sweeps import GoOn, SemaphoreForgetter, SlotReaper
from tests import constrained
from tests.constrained import alone, claim_and_pick_up, enqueue, one, parked, slots, unique_and_one
from tests.jobs import noop
from tests.line import COMMITTED, long_up, state, succeed  # noqa: F401
from tests.races.guards import as_if_it_died_before_it_looked, started

pytestmark = COMMITTED


def undeclared(key: str, *args: Any) -> None: ...


@pytest.fixture
def counted(monkeypatch):
    """Yield a function that counts the runs of a statement, with how many rows or keys each was given."""

    def count(name: str, parameter: str) -> list[int]:
        statement: Statement = getattr(sql, name)
        sizes: list[int] = []

        class Counted:
            def __getattr__(self, how: str) -> Any:
                def run(**params: Any) -> Any:
                    sizes.append(len(params[parameter]))
                    return getattr(statement, how)(**params)

                return run

        monkeypatch.setattr(sql, name, Counted())
        return sizes

    return count


def remove_the_limit(monkeypatch):
    values = {field: getattr(one, field) for field in one.__dataclass_fields__}
    monkeypatch.setattr(constrained, "one", type(one)(**values | {"limit": None, "func": undeclared}))


def test_a_removed_limit_lets_everybody_go_in_bounded_steps(monkeypatch, counted):
    """rails/solid_queue#478: hundreds of thousands behind one key."""
    with as_if_it_died_before_it_looked():
        ids = [enqueue(one, "a") for _ in range(11)]
    remove_the_limit(monkeypatch)
    monkeypatch.setattr(slots_module, "AT_ONCE", 2)
    monkeypatch.setattr(slots_module, "ROUNDS", 2)
    promoted = counted("PROMOTE", "ids")
    assert lifecycle.let_in(["a"]) == 4
    assert promoted == [2, 2]
    while GoOn().sweep():
        assert max(promoted) == 2
    assert {state(id) for id in ids} == {"ready"}
    assert slots() == {}
    assert len(claim_and_pick_up().taken) == 11


def test_many_keys_are_promoted_a_batch_at_a_time(monkeypatch, counted):
    with as_if_it_died_before_it_looked():
        ids = [enqueue(one, f"key-{number}") for number in range(5)]
    monkeypatch.setattr(slots_module, "BATCH", 2)
    locked = counted("LOCK_FREE", "keys")
    assert lifecycle.let_in([f"key-{number}" for number in range(5)]) == 5
    assert max(locked) == 2
    assert {state(id) for id in ids} == {"ready"}


def test_what_is_too_much_for_a_callers_look_the_sweep_lets_in(monkeypatch):
    monkeypatch.setattr(lifecycle, "CHUNK", 2)
    enqueue_many(one, [((f"key-{number}",), {}) for number in range(5)])
    assert len(slots()) == 2
    while GoOn().sweep():
        pass
    assert len(slots()) == 5


def test_the_sweep_goes_on_where_it_left_off(monkeypatch):
    """More keys than one sweep looks at: none of them is always passed over."""
    with as_if_it_died_before_it_looked():
        for number in range(5):
            enqueue(one, f"key-{number}")
    monkeypatch.setattr(tasks_sweeps, "KEYS", 2)
    monkeypatch.setattr(tasks_sweeps, "PAGES", 1)
    sweep = GoOn()
    assert [sweep.sweep() for _ in range(4)] == [2, 2, 1, 0]
    assert len(slots()) == 5


def test_waiters_that_find_no_slot_are_passed_over_a_bounded_number_of_times(monkeypatch):
    """The sweep goes on with those that were not tried."""
    holder = started(alone, "k")
    waiting = [enqueue(alone, "k") for _ in range(3)]
    claim_and_pick_up()
    assert parked() == waiting
    monkeypatch.setattr(lifecycle, "WAITERS", 1)
    succeed(holder)
    assert [state(id) for id in waiting] == ["ready", "parked", "parked"]


def test_discard_parked_takes_a_batch_at_a_time(monkeypatch, counted):
    holder = enqueue(unique_and_one, "z")
    Slot.objects.update(key="limit-a")
    with as_if_it_died_before_it_looked():
        ids = []
        for number in range(5):
            ids.append(enqueue(unique_and_one, f"{number}"))
        BlockedExecution.objects.update(key="limit-a", semaphore="limit-a")
    monkeypatch.setattr(lifecycle, "DISCARDS", 2)
    sizes = counted("DISCARD", "ids")
    assert concurrency.discard_parked("limit-a") == 5
    assert sizes == [2, 2, 1]
    assert {state(id) for id in ids} == {"discarded"}
    assert constrained.keys() == {"z": holder}


def test_discard_parked_inside_a_callers_transaction_is_undone_with_it():
    enqueue(one, "a")
    waiting = [enqueue(one, "a") for _ in range(3)]
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert concurrency.discard_parked("a") == 3
        1 / 0  # noqa: B018
    assert parked() == waiting


def test_presumed_dead_a_batch_at_a_time():
    deliveries = [started(one, f"key-{number}") for number in range(5)]
    constrained.silence(*deliveries)
    assert [lifecycle.presume_dead(2) for _ in range(4)] == [2, 2, 1, 0]


def test_the_reapers_go_on_where_they_left_off(monkeypatch):
    for number in range(5):
        Slot.objects.create(message_id=10**12 + number, key=f"lost-{number}", ordinal=1, duration=900)
    monkeypatch.setattr(sweeps, "BATCH", 2)
    reaper = SlotReaper()
    monkeypatch.setattr("django_pgbus.tasks.sweeps.PAGES", 1)
    assert [reaper.reap() for _ in range(3)] == [2, 2, 1]
    assert not Slot.objects.exists()


def test_unused_semaphores_are_forgotten_a_batch_at_a_time(monkeypatch):
    for number in range(5):
        Semaphore.objects.create(key=f"unused-{number}", capacity=1)
    used = enqueue(one, "used")
    monkeypatch.setattr(sweeps, "BATCH", 2)
    forgetter = SemaphoreForgetter()
    assert sum(forgetter.forget() for _ in range(4)) == 5
    assert [semaphore.key for semaphore in Semaphore.objects.all()] == ["used"]
    assert slots() == {used: 1}


@pytest.mark.proves("a-hot-key-costs-the-same")
def test_an_enqueue_costs_no_more_however_many_are_parked(django_assert_max_num_queries):
    """One statement to store it, one to look: a full key is no reason to lock anything."""
    enqueue(one, "a")
    with as_if_it_died_before_it_looked():
        enqueue_many(one, [(("a",), {})] * 500)
    with django_assert_max_num_queries(2):
        one.enqueue("a")


@pytest.mark.proves("a-plain-task-pays-for-nothing-else")
def test_a_task_without_constraints_costs_nothing_more(django_assert_num_queries):
    noop.enqueue()
    with django_assert_num_queries(1):
        noop.enqueue()
    (delivery,) = lifecycle.claim(lifecycle.Line(), [lifecycle.Level("default", 0)], 1, "0" * 32, 30.0)
    with django_assert_num_queries(1):
        succeed(delivery)
    assert Message.objects.count() == 1
    assert connection.get_autocommit()


def test_discard_parked_of_a_uniqueness_key_settles_its_waiters_and_leaves_the_holder():
    holder = started(alone, "k")
    waiting = [enqueue(alone, "k") for _ in range(3)]
    claim_and_pick_up()
    assert concurrency.discard_parked("k") == 0, "nobody waits for a slot of that name"
    assert concurrency.discard_parked("k", waits_for="key", up_to=waiting[1]) == 2
    assert [state(id) for id in waiting] == ["discarded", "discarded", "parked"]
    succeed(holder)
    assert state(waiting[2]) == "ready"
