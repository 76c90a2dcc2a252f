"""The reaper: frees keys whose message is proven to be nowhere, which only a restore or a hand in psql leaves behind."""

from __future__ import annotations

from typing import Final

from django.db import transaction

from django_pgbus.conf import database
from django_pgbus.uniqueness import sql

BATCH: Final = 1000


class Reaper:
    """Looks at all keys, a batch at a time; where it left off is a matter of speed only."""

    def __init__(self) -> None:
        self._after = ""

    @property
    def at_the_end(self) -> bool:
        """Return whether all keys have been looked at, and the next look begins anew."""
        return not self._after

    def reap(self) -> list[str]:
        """
        Free the next keys whose messages are nowhere and return them.

        Locks the key first and tests again in a second statement. Locks: uniqueness_keys (skipping).
        """
        looked = sql.UNOWNED.rows(after=self._after, limit=BATCH)
        self._after = looked[-1].key if len(looked) == BATCH else ""
        return reap([row.key for row in looked if row.unowned])


def reap(keys: list[str]) -> list[str]:
    """Free those of these keys whose messages are nowhere and return them. Locks: uniqueness_keys (skipping)."""
    if not keys:
        return []
    with transaction.atomic(using=database()):
        locked = [key for (key,) in sql.LOCK_UNOWNED.tuples(keys=sorted(keys))]
        return [key for (key,) in sql.REAP.tuples(keys=locked)] if locked else []
