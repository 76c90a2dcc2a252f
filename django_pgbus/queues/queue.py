"""The verbs of the line: thin names over `sql.py`, for the transitions in `tasks/lifecycle.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from django_pgbus.exceptions import InvalidQueue
from django_pgbus.postgres.arrays import texts
from django_pgbus.queues import sql

MAX_NAME: Final = 200
FRONT: Final = 5_000  # rows of a level in which to look for what a process holds
RESERVED: Final = frozenset("*,;:!")
CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
RELEASED: Final = "A person released its slot while this attempt ran or was silent; the job runs again."
LOST: Final = "The worker process ended or fell silent while this attempt ran."


def check_name(name: object) -> str:
    """Return the name of a queue; raises InvalidQueue saying what is wrong with it."""
    if not isinstance(name, str):
        raise InvalidQueue(f"A queue's name is a text, not a {type(name).__name__}.")
    if problem := _problem(name):
        raise InvalidQueue(f"The queue name {name[:50]!r} {problem}.")
    return name


@lru_cache(maxsize=256)
def _problem(name: str) -> str | None:
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if CONTROL.search(name):
        return "contains a control character or half of a surrogate pair"
    if name != name.strip():
        return "begins or ends with white space"
    if reserved := sorted(set(name) & RESERVED):
        return f"contains {reserved[0]!r}, which has a meaning in `runworker --queues`"
    return None


def send(queue: str, priority: int, task: str, backend: str, payload: str) -> Any:
    """Put one message into the line and return (id, position, microseconds since 1970)."""
    return sql.SEND.tuples(queue=queue, priority=priority, task=task, backend=backend, payload=payload)[0]


def send_many(
    queue: str, priority: int, task: str, backend: str, payloads: Sequence[str], batch: int | None = None
) -> list[tuple[Any, ...]]:
    """Put messages into the line and return (id, position, microseconds since 1970) of each, in their order."""
    rows = sql.SEND_MANY.tuples(
        queue=queue, priority=priority, task=task, backend=backend, payloads=texts(payloads), batch=batch
    )
    return sorted(rows)


def send_later(
    queue: str,
    priority: int,
    task: str,
    backend: str,
    payloads: Sequence[str],
    due: datetime | timedelta,
    batch: int | None = None,
) -> list[Any]:
    """Put messages among the delayed and return (id, position or None, enqueued_at, due_in) of each."""
    return sql.SEND_LATER.rows(
        queue=queue,
        priority=priority,
        task=task,
        backend=backend,
        payloads=texts(payloads),
        batch=batch,
        due_at=due if isinstance(due, datetime) else None,
        due_in=due if isinstance(due, timedelta) else None,
    )


def held_by(worker: UUID) -> list[tuple[int, int]]:
    """Return (id, delivery) of what this process holds among the first of each level; the rest waits for its lease."""
    return sql.HELD_BY.tuples(worker=worker, limit=FRONT)


def pause(queue: str, by: str = "") -> None:
    """Stop claims from a queue within a second; what runs finishes. Locks: queue_states."""
    sql.PAUSE.count(queue=check_name(queue), by=by[:200])


def resume(queue: str) -> bool:
    """Let a paused queue be claimed from again and return whether it was paused. Locks: queue_states."""
    return sql.RESUME.count(queue=check_name(queue)) > 0
