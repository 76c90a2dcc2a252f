"""
Where a task is, as Django's `TaskResult`.

READY is in the line, delayed, parked, or waiting for its next attempt; FAILED is a dead letter or discarded.
`worker_ids` has one entry for each attempt, empty where history no longer knows the worker. A task that cannot be
imported here gives a stand-in (`missing.py`), arguments that cannot be read give none: a result can always be shown.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from django_pgbus.exceptions import InvalidPayload
from django_pgbus.tasks.compat import AnyTask, AnyTaskResult, TaskError, TaskResultStatus, task_backends
from django_pgbus.tasks.lookup import find_task
from django_pgbus.tasks.masking import MaskedTaskResult
from django_pgbus.tasks.missing import missing_task
from django_pgbus.tasks.outcomes import Enqueued
from django_pgbus.tasks.payload import Payload, decode, decode_result
from django_pgbus.tasks.running import History, history
from django_pgbus.tasks.task import changed

STATUS: Final = {
    "ready": TaskResultStatus.READY,
    "delayed": TaskResultStatus.READY,
    "parked": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "discarded": TaskResultStatus.FAILED,
    "dead": TaskResultStatus.FAILED,
}

_LARGEST_ID: Final = 2**63 - 1


def parsed_id(result_id: object) -> int | None:
    """Return the number of a result's id, or None for what no id of ours looks like."""
    if isinstance(result_id, bool) or not isinstance(result_id, (str, int)):
        return None
    text = str(result_id) if isinstance(result_id, str) or abs(result_id) <= _LARGEST_ID else ""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and text[0] != "0"):
        return None
    number = int(text)
    return number if number <= _LARGEST_ID else None


def fresh(task: AnyTask, enqueued: Enqueued, arguments: Payload, backend: str) -> AnyTaskResult:
    """Return the result of a task that was just enqueued."""
    return MaskedTaskResult(
        task=task,
        id=str(enqueued.id),
        status=TaskResultStatus.READY,
        enqueued_at=moment(enqueued.enqueued_at),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=arguments.args,
        kwargs=arguments.kwargs,
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def dropped(task: AnyTask, arguments: Payload, backend: str, error: Exception) -> AnyTaskResult:
    """Return the result of a task that its own policy dropped at enqueue; nothing is stored under its id."""
    now = timezone.now()
    return MaskedTaskResult(
        task=task,
        id=str(uuid.uuid4()),
        status=TaskResultStatus.FAILED,
        enqueued_at=moment(now),
        started_at=None,
        last_attempted_at=None,
        finished_at=moment(now),
        args=arguments.args,
        kwargs=arguments.kwargs,
        backend=backend,
        errors=[_refusal(error)],
        worker_ids=[],
    )


def drop(result: AnyTaskResult, error: Exception) -> None:
    """Turn a result of `fresh` into one of `dropped`: its task was not stored after all."""
    result.errors.append(_refusal(error))
    object.__setattr__(result, "status", TaskResultStatus.FAILED)
    object.__setattr__(result, "finished_at", moment(timezone.now()))


def _refusal(error: Exception) -> TaskError:
    kind = type(error)
    return TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=str(error))


def stored(found: Any, alias: str) -> AnyTaskResult:
    """Return the result of a row of `lifecycle.find`, asked for through the backend `alias`."""
    try:
        args, kwargs = decode(found.payload)
    except InvalidPayload:
        args, kwargs = [], {}
    past = history(found.errors)
    result = MaskedTaskResult(
        task=stored_task(found, alias),
        id=str(found.id),
        status=STATUS[found.state],
        enqueued_at=moment(found.enqueued_at),
        started_at=moment(past.first_started_at or found.started_at),
        last_attempted_at=moment(found.started_at or _last_start(past)),
        finished_at=moment(found.finished_at),
        args=args,
        kwargs=kwargs,
        backend=found.backend,
        errors=past.errors,
        worker_ids=_workers(found, past),
    )
    if found.state == "succeeded":
        object.__setattr__(result, "_return_value", decode_result(found.result))
    return result


def stored_task(found: Any, alias: str) -> AnyTask:
    """Return the task as it was enqueued, or a stand-in; through `alias` where its own backend is not configured."""
    as_stored = {
        "priority": found.priority,
        "queue_name": found.queue,
        "backend": found.backend if found.backend in task_backends.settings else alias,
    }
    try:
        return changed(find_task(found.task), **as_stored)
    except (Exception, SystemExit):  # importing it runs code of the project
        return missing_task(found.task, **as_stored)


def _workers(found: Any, past: History) -> list[str]:
    if not found.attempts:
        return []
    # The attempt that runs or succeeded is not among the failures; one that was discarded may be.
    recorded = past.entries and past.entries[-1].get("attempt") == found.attempts
    if found.worker and (found.state in {"running", "succeeded"} or not recorded):
        return [*past.workers(found.attempts - 1), str(found.worker)]
    return past.workers(found.attempts)


def _last_start(past: History) -> datetime | None:
    text = past.entries[-1].get("started_at") if past.entries else None
    return datetime.fromisoformat(text) if text else None


def moment(at: datetime | None) -> datetime | None:
    """Return a time as the project keeps times: naive in its time zone where USE_TZ is off."""
    if at is None or settings.USE_TZ or timezone.is_naive(at):
        return at
    return timezone.make_naive(at)
