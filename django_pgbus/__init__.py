"""
Job queue, event bus and event log for Django, in the PostgreSQL you already run.

The public names are imported when they are first asked for: this module is imported before the app registry is ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_pgbus.concurrency.policy import Limit
    from django_pgbus.events.event import Event
    from django_pgbus.events.handlers import subscribe
    from django_pgbus.events.publishing import apublish, apublish_many, publish, publish_many
    from django_pgbus.exceptions import (
        BatchDoesNotExist,
        BatchError,
        BatchFinished,
        ConcurrencyLimitExceeded,
        ConsumeRefused,
        InvalidHandler,
        InvalidKey,
        InvalidPayload,
        InvalidQueue,
        InvalidStream,
        InvalidTopic,
        JobNotUnique,
        Snooze,
        StreamDoesNotExist,
        TaskSuperseded,
        TaskTimeout,
    )
    from django_pgbus.streams.consumers import consume
    from django_pgbus.streams.entry import Entry
    from django_pgbus.streams.stream import Stream
    from django_pgbus.tasks.backend import PgbusBackend
    from django_pgbus.tasks.batch import Batch, acurrent_batch, current_batch
    from django_pgbus.tasks.bulk import aenqueue_many, enqueue_many
    from django_pgbus.tasks.decorators import ensures_uniqueness, limits_concurrency
    from django_pgbus.tasks.task import task
    from django_pgbus.uniqueness.policy import Unique

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchDoesNotExist",
    "BatchError",
    "BatchFinished",
    "ConcurrencyLimitExceeded",
    "ConsumeRefused",
    "Entry",
    "Event",
    "InvalidHandler",
    "InvalidKey",
    "InvalidPayload",
    "InvalidQueue",
    "InvalidStream",
    "InvalidTopic",
    "JobNotUnique",
    "Limit",
    "PgbusBackend",
    "Snooze",
    "Stream",
    "StreamDoesNotExist",
    "TaskSuperseded",
    "TaskTimeout",
    "Unique",
    "acurrent_batch",
    "aenqueue_many",
    "apublish",
    "apublish_many",
    "consume",
    "current_batch",
    "enqueue_many",
    "ensures_uniqueness",
    "limits_concurrency",
    "publish",
    "publish_many",
    "subscribe",
    "task",
]

_HOMES = {
    "Batch": "tasks.batch",
    "BatchDoesNotExist": "exceptions",
    "BatchError": "exceptions",
    "BatchFinished": "exceptions",
    "acurrent_batch": "tasks.batch",
    "current_batch": "tasks.batch",
    "ConcurrencyLimitExceeded": "exceptions",
    "Entry": "streams.entry",
    "ConsumeRefused": "exceptions",
    "consume": "streams.consumers",
    "Event": "events.event",
    "apublish": "events.publishing",
    "apublish_many": "events.publishing",
    "publish": "events.publishing",
    "publish_many": "events.publishing",
    "subscribe": "events.handlers",
    "InvalidHandler": "exceptions",
    "InvalidStream": "exceptions",
    "InvalidTopic": "exceptions",
    "InvalidKey": "exceptions",
    "JobNotUnique": "exceptions",
    "Limit": "concurrency.policy",
    "Unique": "uniqueness.policy",
    "ensures_uniqueness": "tasks.decorators",
    "limits_concurrency": "tasks.decorators",
    "InvalidPayload": "exceptions",
    "InvalidQueue": "exceptions",
    "PgbusBackend": "tasks.backend",
    "Snooze": "exceptions",
    "Stream": "streams.stream",
    "StreamDoesNotExist": "exceptions",
    "TaskSuperseded": "exceptions",
    "TaskTimeout": "exceptions",
    "aenqueue_many": "tasks.bulk",
    "enqueue_many": "tasks.bulk",
    "task": "tasks.task",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
