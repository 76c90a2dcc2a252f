"""The `TaskResult` of a run, as Django's contract asks for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django_pgbus.tasks.compat import AnyTask, AnyTaskResult, TaskError, TaskResultStatus
from django_pgbus.tasks.masking import MaskedTaskResult


@dataclass(frozen=True, slots=True)
class History:
    """The failed attempts that a message carries; the oldest are dropped beyond ten."""

    entries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def first_started_at(self) -> datetime | None:
        """Return when the oldest remembered attempt began."""
        if not self.entries or not (text := self.entries[0].get("started_at")):
            return None
        return datetime.fromisoformat(text)

    @property
    def errors(self) -> list[TaskError]:
        """Return the failures as Django shows them."""
        return [TaskError(exception_class_path=e["exception"], traceback=e["traceback"]) for e in self.entries]

    def workers(self, attempts: int) -> list[str]:
        """Return the workers of the attempts so far, one for each; empty where it is no longer known."""
        known = [str(entry.get("worker") or "") for entry in self.entries][-attempts:] if attempts > 0 else []
        return [""] * (attempts - len(known)) + known


def history(errors: str | None) -> History:
    """Return the history stored with a message."""
    return History(json.loads(errors)) if errors else History()


def running(
    *,
    task: AnyTask,
    id: int,
    backend: str,
    enqueued_at: datetime,
    now: datetime,
    args: list[Any],
    kwargs: dict[str, Any],
    errors: str | None,
    attempts: int,
    worker: str,
) -> AnyTaskResult:
    """Return the result of an attempt that begins now; `attempts` counts it."""
    past = history(errors)
    return MaskedTaskResult(
        task=task,
        id=str(id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=enqueued_at,
        started_at=past.first_started_at or now,
        last_attempted_at=now,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=past.errors,
        worker_ids=[*past.workers(attempts - 1), worker],
    )
