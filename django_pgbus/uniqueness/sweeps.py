"""The reaper: frees keys whose message is proven to be nowhere, which only a restore or a hand in psql leaves behind."""

from __future__ import annotations

from typing import Final

from django.db import transaction

from django_pgbus.conf import database
from django_pgbus.uniqueness import sql

BATCH: Final = 1000


def reap_keys(after: str) -> tuple[str, list[str]]:
    """
    Free the keys after `after` whose messages are nowhere; return where to go on ("": from the start) and the keys.

    Locks the key first and tests again in a second statement. Locks: uniqueness_keys (skipping).
    """
    looked = sql.UNOWNED.rows(after=after, limit=BATCH)
    return looked[-1].key if len(looked) == BATCH else "", reap([row.key for row in looked if row.unowned])


def reap(keys: list[str]) -> list[str]:
    """Free those of these keys whose messages are nowhere and return them. Locks: uniqueness_keys (skipping)."""
    if not keys:
        return []
    with transaction.atomic(using=database()):
        locked = [key for (key,) in sql.LOCK_UNOWNED.tuples(keys=sorted(keys))]
        return [key for (key,) in sql.REAP.tuples(keys=locked)] if locked else []
