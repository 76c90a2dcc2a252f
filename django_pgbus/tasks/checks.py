"""
System checks of what `TASKS` and the tasks of a project declare.

They stand here and not in `django_pgbus/checks.py`, which lists all of them, because a backend has to answer Django's
own check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import router

from django_pgbus.conf import database
from django_pgbus.exceptions import InvalidQueue
from django_pgbus.tasks.policy import checked_queue
from django_pgbus.tasks.task import transactional_paths


def check_backend(backend: Any) -> Iterator[CheckMessage]:
    """Yield what is wrong with one entry of TASKS; Django's own check of tasks asks for it."""
    where = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed("django_pgbus"):
        yield Error(
            f"{where} uses PgbusBackend, but its app is not installed.",
            hint='Add "django_pgbus" to INSTALLED_APPS and run migrate.',
            id="pgbus.E006",
        )
    for name in sorted(backend.queues, key=str):
        try:
            checked_queue(name)
        except InvalidQueue as error:
            yield Error(f"{where}['QUEUES']: {error}", hint="Rename the queue.", id="pgbus.E011")
    if backend.options:
        yield Warning(
            f"{where}['OPTIONS'] has no effect: {', '.join(map(str, backend.options))}.",
            hint="The settings of pgbus stand in PGBUS.",
            id="pgbus.W006",
        )


def check_transactional() -> Iterator[CheckMessage]:
    """Yield where transactional tasks and the models of the project are on different aliases (semantics 7.1)."""
    if not transactional_paths:
        return
    alias, tasks = database(), _some(sorted(transactional_paths))
    models = [model for model in apps.get_models() if model._meta.managed and model._meta.app_label != "pgbus"]
    away = sorted(model._meta.label for model in models if router.db_for_write(model) != alias)
    if away and len(away) == len(models):
        yield Error(
            f"Transactional tasks ({tasks}) run in a transaction on {alias!r}, where the project has no models.",
            hint="Put the tables of pgbus on the alias of the models, or leave transactional=True out.",
            id="pgbus.E010",
        )
    elif away:
        yield Warning(
            f"Transactional tasks ({tasks}) run in a transaction on {alias!r}; what they write to {_some(away)} is not "
            "part of it.",
            hint="Make sure that they write none of these, or silence this check.",
            id="pgbus.W003",
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
