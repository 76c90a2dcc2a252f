"""Repairs of the limits that need nothing but these tables; those that move messages stand in `tasks/sweeps.py`."""

from __future__ import annotations

from typing import Final

from django.db import transaction

from django_pgbus.concurrency import sql
from django_pgbus.conf import database

BATCH: Final = 1000


def forget_semaphores(after: str) -> tuple[str, int, list[str]]:
    """
    Delete unused semaphores after `after`; return where to go on ("": from the start), how many, and what was locked.

    Nobody can lose by it: who wants one makes it anew. Whoever found one locked relies on the caller to look again at
    these keys after the commit. Locks: semaphores (skipping).
    """
    keys = [key for (key,) in sql.UNUSED.tuples(after=after, limit=BATCH)]
    count, locked = 0, []
    if keys:
        with transaction.atomic(using=database()):
            locked = [key for key, _ in sql.LOCK_FREE.tuples(keys=keys)]
            count = sql.FORGET.count(keys=locked) if locked else 0
    return keys[-1] if len(keys) == BATCH else "", count, locked


def reap_slots(after: int) -> tuple[int, set[str]]:
    """
    Free slots whose messages are nowhere; return where to go on (0: from the start) and the keys.

    Only a restore or a hand in psql leaves such a slot behind. Locks the slot first and tests again in a second
    statement. Locks: semaphore_slots (skipping).
    """
    looked = sql.UNOWNED.rows(after=after, limit=BATCH)
    unowned = [row.message_id for row in looked if row.unowned]
    freed: set[str] = set()
    if unowned:
        with transaction.atomic(using=database()):
            locked = [id for (id,) in sql.LOCK_UNOWNED.tuples(ids=unowned)]
            freed = {key for (key,) in sql.REAP.tuples(ids=locked)} if locked else set()
    return looked[-1].message_id if len(looked) == BATCH else 0, freed
