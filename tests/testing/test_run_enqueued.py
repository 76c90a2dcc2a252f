"""`run_enqueued` runs what was enqueued, in the transaction of the test, and leaves it usable."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DataError, connection, transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone, translation

from django_pgbus import enqueue_many
from django_pgbus.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.compat import TaskResultStatus, task_finished
from django_pgbus.testing import arun_enqueued, run_enqueued
from tests.testing import tasks


class _Clean:
    def setUp(self) -> None:
        tasks.log.clear()


class InATestCase(_Clean, TestCase):
    databases = {"default", "other"}

    def test_runs_what_was_enqueued_in_the_order_of_the_line(self) -> None:
        first = tasks.note.enqueue(1)
        second = tasks.note.using(priority=5).enqueue(2)
        results = run_enqueued()
        assert tasks.log == [2, 1]
        assert [result.id for result in results] == [second.id, first.id]
        assert [result.return_value for result in results] == [2, 1]
        assert results[0].attempts == 1
        assert not Message.objects.exists()
        assert Archived.objects.count() == 2
        assert run_enqueued() == []

    def test_a_task_that_is_async_runs_on_the_connection_of_the_test(self) -> None:
        for task in (tasks.tells_backend, tasks.tells_backend_async):
            task.enqueue()
        mine = tasks.backend_pid()
        assert [result.return_value for result in run_enqueued()] == [mine, mine]
        tasks.adds_group_async.enqueue("a")
        run_enqueued()
        assert Group.objects.filter(name="a").exists()

    def test_a_failed_attempt_is_stored_and_its_own_exception_raised(self) -> None:
        failing = tasks.fails_after_writing.enqueue("a")
        tasks.note.enqueue(1)
        with pytest.raises(ValueError, match=r"^a$") as caught:
            run_enqueued()
        assert "fails_after_writing" in [entry.name for entry in caught.traceback]
        delayed = Delayed.objects.get()
        assert (str(delayed.id), delayed.attempts, delayed.reason) == (failing.id, 1, "retry")
        assert Group.objects.filter(name="a").exists(), "in a worker it would have been committed"
        assert tasks.log == []
        run_enqueued()
        assert tasks.log == [1]

    def test_without_raising_everything_runs_and_the_results_tell(self) -> None:
        tasks.fails_after_writing.enqueue("a")
        tasks.note.enqueue(1)
        failed, succeeded = run_enqueued(raise_failures=False)
        assert failed.status == TaskResultStatus.READY
        assert failed.errors[0].exception_class is ValueError
        assert succeeded.status == TaskResultStatus.SUCCESSFUL

    def test_failed_sql_leaves_the_transaction_usable(self) -> None:
        Group.objects.create(name="kept")
        tasks.fails_in_sql.enqueue()
        tasks.note.enqueue(1)
        results = run_enqueued(raise_failures=False)
        assert [result.status for result in results] == [TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL]
        assert DeadLetter.objects.get().errors[0]["exception"] == "django.db.utils.IntegrityError"
        assert list(Group.objects.values_list("name", flat=True)) == ["kept"]

    def test_failed_sql_that_django_did_not_see_leaves_the_transaction_usable(self) -> None:
        Group.objects.create(name="kept")
        tasks.fails_in_raw_sql.enqueue()
        with pytest.raises(DataError, match="division by zero"):
            run_enqueued()
        assert list(Group.objects.values_list("name", flat=True)) == ["kept"]
        assert DeadLetter.objects.get().errors[0]["exception"] == "django.db.utils.DataError"

    def test_failed_sql_on_another_alias_leaves_that_transaction_usable(self) -> None:
        Group.objects.using("other").create(name="kept")
        tasks.fails_in_sql_elsewhere.enqueue()
        run_enqueued(raise_failures=False)
        assert list(Group.objects.using("other").values_list("name", flat=True)) == ["kept"]

    def test_a_swallowed_failure_of_sql_does_not_undo_silently(self) -> None:
        tasks.swallows_sql_failure.enqueue()
        with pytest.raises(transaction.TransactionManagementError, match="TransactionTestCase"):
            run_enqueued()
        assert not Group.objects.exists()

    def test_receivers_of_a_failure_find_a_usable_transaction(self) -> None:
        def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
            Group.objects.create(name=f"audit {task_result.status}")

        task_finished.connect(receive)
        self.addCleanup(task_finished.disconnect, receive)
        tasks.fails_in_sql.enqueue()
        run_enqueued(raise_failures=False)
        assert Group.objects.get().name == "audit FAILED"

    def test_transactional_tasks(self) -> None:
        tasks.transactional.enqueue("a")
        tasks.transactional.enqueue("b", fail=True)
        results = run_enqueued(raise_failures=False)
        assert [result.status for result in results] == [TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED]
        assert Group.objects.get().name == "a"

    def test_the_connection_is_never_closed(self) -> None:
        mine = tasks.backend_pid()
        tasks.transactional_that_loses_the_database.enqueue()
        run_enqueued(raise_failures=False)
        assert DeadLetter.objects.count() == 1
        assert tasks.backend_pid() == mine
        assert connection.in_atomic_block

    def test_queries_of_the_test_stay_recorded(self) -> None:
        with self.assertNumQueries(1):
            Group.objects.count()
        with connection.execute_wrapper(lambda execute, *rest: execute(*rest)):
            tasks.note.enqueue(1)
            run_enqueued()

    def test_durable_blocks_are_allowed(self) -> None:
        tasks.durable.enqueue("a")
        run_enqueued()
        assert Group.objects.filter(name="a").exists()

    def test_what_tasks_enqueue_runs_too(self) -> None:
        tasks.chain.enqueue(2)
        assert len(run_enqueued()) == 3
        tasks.achain.enqueue(2)
        assert len(run_enqueued()) == 3
        assert tasks.log == [2, 1, 0, 2, 1, 0]

    def test_a_task_that_enqueues_itself_for_ever_is_named(self) -> None:
        tasks.enqueues_itself.enqueue()
        with pytest.raises(AssertionError, match=r"run 5 tasks and .*enqueues_itself waits still"):
            run_enqueued(limit=5)
        assert Archived.objects.count() == 5
        assert Message.objects.get().leased_until is None

    def test_language_and_time_zone_of_a_task_do_not_leak(self) -> None:
        zone = timezone.get_current_timezone_name()
        with translation.override("fr"):
            tasks.speaks_german.enqueue()
            tasks.speaks_german_async.enqueue()
            plain, coroutine = run_enqueued()
            assert translation.get_language() == "fr"
            assert timezone.get_current_timezone_name() == zone
        assert plain.return_value == "en-us", "and that of the test is not seen by the task, as in a worker"
        assert coroutine.return_value == "de"

    def test_only_the_queues_asked_for_in_their_order(self) -> None:
        for task, value in ((tasks.note, 1), (tasks.mail, 2), (tasks.note.using(queue_name="mail_slow"), 3)):
            task.enqueue(value)
        run_enqueued("mail")
        assert tasks.log == [2]
        run_enqueued(["mail_*", "default"])
        assert tasks.log == [2, 3, 1]

    def test_a_paused_queue_is_left_alone(self) -> None:
        tasks.mail.enqueue(1)
        lifecycle.pause_queue("mail")
        assert run_enqueued(include_delayed=True) == []
        lifecycle.resume_queue("mail")
        assert len(run_enqueued()) == 1

    def test_what_is_not_due_waits_unless_asked_for(self) -> None:
        tasks.note.using(run_after=timedelta(days=2)).enqueue("later")
        tasks.note.using(run_after=timedelta(days=1)).enqueue("soon")
        tasks.note.using(run_after=timezone.now() - timedelta(days=1)).enqueue("now")
        run_enqueued()
        assert tasks.log == ["now"]
        run_enqueued(include_delayed=True)
        assert tasks.log == ["now", "soon", "later"]

    def test_retries_are_among_the_delayed(self) -> None:
        tasks.fails_always.enqueue()
        (result,) = run_enqueued(include_delayed=True, raise_failures=False)
        assert tasks.log == ["fails", "fails"]
        assert result.status == TaskResultStatus.FAILED
        assert result.attempts == 2

    def test_a_snooze_is_no_failure(self) -> None:
        tasks.snoozes_once.enqueue()
        (result,) = run_enqueued()
        assert result.status == TaskResultStatus.READY
        (result,) = run_enqueued(include_delayed=True)
        assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 1)

    def test_context_and_bulk(self) -> None:
        enqueue_many(tasks.tells_attempt, [([], {})] * 3)
        assert [result.return_value for result in run_enqueued()] == [1, 1, 1]

    def test_system_exit_is_a_failure_and_ctrl_c_is_not_swallowed(self) -> None:
        tasks.exits.enqueue()
        run_enqueued(raise_failures=False)
        assert DeadLetter.objects.count() == 1
        tasks.interrupted.enqueue()
        with pytest.raises(KeyboardInterrupt):
            run_enqueued(raise_failures=False)

    def test_a_task_that_cannot_be_imported_raises_its_import_error(self) -> None:
        tasks.note.enqueue(1)
        Message.objects.update(task="tests.testing.tasks.deleted")
        with pytest.raises(ImportError, match="deleted"):
            run_enqueued()

    def test_hooks_after_commit_run_where_the_test_captures_them(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: tasks.on_commit_enqueues.enqueue(7))
        with self.captureOnCommitCallbacks(execute=True):
            run_enqueued()
        run_enqueued()
        assert tasks.log == [7]

    def test_in_an_atomic_block_of_the_test(self) -> None:
        with transaction.atomic():
            tasks.fails_in_sql.enqueue()
            run_enqueued(raise_failures=False)
            tasks.durable.enqueue("a")
            run_enqueued()
        assert Group.objects.get().name == "a"

    async def test_in_an_async_test(self) -> None:
        await tasks.adds_group_async.aenqueue("a")
        await tasks.adds_group.aenqueue("b")
        results = await arun_enqueued()
        assert len(results) == 2
        assert await Group.objects.acount() == 2


class NothingIsLeftBehind(_Clean, TestCase):
    """Both tests see an empty line: what ran in the other one was rolled back with it."""

    def test_one(self) -> None:
        self._run()

    def test_other(self) -> None:
        self._run()

    def _run(self) -> None:
        assert not Archived.objects.exists()
        assert not Group.objects.exists()
        tasks.adds_group.enqueue("a")
        tasks.adds_group_async.enqueue("b")
        assert len(run_enqueued()) == 2


class InATransactionTestCase(_Clean, TransactionTestCase):
    def test_each_step_commits(self) -> None:
        tasks.on_commit_enqueues.enqueue(7)
        assert len(run_enqueued()) == 2
        assert tasks.log == [7]

    def test_what_a_task_wrote_before_its_sql_failed_stays(self) -> None:
        tasks.fails_in_sql.enqueue()
        tasks.swallows_sql_failure.using(run_after=timedelta(hours=1)).enqueue()
        run_enqueued(raise_failures=False)
        assert Group.objects.get().name == "lost"
        Group.objects.all().delete()
        run_enqueued(include_delayed=True)
        assert Group.objects.get().name == "lost"

    def test_transactional_tasks(self) -> None:
        tasks.transactional.enqueue("a", fail=True)
        with pytest.raises(ValueError, match=r"^a$"):
            run_enqueued()
        assert not Group.objects.exists()
        assert DeadLetter.objects.count() == 1
