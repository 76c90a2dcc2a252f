"""
Reading a page in parts: one that fails or takes too long says so, and the others are shown.

All parts are read in one transaction as long as nothing fails, so that a page asks no more than it must. Whatever fails
ends that transaction, and the rest is read in the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db import DatabaseError

from django_pgbus.admin.bounds import TookTooLongError, bounded

PATIENCE: Final = (
    2_000  # milliseconds for each statement: there are many parts, and a page of them is asked for again and again
)

logger = logging.getLogger("django_pgbus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the parts returned, by name; and which could not be read, with whether they took too long."""

    parts: Mapping[str, Any]
    unread: Mapping[str, bool]

    def get(self, name: str) -> Any:
        """Return what a part returned, None where it was not asked or could not be read."""
        return self.parts.get(name)


def read(parts: Mapping[str, Callable[[], Any]]) -> Found:
    """Return what each part finds, as far as it can be read."""
    found: dict[str, Any] = {}
    unread: dict[str, bool] = {}
    left = list(parts)
    while left:
        before = len(left)
        name = left[0]
        try:
            with bounded(PATIENCE):
                while left:
                    name = left.pop(0)
                    found[name] = parts[name]()
        except Exception as error:
            found.pop(name, None)
            unread[name] = isinstance(error, TookTooLongError)
            if not isinstance(error, (TookTooLongError, DatabaseError)):  # not the database's fault, but ours
                logger.exception("The part %r of an admin page failed.", name)
            if (
                len(left) == before
            ):  # not even a transaction could begin: the database is away, and the rest would wait for it
                unread.update(dict.fromkeys(left, False))
                break
    return Found(parts=found, unread=unread)
