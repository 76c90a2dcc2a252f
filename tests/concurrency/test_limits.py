"""At most N at once per key, the rest parked: each promise on one connection."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from django_pgbus import ConcurrencyLimitExceeded, concurrency, enqueue_many
from django_pgbus.models import Archived, BlockedExecution, DeadLetter, Delayed, Message, Semaphore, Slot
from django_pgbus.tasks import lifecycle
from tests.constrained import (
    claim_and_pick_up,
    enqueue,
    lapse_slots,
    make_parked_due,
    one,
    one_or_error,
    one_or_none,
    parked,
    run,
    slots,
    two,
)
from tests.line import (
    COMMITTED,
    claim,
    claim_one,
    fail,
    give_up,
    hand_back,
    lapse,
    make_due,
    snooze,
    state,
    succeed,
)

pytestmark = COMMITTED


@pytest.mark.proves("at-most-n-hold-a-slot")
def test_after_an_enqueue_a_task_is_ready_with_a_slot_or_parked():
    first, second = enqueue(one, "a"), enqueue(one, "a")
    assert (state(first), state(second)) == ("ready", "parked")
    assert slots("a") == {first: 1}
    assert Semaphore.objects.get().capacity == 1


def test_keys_do_not_disturb_each_other():
    assert {state(enqueue(one, key)) for key in "abc"} == {"ready"}


def test_success_frees_the_slot_and_lets_in_the_next():
    first, second = enqueue(two, "a"), enqueue(two, "a")
    third = enqueue(two, "a")
    assert parked() == [third]
    deliveries = claim_and_pick_up().taken
    assert [d.id for d in deliveries] == [first, second]
    assert succeed(deliveries[0]) == {first}
    assert state(third) == "ready"
    assert slots() == {second: 2, third: 1}


def test_the_best_priority_goes_first_then_the_oldest():
    enqueue(one, "a")
    low, high, old = enqueue(one, "a"), int(one.using(priority=5).enqueue("a").id), enqueue(one, "a")
    order = []
    for _ in range(4):
        delivery = run(levels=[*(lifecycle.Level("default", p) for p in (5, 0))])
        order.append(delivery.id)
        succeed(delivery)
    assert order[1:] == [high, low, old]


def test_a_failed_run_keeps_its_slot_without_a_lease():
    first, second = enqueue(one, "a"), enqueue(one, "a")
    delivery = run()
    assert Slot.objects.get().leased_until is not None
    fail(delivery, delay=60)
    assert Slot.objects.get().leased_until is None
    assert (state(first), state(second)) == ("delayed", "parked")
    make_due(first)
    lifecycle.move_due(["default"])
    assert run().id == first


def test_a_dead_letter_frees_its_slot():
    first, second = enqueue(one, "a"), enqueue(one, "a")
    give_up(run())
    assert (state(first), state(second)) == ("dead", "ready")


@pytest.mark.proves("a-snooze-costs-no-attempt")
def test_a_snooze_gives_the_slot_back_and_parks_until_it_is_due():
    first, second = enqueue(one, "a"), enqueue(one, "a")
    delivery = run()
    assert snooze(delivery, delay=60) == {first: False}
    assert (state(first), state(second)) == ("parked", "ready")
    row = BlockedExecution.objects.get()
    assert (row.due_at is not None, row.delivery, row.attempts) == (True, delivery.delivery, 0)
    make_parked_due(first)
    lifecycle.move_due(["default"])
    assert state(first) == "parked"
    succeed(run())
    assert state(first) == "ready"


def test_a_hand_back_keeps_the_slot_without_a_lease():
    first = enqueue(one, "a")
    hand_back(run())
    assert state(first) == "ready"
    assert Slot.objects.get().leased_until is None


def test_a_discarded_task_frees_its_slot():
    first, second = enqueue(one, "a"), enqueue(one, "a")
    assert lifecycle.discard([first]).settled == {first}
    assert state(second) == "ready"


@pytest.mark.proves("a-discard-settles-or-marks")
def test_a_discarded_parked_task_is_settled_at_once():
    enqueue(one, "a")
    second = enqueue(one, "a")
    assert lifecycle.discard([second]).settled == {second}
    assert state(second) == "discarded"


def test_a_task_that_is_not_due_is_no_candidate_and_holds_no_slot():
    later = enqueue(one, "a", after=60)
    assert state(later) == "parked"
    assert not slots()
    now = enqueue(one, "a")
    assert state(now) == "ready"
    make_parked_due(later)
    lifecycle.move_due(["default"])
    assert state(later) == "parked"
    succeed(run())
    assert state(later) == "ready"


@pytest.mark.proves("the-limit-is-checked-again-at-pick-up")
def test_a_delivery_whose_slot_is_gone_is_parked_once_more_and_costs_no_attempt():
    first = enqueue(one, "a")
    Slot.objects.update(message_id=-1)  # somebody else holds the only place
    claimed = claim_one()
    picked = lifecycle.pick_up([claimed])
    assert (picked.taken, picked.parked) == ([], [claimed])
    row = BlockedExecution.objects.get()
    assert (row.id, row.attempts) == (first, 0)
    assert row.delivery > claimed.delivery
    assert succeed(claimed) == set()


def test_a_slot_that_was_freed_by_a_person_is_taken_again_at_pick_up():
    first = enqueue(one, "a")
    assert concurrency.release("a") == 1
    picked = claim_and_pick_up()
    assert picked.taken == []
    assert (state(first), slots("a")) == ("ready", {first: 1})
    assert run().id == first


def test_discard_drops_at_enqueue_and_nothing_remains():
    first = enqueue(one_or_none, "a")
    dropped = one_or_none.enqueue("a")
    assert dropped.status == "FAILED"
    assert dropped.errors[0].exception_class is ConcurrencyLimitExceeded
    assert Message.objects.count() == 1
    assert parked() == []
    assert [model.objects.count() for model in (Archived, Delayed)] == [0, 0]
    succeed(run())
    assert state(enqueue(one_or_none, "a")) == "ready"
    assert state(first) == "succeeded"


@pytest.mark.proves("refusal-leaves-the-transaction-usable")
def test_raise_says_which_key_and_leaves_the_callers_transaction_usable():
    with transaction.atomic():
        enqueue(one_or_error, "a")
        with pytest.raises(ConcurrencyLimitExceeded, match="1 at once are allowed for the key 'a'") as caught:
            one_or_error.enqueue("a")
        assert (caught.value.key, caught.value.limit) == ("a", 1)
        enqueue(one_or_error, "b")
    assert Message.objects.count() == 2


@pytest.mark.proves("decided-at-enqueue-under-the-lock")
def test_raise_counts_who_is_parked():
    first = enqueue(one_or_error, "a")
    Slot.objects.all().delete()
    claim_and_pick_up()
    Message.objects.filter(id=first).delete()
    Slot.objects.all().delete()
    second = enqueue(one_or_error, "a")
    assert slots() == {second: 1}
    snooze(run())
    assert state(second) == "parked"
    assert state(enqueue(one_or_error, "a")) == "ready"  # one that is not due does not count
    make_parked_due(second)
    lifecycle.move_due([])
    BlockedExecution.objects.update(due_at=None)
    Slot.objects.all().delete()
    with pytest.raises(ConcurrencyLimitExceeded):
        one_or_error.enqueue("a")


@pytest.mark.proves("key-and-slot-with-the-task")
def test_a_rollback_leaves_nothing():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        enqueue(one, "a")
        enqueue(one_or_none, "b")
        1 / 0  # noqa: B018
    assert (parked(), slots()) == ([], {})
    assert [model.objects.count() for model in (Message, Semaphore)] == [0, 0]


def test_a_bulk_enqueue_parks_what_finds_no_slot():
    results = enqueue_many(two, [(("a",), {})] * 5)
    assert [state(int(result.id)) for result in results] == ["ready", "ready", "parked", "parked", "parked"]


def test_a_bulk_enqueue_has_an_outcome_for_each_row():
    results = enqueue_many(one_or_error, [(("a",), {}), (("a",), {}), (("b",), {})])
    assert [isinstance(result, ConcurrencyLimitExceeded) for result in results] == [False, True, False]


@pytest.mark.proves("a-silent-holder-is-presumed-dead")
def test_a_running_holder_that_falls_silent_is_presumed_dead():
    first, second = enqueue(one, "a"), enqueue(one, "a")
    delivery = run()
    lapse(first)
    assert lifecycle.presume_dead(10) == 0  # its duration has not passed
    lapse_slots(first)
    assert lifecycle.presume_dead(10) == 1
    assert (state(first), state(second)) == ("ready", "ready")
    assert slots("a") == {second: 1}
    assert succeed(delivery) == set()
    again = claim()
    assert {d.id: d.delivery for d in again}[first] > delivery.delivery
    picked = lifecycle.pick_up(again)
    assert [d.id for d in picked.taken] == [second]
    assert state(first) == "parked"


@pytest.mark.proves("a-silent-holder-is-presumed-dead")
def test_a_holder_that_beats_is_never_presumed_dead():
    first = enqueue(one, "a")
    run()
    lapse_slots(first)
    assert lifecycle.presume_dead(10) == 0
    assert slots("a") == {first: 1}


def test_release_leaves_a_running_holder_its_slot_unless_told():
    first, second = enqueue(one, "a"), enqueue(one, "a")
    delivery = run()
    assert concurrency.release("a") == 0
    assert concurrency.release("a", even_running=True) == 1
    assert slots("a") == {second: 1}
    assert state(first) == "ready"
    assert succeed(delivery) == set()


@pytest.mark.proves("discard-takes-only-what-was-shown")
def test_discard_parked_settles_only_what_was_shown():
    enqueue(one, "a")
    shown, since = [enqueue(one, "a"), enqueue(one, "a")], enqueue(one, "a")
    other = (enqueue(one, "b"), enqueue(one, "b"))[1]
    assert concurrency.discard_parked("a", up_to=shown[-1]) == 2
    assert [state(id) for id in (*shown, since, other)] == ["discarded", "discarded", "parked", "parked"]


def test_a_redrive_takes_a_slot_again_or_is_parked():
    first = enqueue(one, "a")
    old = run()
    give_up(old)
    second = enqueue(one, "a")
    assert lifecycle.redrive([first]).ids == [first]
    assert (state(first), state(second)) == ("parked", "ready")
    succeed(run())
    again = run()
    assert (again.id, again.attempts) == (first, 1)
    assert again.delivery > old.delivery
    assert not DeadLetter.objects.exists()


def test_a_redrive_under_raise_says_why_it_cannot():
    first = enqueue(one_or_error, "a")
    give_up(run())
    enqueue(one_or_error, "a")
    redriven = lifecycle.redrive([first])
    assert redriven.ids == []
    assert redriven.refused[first].to == 1
    assert state(first) == "dead"


@pytest.mark.proves("a-changed-limit-is-honoured")
def test_a_raised_limit_is_honoured_for_rows_already_parked(monkeypatch):
    ids = [enqueue(one, "a") for _ in range(3)]
    changed = {"limit": one.limit.__class__(to=2, key=one.limit.key)}
    from tests import constrained

    monkeypatch.setattr(
        constrained, "one", one.__class__(**{f: getattr(one, f) for f in one.__dataclass_fields__} | changed)
    )
    assert lifecycle.let_in(["a"]) == 1
    assert [state(id) for id in ids] == ["ready", "ready", "parked"]
    assert Semaphore.objects.get().capacity == 2


def test_a_removed_limit_lets_everybody_go(monkeypatch):
    ids = [enqueue(one, "a") for _ in range(3)]
    from tests import constrained

    plain = one.__class__(**{f: getattr(one, f) for f in one.__dataclass_fields__} | {"limit": None, "func": _plain})
    monkeypatch.setattr(constrained, "one", plain)
    assert lifecycle.let_in(["a"]) == 2
    assert {state(id) for id in ids} == {"ready"}
    assert len(claim_and_pick_up().taken) == 3


def _plain(key, *args): ...


@pytest.mark.proves("a-changed-limit-is-honoured")
def test_a_task_gone_from_the_code_keeps_its_stored_limit(monkeypatch):
    ids = [enqueue(one, "a") for _ in range(2)]
    from tests import constrained

    monkeypatch.delattr(constrained, "one")
    assert lifecycle.let_in(["a"]) == 0
    give_up(run())
    assert [state(id) for id in ids] == ["dead", "ready"]


def test_a_duration_is_never_shorter_than_a_lease_and_a_beat():
    one.using().enqueue("a")
    Slot.objects.update(duration=1)
    run()
    slot = Slot.objects.get()
    assert slot.leased_until - slot.taken_at >= timedelta(seconds=39)


@pytest.mark.proves("pause-holds-within-a-poll")
def test_a_paused_queue_is_passed_over():
    enqueue(one, "a")
    stopped = int(one.using(queue_name="slow").enqueue("a").id)
    following = enqueue(one, "a")
    lifecycle.pause_queue("slow")
    succeed(run())
    assert (state(stopped), state(following)) == ("parked", "ready")
