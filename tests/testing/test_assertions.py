"""What waits can be asserted, and a message that says no tells what does wait."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import TestCase

from django_pgbus.testing import (
    PgbusTestMixin,
    aassert_enqueued,
    aassert_not_enqueued,
    aenqueued,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
    run_enqueued,
)
from tests.testing import tasks

pytestmark = pytest.mark.django_db


def test_what_waits_is_found_by_task_arguments_and_queue():
    first = tasks.note.enqueue((1, 2))
    tasks.note.using(queue_name="slow", run_after=timedelta(days=1)).enqueue(3, loud=True)
    assert [result.id for result in assert_enqueued(tasks.note, args=[(1, 2)])] == [first.id]
    assert_enqueued(tasks.note, args=[[1, 2]], kwargs={}, queue="default", count=1)
    assert_enqueued(tasks.note, kwargs={"loud": True}, queue="slow")
    assert_enqueued("tests.testing.tasks.note", count=2)
    assert_enqueued(tasks.mail, count=0)
    assert_not_enqueued(tasks.mail)
    assert_not_enqueued(tasks.note, args=[4])
    assert [result.args for result in enqueued(tasks.note)] == [[[1, 2]], [3]]
    assert len(enqueued()) == 2


def test_a_failed_assertion_tells_what_waits():
    tasks.note.enqueue(1)
    tasks.login.enqueue("ann", token="s3cr3t-token")
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(tasks.note, args=[2], queue="default")
    assert str(caught.value).splitlines() == [
        "tests.testing.tasks.note with args=[2], queue='default' is enqueued not at all.",
        "    Waiting:",
        "    tests.testing.tasks.note(1) in queue 'default'",
        "    tests.testing.tasks.login('ann', token='********') in queue 'default'",
    ]
    with pytest.raises(AssertionError, match=r"note is enqueued once, not 3 times\."):
        assert_enqueued(tasks.note, count=3)
    with pytest.raises(AssertionError, match=r"note is enqueued once\."):
        assert_not_enqueued(tasks.note)


def test_a_long_line_is_cut():
    for n in range(12):
        tasks.note.enqueue(n)
    with pytest.raises(AssertionError, match="and 2 more"):
        assert_not_enqueued(tasks.note)


def test_nothing_waits():
    with pytest.raises(AssertionError, match=r"not at all\. Nothing waits\."):
        assert_enqueued(tasks.note)
    assert enqueued() == []


def test_what_ran_no_longer_waits_and_what_is_tried_again_does():
    tasks.note.enqueue(1)
    tasks.fails_always.enqueue()
    run_enqueued(raise_failures=False)
    assert_not_enqueued(tasks.note)
    (retry,) = assert_enqueued(tasks.fails_always)
    assert retry.attempts == 1


def test_only_results_of_waiting_tasks_whose_code_is_gone_are_shown_as_stored():
    tasks.note.enqueue(1)
    from django_pgbus.models import Message

    Message.objects.update(task="gone.tasks.note")
    assert_enqueued("gone.tasks.note", args=[1])


class Mixed(PgbusTestMixin, TestCase):
    def test_the_mixin_has_them_as_methods(self) -> None:
        tasks.note.enqueue(1)
        self.assertEnqueued(tasks.note, args=[1])
        assert len(self.enqueued(tasks.note)) == 1
        self.run_enqueued()
        self.assertNotEnqueued(tasks.note)

    async def test_async_twins(self) -> None:
        await tasks.note.aenqueue(1)
        await aassert_enqueued(tasks.note, args=[1])
        await aassert_not_enqueued(tasks.mail)
        assert len(await aenqueued(tasks.note)) == 1
