"""Tasks that are unique or limited, in a test that commits nothing."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.test import TestCase

from django_pgbus import ConcurrencyLimitExceeded, JobNotUnique, Snooze, limits_concurrency, task
from django_pgbus.models import BlockedExecution, Slot, UniquenessKey
from django_pgbus.queues.line import Line
from django_pgbus.queues.message import Level
from django_pgbus.tasks import lifecycle
from django_pgbus.testing import assert_enqueued, assert_not_enqueued, enqueued, run_enqueued
from tests.constrained import alone_and_one, alone_or_none, one, one_or_error, unique


@limits_concurrency(to=1, key=lambda key: key)
@task
def snoozes_once(key: str) -> None:
    snoozed.append(key)
    if len(snoozed) == 1:
        raise Snooze(60)


snoozed: list[str] = []


def nothing_held() -> bool:
    return not any(model.objects.exists() for model in (BlockedExecution, Slot, UniquenessKey))


class Constrained(TestCase):
    def test_parked_tasks_wait_and_are_run_one_after_the_other(self) -> None:
        ids = [one.enqueue("a", number).id for number in range(3)]
        assert_enqueued(one, args=["a", 2])
        assert [result.id for result in enqueued(one)] == ids
        assert [result.id for result in run_enqueued()] == ids
        assert_not_enqueued(one)
        assert nothing_held()

    def test_what_a_refused_enqueue_needs_is_free_once_the_first_has_run(self) -> None:
        for constrained, refusal in ((unique, JobNotUnique), (one_or_error, ConcurrencyLimitExceeded)):
            constrained.enqueue("a")
            with pytest.raises(refusal):
                constrained.enqueue("a")
            assert len(run_enqueued()) == 1
            constrained.enqueue("a")
            assert len(run_enqueued()) == 1

    def test_slot_and_key_are_taken_together(self) -> None:
        for _ in range(2):
            alone_and_one.enqueue("a", "b")
        assert len(run_enqueued()) == 2
        assert nothing_held()

    def test_a_key_that_somebody_holds_is_respected(self) -> None:
        first = alone_or_none.enqueue("a")
        (held,) = lifecycle.claim(Line(), [Level("default", 0)], 1, uuid.uuid4(), 30)
        assert lifecycle.pick_up([held]).taken
        second = alone_or_none.enqueue("a")
        assert run_enqueued() == []
        assert (alone_or_none.get_result(first.id).status, alone_or_none.get_result(second.id).status) == (
            "RUNNING",
            "FAILED",
        )

    def test_a_parked_task_that_is_not_due_is_run_when_asked_for(self) -> None:
        later = one.using(run_after=timedelta(hours=1)).enqueue("a")
        assert run_enqueued() == []
        assert [result.id for result in run_enqueued(include_delayed=True)] == [later.id]

    def test_a_snooze_parks_and_the_next_goes(self) -> None:
        snoozed.clear()
        first, second = snoozes_once.enqueue("a").id, snoozes_once.enqueue("a").id
        assert [result.id for result in run_enqueued()] == [first, second]
        assert [result.id for result in enqueued(snoozes_once)] == [first]
        assert [result.id for result in run_enqueued(include_delayed=True)] == [first]

    def test_a_paused_queue_is_left_alone(self) -> None:
        one.using(queue_name="slow").enqueue("a")
        lifecycle.pause_queue("slow")
        assert run_enqueued() == []
        lifecycle.resume_queue("slow")
        assert len(run_enqueued()) == 1
