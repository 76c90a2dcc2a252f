"""`PgbusBackend`: what `TASKS["..."]["BACKEND"]` names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, ParamSpec, TypeVar, cast

from django.conf import settings
from django.utils import timezone

from django_pgbus.exceptions import ConcurrencyLimitExceeded, InvalidPayload, JobNotUnique
from django_pgbus.tasks import lifecycle, outcomes, refusals, results, tracing
from django_pgbus.tasks.blocks import Block, joined
from django_pgbus.tasks.checks import check_backend
from django_pgbus.tasks.compat import (
    TASK_MAX_PRIORITY,
    TASK_MIN_PRIORITY,
    AnyTask,
    AnyTaskResult,
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from django_pgbus.tasks.constraints import NONE, Constraints, bind, declares_any
from django_pgbus.tasks.listeners import is_heard
from django_pgbus.tasks.lookup import checked_path
from django_pgbus.tasks.payload import Payload, prepare
from django_pgbus.tasks.policy import checked_queue
from django_pgbus.tasks.task import PgbusTask, changed

P = ParamSpec("P")
R = TypeVar("R")

MOST_VALID: Final = 1000  # tasks that a backend remembers to be valid; using() makes a new one each time


class PgbusBackend(BaseTaskBackend):
    """
    Tasks in PostgreSQL.

    Nothing here imports a model or touches the database before something is enqueued or looked up: `@task` makes a
    backend while modules are still being imported.
    """

    task_class = PgbusTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._valid: dict[int, AnyTask] = {}  # by identity: comparing two tasks takes longer than validating one
        # What a subclass asks may change from call to call.
        self._remembers = type(self).validate_task is PgbusBackend.validate_task

    def validate_task(self, task: AnyTask) -> None:
        """Raise InvalidTask if no worker could run this task; `run_after` may be a timedelta, as Django documents."""
        checked_queue(task.queue_name)
        _check_priority(task.priority)
        _check_run_after(task.run_after)
        # Django's own check knows moments only.
        super().validate_task(changed(task, run_after=None) if isinstance(task.run_after, timedelta) else task)

    def _validate_once(self, task: AnyTask) -> None:
        """Raise InvalidTask as validate_task(). A task that passed is not asked again: only its `run_after` can go bad."""
        if self._valid.get(id(task)) is task:
            return
        self.validate_task(task)
        if self._remembers and task.run_after is None:
            if len(self._valid) >= MOST_VALID:
                self._valid.clear()
            self._valid[id(task)] = task

    def enqueue(self, task: Task[P, R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[P, R]:
        """
        Store a task in the caller's transaction and return its result.

        Raises InvalidTask, or InvalidPayload naming the argument, before any SQL; JobNotUnique or
        ConcurrencyLimitExceeded where the task says so, and then nothing is stored.
        """
        self._validate_once(task)
        path = checked_path(task)
        arguments = prepare(args, kwargs)
        if not tracing.hooks:
            return self._enqueue(task, path, arguments)
        about = tracing.Sending(operation="send", destination=task.queue_name, task=path)
        with tracing.sending(about):
            result = self._enqueue(task, path, _carrying(arguments, about))
            about.id = result.id
        return result

    def _enqueue(self, task: Task[P, R], path: str, arguments: Payload) -> TaskResult[P, R]:
        block = joined()
        if block is not None or declares_any(task):
            outcome = self._store(task, path, [arguments], block)[0]
            if isinstance(outcome, Exception):
                raise outcome
            return cast("TaskResult[P, R]", outcome)
        enqueued = lifecycle.enqueue(self._work(task, path, arguments.text))
        result = cast("TaskResult[P, R]", results.fresh(task, enqueued, arguments, self.alias))
        if is_heard(task_enqueued, logging.DEBUG):
            task_enqueued.send(type(self), task_result=result)
        return result

    def enqueue_many(
        self, task: AnyTask, rows: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> list[AnyTaskResult | JobNotUnique | ConcurrencyLimitExceeded]:
        """
        Store a task once for each (args, kwargs), and return the results in that order.

        All or none; but each row of a task that is unique or limited has an outcome of its own: where a single
        enqueue would raise JobNotUnique or ConcurrencyLimitExceeded, that error stands in the place of its result.
        Raises InvalidTask, or InvalidPayload naming row and argument, before any SQL.
        """
        self._validate_once(task)
        path = checked_path(task)
        arguments = [_prepared(index, row) for index, row in enumerate(rows)]
        if not tracing.hooks or not arguments:
            return self._store(task, path, arguments, joined())
        about = tracing.Sending(operation="send", destination=task.queue_name, task=path, count=len(arguments))
        with tracing.sending(about):
            return self._store(task, path, [_carrying(one, about) for one in arguments], joined())

    def _store(
        self, task: AnyTask, path: str, arguments: Sequence[Payload], block: Block | None
    ) -> list[AnyTaskResult | JobNotUnique | ConcurrencyLimitExceeded]:
        batch = None if block is None else block.id
        if block is not None and block.refused is not None:
            return [results.dropped(task, given, self.alias, block.refused) for given in arguments]
        if not declares_any(task) and not (block is not None and block.keeps and not block.ended):
            work = self._work(task, path, "", batch=batch)
            enqueued = lifecycle.enqueue_many(work, [one.text for one in arguments])
            made = [results.fresh(task, one, given, self.alias) for one, given in zip(enqueued, arguments, strict=True)]
            if is_heard(task_enqueued, logging.DEBUG):
                for result in made:
                    task_enqueued.send(type(self), task_result=result)
            return list(made)
        works = [self._work(task, path, one.text, bind(task, one.args, one.kwargs), batch=batch) for one in arguments]
        if block is not None:
            block.check(works)
            if block.keeps and (kept := block.keep(task, works, arguments, self.alias, type(self))) is not None:
                return list(kept)
        entered = lifecycle.enter(works)
        return [
            self._entered(task, work, outcome, given)
            for work, outcome, given in zip(works, entered, arguments, strict=True)
        ]

    def _entered(
        self, task: AnyTask, work: outcomes.NewWork, outcome: outcomes.Entered, given: Payload
    ) -> AnyTaskResult | JobNotUnique | ConcurrencyLimitExceeded:
        """Return the result of a constrained task, or the error that says why there is none."""
        if isinstance(outcome, outcomes.Enqueued):
            result = results.fresh(task, outcome, given, self.alias)
            task_enqueued.send(type(self), task_result=result)
            return result
        error = refusals.error_of(work.task, outcome)
        policy = refusals.policy_of(work.constraints, outcome)
        if policy in {"reject", "raise"}:
            return error
        refusals.announce(work.task, outcome, policy)
        if isinstance(error, JobNotUnique) and (found := lifecycle.find(int(error.holder or 0))):
            return results.stored(found, self.alias)
        return results.dropped(task, given, self.alias, error)

    def get_result(self, result_id: str) -> AnyTaskResult:
        """Return the result of a task wherever it is, or raise TaskResultDoesNotExist, also for ids that cannot be."""
        id = results.parsed_id(result_id)
        found = None if id is None else lifecycle.find(id)
        if found is None or found.topic is not None:  # a handler's copy of an event is no task
            raise TaskResultDoesNotExist(result_id)
        return results.stored(found, self.alias)

    def check(self, **kwargs: Any) -> list[Any]:
        """Return what is wrong with this backend's entry in `TASKS`, and whether the app is installed."""
        return list(check_backend(self))

    def _work(
        self, task: AnyTask, path: str, payload: str, constraints: Constraints = NONE, batch: int | None = None
    ) -> outcomes.NewWork:
        return outcomes.NewWork(
            task=path,
            payload=payload,
            queue=task.queue_name,
            priority=int(task.priority),
            backend=self.alias,
            due=_due(task.run_after),
            constraints=constraints,
            batch=batch,
        )


def _carrying(arguments: Payload, about: tracing.Sending) -> Payload:
    return arguments._replace(text=tracing.carried(arguments.text, about.headers))


def _prepared(index: int, row: Any) -> Payload:
    match row:
        case [list() | tuple() as args, Mapping() as kwargs]:
            pass
        case _:
            message = f"rows[{index}] is not a pair (args, kwargs) of a list and a dict."
            raise InvalidPayload(message, path=f"rows[{index}]")
    try:
        return prepare(args, kwargs)
    except InvalidPayload as error:
        raise type(error)(f"rows[{index}]: {error}", path=f"rows[{index}].{error.path}") from None


def _check_priority(priority: Any) -> None:
    # Django's own check lets "5" and NaN fail with a TypeError or ValueError.
    if not isinstance(priority, (int, float)) or priority != priority:
        raise InvalidTask(
            f"priority must be a whole number between {TASK_MIN_PRIORITY} and {TASK_MAX_PRIORITY}, not {priority!r}."
        )


def _check_run_after(run_after: Any) -> None:
    if run_after is None:
        return
    if not isinstance(run_after, (datetime, timedelta)):
        raise InvalidTask(f"run_after must be a datetime or a timedelta, not a {type(run_after).__name__}.")
    try:
        # Python's dates end here, PostgreSQL's go on: it would be stored and could never be read back.
        (datetime.now(UTC) + run_after if isinstance(run_after, timedelta) else run_after).astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidTask("run_after is outside the years 1 to 9999.") from None


def _due(run_after: datetime | timedelta | None) -> datetime | timedelta | None:
    if isinstance(run_after, datetime) and not settings.USE_TZ and timezone.is_naive(run_after):
        return timezone.make_aware(run_after, timezone.get_default_timezone())
    return run_after
