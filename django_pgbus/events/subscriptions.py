"""The subscriptions table: written from the code when workers start and after `migrate`, read by every publish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.db import transaction

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.events import sql
from django_pgbus.events.handlers import Handler, handlers
from django_pgbus.events.topics import compiled
from django_pgbus.postgres import retrying

MOST: Final = 10_000


def declare(declared: Iterable[Handler] | None = None) -> int:
    """
    Write the subscriptions of handlers (None: all that this process has loaded) and return how many there are.

    A handler's patterns replace those that were stored of it; those of handlers that are not given stay as they are:
    they may belong to another deployable. Locks: subscriptions.
    """
    chosen = {handler.path: handler for handler in (handlers.values() if declared is None else declared)}
    rows = [(path, pattern, chosen[path]) for path in sorted(chosen) for pattern in sorted(chosen[path].patterns)]
    if not rows:
        return 0
    patterns = [compiled(pattern) for _, pattern, _ in rows]
    paths = [path for path, _, _ in rows]

    def transition() -> None:
        with transaction.atomic(using=database()):
            sql.LOCK_SUBSCRIPTIONS.tuples(handlers=paths)
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

    retrying(transition)
    signals.subscriptions_declared.send_robust(sender=None, count=len(rows))
    return len(rows)


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
