"""Batches in a test that commits nothing."""

from __future__ import annotations

from django.test import TestCase

from django_pgbus import Batch
from django_pgbus.testing import enqueued, run_enqueued
from tests.batches import tasks
from tests.jobs import fails, noop


class Batches(TestCase):
    def test_running_the_members_runs_the_callbacks(self) -> None:
        with Batch(**tasks.CALLBACKS) as batch:
            noop.enqueue()
            noop.enqueue()
        assert [result.task.name for result in run_enqueued()] == ["noop", "noop", "finish", "success"]
        assert batch.progress().finished_at is not None

    def test_one_that_fails_for_good_calls_on_failure(self) -> None:
        with Batch(**tasks.CALLBACKS):
            fails.enqueue()
        run_enqueued(raise_failures=False, include_delayed=True)
        assert (tasks.called(), enqueued()) == ({"finish": 1, "failure": 1}, [])

    def test_an_empty_one_ends_when_the_tasks_are_run(self) -> None:
        with Batch(on_finish=tasks.finish):
            pass
        assert [result.task.name for result in run_enqueued()] == ["finish"]
