"""The subscriptions table: written from the code when workers start and after `migrate`, read by every publish."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

from django.db import transaction

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.events import sql
from django_pgbus.events.handlers import Handler, handler_at, handlers, renamed
from django_pgbus.events.topics import compiled
from django_pgbus.postgres import retrying

MOST: Final = 10_000
PATIENCE: Final = "250ms"


def declare(declared: Iterable[Handler] | None = None, *, patience: str | None = None) -> int:
    """
    Write the subscriptions of handlers (None: all that this process has loaded) and return how many there are.

    A handler's patterns replace those that were stored of it; those of handlers that are not given stay as they are:
    they may belong to another deployable. Of all, those that are here under another name now are removed: else they would
    get each event twice. `patience` is how long to wait for whoever has a subscription locked (PostgreSQL's `lock_timeout`,
    whose error it is then). Locks: subscriptions.
    """
    chosen = {handler.path: handler for handler in (handlers.values() if declared is None else declared)}
    rows = [(path, pattern, chosen[path]) for path in sorted(chosen) for pattern in sorted(chosen[path].patterns)]
    if not rows:
        return 0
    patterns = [compiled(pattern) for _, pattern, _ in rows]
    paths = [path for path, _, _ in rows]

    def transition() -> None:
        with transaction.atomic(using=database()):
            renamed_ones = [] if declared is not None else _with_another_name()
            sql.LOCK_SUBSCRIPTIONS.tuples(handlers=[*paths, *renamed_ones], patience=patience)
            sql.DROP_OTHERS.count(handlers=paths, patterns=[pattern.text for pattern in patterns])
            sql.DECLARE.count(
                patterns=[pattern.text for pattern in patterns],
                handlers=paths,
                queues=[handler.queue for *_, handler in rows],
                priorities=[handler.priority for *_, handler in rows],
                idempotents=[handler.idempotent for *_, handler in rows],
                prefixes=[pattern.prefix for pattern in patterns],
                suffixes=[pattern.suffix for pattern in patterns],
                regexes=[pattern.regex for pattern in patterns],
            )
            for path in renamed_ones:
                sql.UNBIND.tuples(handler=path, pattern=None)

    retrying(transition)
    signals.subscriptions_declared.send_robust(sender=None, count=len(rows))
    return len(rows)


def declare_at_start() -> int:
    """
    Write the subscriptions of all that this process has loaded, and return how many there are.

    For a worker, which has other work to do than to wait for whoever has one of them locked. Locks: subscriptions.
    """
    return declare(patience=PATIENCE)


def _with_another_name() -> list[str]:
    return [path for path in sorted({row.handler for row in stored()} - handlers.keys()) if _has_another_name(path)]


def _has_another_name(path: str) -> bool:
    """Return whether a module that is loaded has, under this path, a handler that was declared under another."""
    names = path.split(".")
    for cut in range(len(names) - 1, 0, -1):
        if (found := sys.modules.get(".".join(names[:cut]))) is not None:
            for name in names[cut:]:
                found = getattr(found, name, None)
            return renamed(found) is not None
    return False


def unknown(paths: Iterable[str]) -> list[str]:
    """
    Return those of these handlers that this code does not have: they may belong to another deployable, or be gone.

    Imports their modules.
    """
    return [path for path in sorted(set(paths)) if handler_at(path) is None]


def unbind(handler: str, pattern: str | None = None, by: str = "") -> list[str]:
    """
    Remove the subscription of a handler to one pattern, or all of them, and return the patterns.

    What was published before still comes to it. A worker whose code has the handler subscribes it again when it starts.
    Locks: subscriptions.
    """
    removed = sorted(found for (found,) in retrying(lambda: sql.UNBIND.tuples(handler=handler, pattern=pattern)))
    if removed:
        signals.subscription_removed.send_robust(sender=None, handler=handler, patterns=removed, by=by)
    return removed


def stored() -> list[Any]:
    """Return the subscriptions by handler and pattern, ten thousand at most."""
    return sql.SUBSCRIPTIONS.rows(limit=MOST)
