"""A task's result says where it is in every state, until retention, also when its code, arguments or backend are gone."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from django_pgbus.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.tasks.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_backends,
)
from django_pgbus.tasks.missing import is_missing
from tests.tasks.examples import add, import_order

pytestmark = pytest.mark.django_db

WORKER, EARLIER = UUID(int=1), UUID(int=2)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = FIRST + timedelta(minutes=1)
THIRD = FIRST + timedelta(minutes=2)


def failure(attempt: int, started_at: datetime = FIRST, worker: UUID | None = EARLIER) -> dict:
    return {
        "exception": "builtins.ValueError",
        "traceback": f"Traceback of attempt {attempt}",
        "worker": str(worker) if worker else None,
        "attempt": attempt,
        "started_at": started_at.isoformat(),
        "failed_at": (started_at + timedelta(seconds=1)).isoformat(),
    }


def row(**values) -> dict:
    return {
        "queue": "default",
        "task": add.module_path,
        "payload": json.dumps({"args": [1], "kwargs": {"b": 2}}),
    } | values


def result_of(stored):
    return task_backends["default"].get_result(str(stored.id))


# --- states -------------------------------------------------------------------------------------------


def test_ready():
    result = result_of(Message.objects.create(**row(priority=3, queue="mail")))
    assert result.status == TaskResultStatus.READY
    assert not result.is_finished
    assert (result.args, result.kwargs) == ([1], {"b": 2})
    assert result.task == add.using(priority=3, queue_name="mail")
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.attempts, result.errors) == (0, [])
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_scheduled():
    result = result_of(Delayed.objects.create(**row(due_at=THIRD)))
    assert result.status == TaskResultStatus.READY
    assert result.attempts == 0


def test_waiting_for_its_next_attempt():
    result = result_of(
        Delayed.objects.create(
            **row(due_at=THIRD, reason="retry", attempts=2, errors=[failure(1), failure(2, SECOND, WORKER)])
        )
    )
    assert result.status == TaskResultStatus.READY
    assert result.worker_ids == [str(EARLIER), str(WORKER)]
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (FIRST, SECOND, None)
    assert [error.traceback for error in result.errors] == ["Traceback of attempt 1", "Traceback of attempt 2"]
    assert result.errors[0].exception_class is ValueError


def test_running():
    result = result_of(
        Message.objects.create(
            **row(attempts=2, errors=[failure(1)], leased_until=THIRD, claimed_at=SECOND, worker=WORKER, started=True)
        )
    )
    assert result.status == TaskResultStatus.RUNNING
    assert result.worker_ids == [str(EARLIER), str(WORKER)]
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (FIRST, SECOND, None)


def test_succeeded():
    result = result_of(
        Archived.objects.create(
            **row(
                outcome="succeeded",
                result="[1, 2]",
                attempts=2,
                errors=[failure(1)],
                worker=WORKER,
                started_at=SECOND,
                finished_at=THIRD,
            )
        )
    )
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.is_finished
    assert result.return_value == [1, 2]
    assert result.worker_ids == [str(EARLIER), str(WORKER)]
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (FIRST, SECOND, THIRD)


def test_dead():
    result = result_of(
        DeadLetter.objects.create(
            **row(
                reason="exhausted",
                attempts=2,
                errors=[failure(1), failure(2, SECOND, WORKER)],
                worker=WORKER,
                started_at=SECOND,
                died_at=THIRD,
            )
        )
    )
    assert result.status == TaskResultStatus.FAILED
    assert result.worker_ids == [str(EARLIER), str(WORKER)]
    assert len(result.errors) == 2
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (FIRST, SECOND, THIRD)
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


@pytest.mark.parametrize("attempts", [0, 1])
def test_discarded(attempts):
    result = result_of(
        Archived.objects.create(
            **row(outcome="discarded", attempts=attempts, worker=WORKER if attempts else None, finished_at=THIRD)
        )
    )
    assert result.status == TaskResultStatus.FAILED
    assert result.worker_ids == [str(WORKER)] * attempts


def test_gone_after_retention():
    stored = Archived.objects.create(**row(outcome="succeeded", result="null"))
    result = result_of(stored)
    stored.delete()
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_refresh_follows_the_task():
    result = add.enqueue(1, b=2)
    Message.objects.all().delete()
    Archived.objects.create(
        **row(id=int(result.id), outcome="succeeded", result="3", attempts=1, worker=WORKER, started_at=FIRST)
    )
    result.refresh()
    assert result.return_value == 3
    assert result.worker_ids == [str(WORKER)]
    assert result == add.get_result(result.id)


# --- history ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 10, 12])
def test_there_is_a_worker_for_each_attempt_even_if_it_is_forgotten(attempts):
    errors = [failure(n) for n in range(1, attempts + 1)][-10:]
    result = result_of(DeadLetter.objects.create(**row(reason="exhausted", attempts=attempts, errors=errors)))
    assert result.attempts == attempts
    assert result.worker_ids == [""] * (attempts - len(errors)) + [str(EARLIER)] * len(errors)


def test_after_a_redrive_attempts_count_anew():
    history = [failure(1), failure(2)]
    waiting = result_of(Message.objects.create(**row(attempts=0, errors=history)))
    running = result_of(
        Message.objects.create(**row(attempts=1, errors=history, leased_until=THIRD, claimed_at=THIRD, worker=WORKER))
    )
    assert waiting.worker_ids == []
    assert running.worker_ids == [str(WORKER)]
    assert len(running.errors) == 2


def test_a_run_whose_worker_was_lost_has_no_name():
    result = result_of(Message.objects.create(**row(attempts=1, errors=[failure(1, worker=None)])))
    assert result.worker_ids == [""]


# --- what is gone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["nowhere.tasks.gone", "tests.tasks.examples.gone", "tests.tasks.examples.not_a_task"])
def test_a_task_whose_code_is_gone_can_still_be_read(path):
    stored = Message.objects.create(**row(task=path, queue="imports", priority=-3))
    result, again = result_of(stored), result_of(stored)
    assert is_missing(result.task)
    assert result.task.module_path == path
    assert result.task.name == path.rpartition(".")[2]
    assert (result.task.queue_name, result.task.priority) == ("imports", -3)
    assert result.args == [1]
    assert result == again
    assert copy.deepcopy(result) == result
    result.refresh()
    with pytest.raises(TaskResultMismatch, match=path):
        add.get_result(result.id)


def test_the_stand_in_can_neither_be_called_nor_enqueued():
    stand_in = result_of(Message.objects.create(**row(task="nowhere.tasks.gone"))).task
    with pytest.raises(ImportError, match=r"nowhere.tasks.gone cannot be imported"):
        stand_in.call(1)
    with pytest.raises(InvalidTask, match=r"nowhere.tasks.gone, where there is nothing"):
        stand_in.enqueue(1)


@pytest.mark.parametrize("breaks", ["RuntimeError('not today')", "SystemExit(3)"])
def test_a_module_that_breaks_on_import_does_not_break_the_result(breaks, tmp_path, monkeypatch):
    (tmp_path / "breaks_loudly.py").write_text(f"raise {breaks}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_missing(result_of(Message.objects.create(**row(task="breaks_loudly.add"))).task)


def test_arguments_that_cannot_be_read_give_none():
    result = result_of(Message.objects.create(**row(payload='"poison"')))
    assert (result.args, result.kwargs) == ([], {})
    assert result.status == TaskResultStatus.READY


def test_what_the_settings_no_longer_allow_can_still_be_read(settings):
    stored = Message.objects.create(**row(queue="closed", backend="former"))
    settings.TASKS = {"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": ["default"]}}
    result = result_of(stored)
    assert result.task.queue_name == "closed"
    assert result.backend == "former"
    assert result.task.backend == "default"  # where refresh() can find it
    result.refresh()


def test_results_can_be_pickled():
    result = import_order.enqueue(1)
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert again.task == import_order


def test_without_use_tz_times_are_naive(settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "UTC"
    stored = Delayed.objects.create(**row(due_at=THIRD.replace(tzinfo=None), attempts=1, errors=[failure(1)]))
    result = result_of(stored)
    assert result.enqueued_at.tzinfo is None
    assert result.started_at == FIRST.replace(tzinfo=None)
