"""Every way a member moves or leaves: counted once, in the transaction that settles it, and outstanding until then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_pgbus import Batch, concurrency
from django_pgbus.batches.sweeps import purge_batches, purge_counts
from django_pgbus.models import Archived, BatchCount, BlockedExecution, DeadLetter, Delayed, Message
from django_pgbus.models import Batch as Row
from django_pgbus.queues import heartbeat
from django_pgbus.queues.message import Level
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.outcomes import HeldMessage
from django_pgbus.tasks.sweeps import BatchEnder, free_batch_keys
from django_pgbus.uniqueness.sweeps import reap_keys
from tests.batches.tasks import CALLBACKS, called
from tests.constrained import alone, alone_or_none, claim_and_pick_up, make_parked_due, one, silence
from tests.jobs import noop
from tests.line import (
    COMMITTED,
    LEASE,
    claim,
    fail,
    give_up,
    hand_back,
    holding,
    lapse,
    make_due,
    release,
    snooze,
    succeed,
)
from tests.sessions import execute

pytestmark = COMMITTED

OUTSTANDING, SUCCEEDED, FAILED = (1, 0, 0), (0, 1, 0), (0, 0, 1)
LIVE = (Message, Delayed, BlockedExecution)


class Member:
    """One member of a batch, brought to where it starts from."""

    def __init__(self, task: Any = noop, *args: Any, after: float | None = None) -> None:
        with Batch(**CALLBACKS) as self.batch:
            bound = task if after is None else task.using(run_after=timedelta(seconds=after))
            self.id = int(bound.enqueue(*args).id)
        self.delivery: Any = None

    def claimed(self) -> Member:
        (self.delivery,) = [delivery for delivery in claim() if delivery.id == self.id]
        return self

    def picked_up(self) -> Member:
        (self.delivery,) = [delivery for delivery in claim_and_pick_up().taken if delivery.id == self.id]
        return self

    def standing(self) -> tuple[int, int, int]:
        progress = self.batch.progress()
        return progress.outstanding, progress.succeeded, progress.failed


def _succeed() -> Member:
    member = Member().claimed()
    assert succeed(member.delivery) == {member.id}
    return member


def _retry() -> Member:
    member = Member().claimed()
    fail(member.delivery, delay=60)
    return member


def _due_again() -> Member:
    member = _retry()
    make_due(member.id)
    lifecycle.move_due(["default"])
    return member


def _snooze() -> Member:
    member = Member().claimed()
    snooze(member.delivery)
    return member


def _snooze_limited() -> Member:
    member = Member(one, "a").picked_up()
    snooze(member.delivery)
    assert BlockedExecution.objects.filter(batch_id=member.batch.id).exists()
    return member


def _dead_letter() -> Member:
    member = Member().claimed()
    give_up(member.delivery)
    assert DeadLetter.objects.get().batch_id == member.batch.id
    return member


def _dead_letter_of_a_priority() -> Member:
    member = Member(noop.using(priority=7))
    (member.delivery,) = claim(levels=[Level("default", 7)])
    give_up(member.delivery)
    return member


def _settled_twice() -> Member:
    member = _dead_letter()
    assert give_up(member.delivery) == {}
    return member


def _hand_back() -> Member:
    member = Member().claimed()
    hand_back(member.delivery)
    return member


def _reap() -> Member:
    member = Member().claimed()
    lifecycle.reap([HeldMessage(id=member.id, delivery=member.delivery.delivery, started=True, running=True)])
    return member


def _lapse() -> Member:
    member = Member().claimed()
    lapse(member.id)
    assert release(member.id) == [member.id]
    return member


def _renew() -> Member:
    member = Member().claimed()
    heartbeat.renew(holding(member.delivery), LEASE)
    return member


def _park_for_a_key() -> Member:
    alone.enqueue("a")
    claim_and_pick_up()
    member = Member(alone, "a")
    assert [delivery.id for delivery in claim_and_pick_up().parked] == [member.id]
    return member


def _drop_at_pick_up() -> Member:
    alone_or_none.enqueue("a")
    claim_and_pick_up()
    member = Member(alone_or_none, "a")
    assert [delivery.id for delivery in claim_and_pick_up().dropped] == [member.id]
    return member


def _presume_dead() -> Member:
    member = Member(one, "a").picked_up()
    silence(member.delivery)
    assert lifecycle.presume_dead(10) == 1
    return member


def _released_by_a_person() -> Member:
    member = Member(one, "a").picked_up()
    assert concurrency.release("a", even_running=True) == 1
    return member


def _discard_ready() -> Member:
    member = Member()
    assert lifecycle.discard([member.id]).settled == {member.id}
    return member


def _discard_delayed() -> Member:
    member = Member(after=60.0)
    assert lifecycle.discard([member.id]).settled == {member.id}
    return member


def _behind_another() -> Member:
    one.enqueue("a")
    return Member(one, "a")


def _discard_parked_job() -> Member:
    member = _behind_another()
    assert lifecycle.discard([member.id]).settled == {member.id}
    return member


def _discard_parked_key() -> Member:
    member = _behind_another()
    assert concurrency.discard_parked("a") == 1
    return member


def _marked() -> Member:
    member = Member().claimed()
    assert lifecycle.discard([member.id]).marked == {member.id}
    return member


def _marked_limited() -> Member:
    member = Member(one, "a").picked_up()
    assert lifecycle.discard([member.id]).marked == {member.id}
    return member


def _marked_then(end: Callable[[Any], Any]) -> Callable[[], Member]:
    def bring() -> Member:
        member = _marked()
        end(member.delivery)
        return member

    return bring


def _marked_then_lapsed() -> Member:
    member = _marked()
    lapse(member.id)
    release(member.id)
    return member


def _marked_limited_then_snoozed() -> Member:
    member = _marked_limited()
    snooze(member.delivery)
    return member


def _hard_timeout(most: int) -> Callable[[], Member]:
    def bring() -> Member:
        member = Member().claimed()
        lifecycle.fail_timed_out(member.id, member.delivery.delivery, max_attempts=most, ran_for=1.0, worker="w")
        return member

    return bring


def _redriven() -> Member:
    member = _dead_letter()
    redriven = lifecycle.redrive([member.id])
    assert (redriven.ids, redriven.members) == ([member.id], {member.id: member.batch.id})
    return member


def _redriven_and_succeeded() -> Member:
    member = _redriven()
    (delivery,) = [delivery for delivery in claim() if delivery.id == member.id]
    succeed(delivery)
    return member


def _redriven_limited() -> Member:
    member = Member(one, "a").picked_up()
    give_up(member.delivery)
    assert lifecycle.redrive([member.id]).members == {member.id: member.batch.id}
    return member


def _dead_and_discarded() -> Member:
    member = _dead_letter()
    lifecycle.discard_dead([member.id])
    return member


ROWS: list[tuple[Callable[[], Member], tuple[int, int, int]]] = [
    (Member, OUTSTANDING),
    (_succeed, SUCCEEDED),
    (_retry, OUTSTANDING),
    (_due_again, OUTSTANDING),
    (_snooze, OUTSTANDING),
    (_snooze_limited, OUTSTANDING),
    (_dead_letter, FAILED),
    (_dead_letter_of_a_priority, FAILED),
    (_settled_twice, FAILED),
    (_hand_back, OUTSTANDING),
    (_reap, OUTSTANDING),
    (_lapse, OUTSTANDING),
    (_renew, OUTSTANDING),
    (_behind_another, OUTSTANDING),
    (_park_for_a_key, OUTSTANDING),
    (_drop_at_pick_up, FAILED),
    (_presume_dead, OUTSTANDING),
    (_released_by_a_person, OUTSTANDING),
    (_discard_ready, FAILED),
    (_discard_delayed, FAILED),
    (_discard_parked_job, FAILED),
    (_discard_parked_key, FAILED),
    (_marked, OUTSTANDING),
    (_marked_then(succeed), SUCCEEDED),
    (_marked_then(fail), FAILED),
    (_marked_then(give_up), FAILED),
    (_marked_then(hand_back), FAILED),
    (_marked_then_lapsed, FAILED),
    (_marked_limited_then_snoozed, FAILED),
    (_hard_timeout(5), OUTSTANDING),
    (_hard_timeout(1), FAILED),
    (_redriven, FAILED),
    (_redriven_and_succeeded, FAILED),
    (_redriven_limited, FAILED),
    (_dead_and_discarded, FAILED),
]


@pytest.mark.parametrize(("bring", "expected"), ROWS, ids=lambda value: getattr(value, "__qualname__", None))
def test_a_member_is_counted_once_where_it_leaves_and_is_outstanding_until_then(bring, expected):
    member = bring()
    assert member.standing() == expected
    live = sum(model.objects.filter(batch_id=member.batch.id).count() for model in LIVE)
    assert live == expected[0]
    ends = {OUTSTANDING: {}, SUCCEEDED: {"finish": 1, "success": 1}, FAILED: {"finish": 1, "failure": 1}}
    assert called() == ends[expected]


def test_a_redriven_member_is_no_member_any_more():
    member = _redriven()
    assert Message.objects.get(id=member.id).batch_id is None


def test_what_was_archived_still_says_of_which_batch_it_was():
    member = _succeed()
    assert Archived.objects.get(id=member.id).batch_id == member.batch.id


@pytest.mark.proves("settled-in-one-transaction")
def test_a_settlement_that_is_rolled_back_counts_nothing():
    member = Member().claimed()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        succeed(member.delivery)
        raise ZeroDivisionError
    assert member.standing() == OUTSTANDING
    assert succeed(member.delivery) == {member.id}
    assert member.standing() == SUCCEEDED


def test_a_settlement_that_is_repeated_counts_once():
    member = Member().claimed()
    succeed(member.delivery)
    assert succeed(member.delivery) == set()
    assert (member.standing(), called()) == (SUCCEEDED, {"finish": 1, "success": 1})


def test_a_parked_member_goes_on_and_is_counted_when_it_ends():
    member = _snooze_limited()
    make_parked_due(member.id)
    lifecycle.move_due(["default"])
    succeed(member.picked_up().delivery)
    assert member.standing() == SUCCEEDED


def test_discard_of_a_queued_a_running_and_a_parked_member_ends_the_batch():
    with Batch(**CALLBACKS) as batch:
        running = int(one.enqueue("a").id)
        parked = int(one.enqueue("a").id)
        queued = int(noop.enqueue().id)
    deliveries = {delivery.id: delivery for delivery in claim_and_pick_up().taken}
    hand_back(deliveries[queued])
    discarded = lifecycle.discard([running, parked, queued])
    assert (discarded.settled, discarded.marked, called()) == ({parked, queued}, {running}, {})
    fail(deliveries[running])
    assert (batch.progress().failed, called()) == (3, {"finish": 1, "failure": 1})


# --- repairs and retention ----------------------------------------------------------------------------


def sweep() -> int:
    return BatchEnder().sweep()


@pytest.mark.parametrize("table", ["pgbus_messages", "pgbus_delayed", "pgbus_blocked_executions"])
def test_members_deleted_by_hand_are_counted_as_failed_once_none_is_left(table):
    one.enqueue("a")
    with Batch(**CALLBACKS) as batch:
        noop.enqueue()
        noop.using(run_after=timedelta(hours=1)).enqueue()
        one.enqueue("a")
    execute(f"DELETE FROM {table} WHERE batch_id IS NOT NULL")
    assert (sweep(), batch.progress().outstanding) == (0, 3)  # others are still there
    for other in ("pgbus_messages", "pgbus_delayed", "pgbus_blocked_executions"):
        execute(f"DELETE FROM {other} WHERE batch_id IS NOT NULL")
    assert sweep() == 1
    assert (batch.progress().failed, called()) == (3, {"finish": 1, "failure": 1})
    assert sweep() == 0


def test_the_sweep_says_what_it_repaired(caplog):
    with Batch():
        noop.enqueue()
    execute("DELETE FROM pgbus_messages")
    with caplog.at_level("ERROR", logger="django_pgbus"):
        assert sweep() == 1
    assert "members that are nowhere, and count as failed: 1" in caplog.text


def test_the_sweep_leaves_what_is_outstanding_alone():
    member = Member().claimed()
    assert (sweep(), member.standing()) == (0, OUTSTANDING)


def test_retention_never_removes_a_batch_with_outstanding_members():
    retrying, done = _retry(), _succeed()
    execute("UPDATE pgbus_batches SET created_at = created_at - interval '1 year'")
    execute("UPDATE pgbus_batches SET finished_at = finished_at - interval '1 year'")
    execute("UPDATE pgbus_archive SET finished_at = finished_at - interval '1 year'")
    assert purge_batches() == 1
    assert [*Row.objects.values_list("id", flat=True)] == [retrying.batch.id]
    make_due(retrying.id)
    lifecycle.move_due(["default"])
    succeed(retrying.claimed().delivery)
    assert retrying.standing() == SUCCEEDED
    assert not Row.objects.filter(id=done.batch.id).exists()


def test_counts_of_a_batch_deleted_by_hand_are_purged():
    kept, gone = Member(), Member()
    execute("DELETE FROM pgbus_batches WHERE id = %s", [gone.batch.id])
    assert purge_counts() == 1
    succeed(gone.claimed().delivery)  # its members end all the same
    assert kept.standing() == OUTSTANDING
    assert BatchCount.objects.filter(batch_id=kept.batch.id).exists()


def test_the_key_of_a_batch_deleted_by_hand_is_freed():
    with Batch(key="import") as batch:
        noop.enqueue()
    assert (reap_keys("")[1], free_batch_keys()) == ([], 0)
    execute("DELETE FROM pgbus_batches WHERE id = %s", [batch.id])
    assert free_batch_keys() == 1
    with Batch(key="import"):
        pass


# --- many ---------------------------------------------------------------------------------------------


def test_many_rows_of_counts_are_folded_on_the_way():
    with Batch(**CALLBACKS) as batch:
        for _ in range(150):
            noop.enqueue()
        assert BatchCount.objects.count() == 150
    assert (BatchCount.objects.count(), batch.progress().total) == (0, 150)
    deliveries = claim(limit=200)
    succeed(*deliveries[:50])
    assert (batch.progress().total, batch.progress().succeeded) == (150, 50)
    succeed(*deliveries[50:])
    assert called() == {"finish": 1, "success": 1}
