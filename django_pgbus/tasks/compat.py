"""
Django's Task API, from Django itself (6.0 and later) or from the `django-tasks` backport (5.2).

Everything else in this package imports these names from here; where the two spell a name differently, Django's
spelling is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_QUEUE_NAME, task_backends
    from django.tasks import signals as task_signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import (
        DEFAULT_TASK_PRIORITY,
        TASK_MAX_PRIORITY,
        TASK_MIN_PRIORITY,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
    )
    from django.tasks.exceptions import (
        InvalidTask,
        InvalidTaskBackend,
        TaskException,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        import django_tasks
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Django {django.get_version()} has no django.tasks: install the backport with "
            '`pip install "django-pgbus[tasks]"` and add "django_tasks" to INSTALLED_APPS.'
        ) from error
    from django_tasks import signals as task_signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import (
        DEFAULT_TASK_PRIORITY,
        TASK_MAX_PRIORITY,
        TASK_MIN_PRIORITY,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
    )
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskException, TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

    DEFAULT_TASK_BACKEND_ALIAS = django_tasks.DEFAULT_TASK_BACKEND_ALIAS
    DEFAULT_TASK_QUEUE_NAME = django_tasks.DEFAULT_TASK_QUEUE_NAME
    task_backends = django_tasks.task_backends

# Generic for type checkers only: Django's own classes cannot be subscripted.
if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyTaskResult = TaskResult[..., Any]
else:
    AnyTask = Task
    AnyTaskResult = TaskResult

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_PRIORITY",
    "DEFAULT_TASK_QUEUE_NAME",
    "TASK_MAX_PRIORITY",
    "TASK_MIN_PRIORITY",
    "AnyTask",
    "AnyTaskResult",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskException",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_signals",
    "task_started",
]
