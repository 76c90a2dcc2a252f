"""
System checks of what `TASKS` and the tasks of a project declare.

They stand here and not in `django_pgbus/checks.py`, which lists all of them, because a backend has to answer Django's
own check.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, Final

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import router

from django_pgbus.concurrency.policy import Limit
from django_pgbus.conf import database
from django_pgbus.exceptions import InvalidQueue
from django_pgbus.tasks.policy import checked_queue
from django_pgbus.tasks.task import limits, transactional_paths

# What a function that depends on its arguments, or on anything else, cannot do without; each Python names more of them.
DEPENDS: Final = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME", "MAKE_FUNCTION")
NO_PLAIN_CALL: Final = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


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


def check_limits() -> Iterator[CheckMessage]:
    """
    Yield the keys that one task waits for and another is refused for (semantics 4.2).

    An enqueue under `discard` or `raise` locks its key until the caller's transaction ends: whoever shares the key
    under `block`, to wait for nobody, would wait for that. Only keys that no argument changes can be known here.
    """
    by_key: dict[str, dict[str, list[str]]] = {}
    for path, limit in sorted(limits.items()):
        if (key := _constant_key(path, limit)) is not None:
            by_key.setdefault(key, {}).setdefault(limit.on_conflict, []).append(path)
    for key, paths in by_key.items():
        waiting = paths.pop("block", [])
        if waiting and paths:
            refused = [path for others in paths.values() for path in others]
            yield Error(
                f"The limit {key!r} is shared by tasks that are parked when it is full ({_some(waiting)}) and tasks that "
                f"are refused then ({_some(refused)}): while a transaction that enqueued one of the latter is open, "
                "nothing parked under the key goes on.",
                hint="Give them the same on_conflict, or keys of their own.",
                id="pgbus.E014",
            )


def _constant_key(path: str, limit: Limit) -> str | None:
    """Return the key of a limit if every job of the task has the same, else None."""
    if limit.key is None:
        return path
    if not isinstance(limit.key, FunctionType) or limit.key.__code__.co_flags & NO_PLAIN_CALL:
        return None
    if any(name in step.opname for step in dis.get_instructions(limit.key) for name in DEPENDS):
        return None
    parameters = inspect.signature(limit.key, follow_wrapped=False).parameters.values()
    needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
    by_name = {parameter.name: None for parameter in needed if parameter.kind is parameter.KEYWORD_ONLY}
    by_place = [p for p in needed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    try:
        key: object = limit.key(*[None] * len(by_place), **by_name)
    except Exception:  # it raises whatever it is given: the enqueue will say so
        return None
    return key if isinstance(key, str) else None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
