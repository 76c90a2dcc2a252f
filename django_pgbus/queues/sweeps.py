"""Repairs and retention of the queues, each bounded; correct too when two processes run one at the same time."""

from __future__ import annotations

from typing import Final

from django_pgbus.conf import get_settings
from django_pgbus.queues import delayed, sql, wake
from django_pgbus.queues.message import Level

BATCH: Final = 1000


def find_levels() -> int:
    """
    Write levels that nobody announced (psql, a producer that died in between) and return how many were new.

    Locks: levels.
    """
    return wake.write_levels({Level(row.queue, row.priority, row.suspect) for row in sql.FIND_LEVELS.rows()})


def move_forgotten() -> int:
    """Move due messages of queues that no worker serves and return how many. Locks: delayed (skipping)."""
    queues = [row.queue for row in sql.FIND_DELAYED_QUEUES.rows()]
    moved = delayed.move_due(queues, BATCH)
    wake.wake_for(moved)
    return len(moved)


def forget_levels() -> int:
    """Forget levels unused for a day and return how many. Locks: levels (skipping)."""
    return sql.FORGET_LEVELS.count(limit=BATCH)


def purge_archive() -> int:
    """Delete a batch of what finished before `ARCHIVE_RETENTION` and return how many. Locks: archive (skipping)."""
    return sql.PURGE_ARCHIVE.count(age=f"{get_settings().ARCHIVE_RETENTION} seconds", limit=BATCH)


def purge_dead_letters() -> int:
    """Delete a batch of what died before `DEAD_LETTER_RETENTION` and return how many. Locks: dead_letters (skipping)."""
    return sql.PURGE_DEAD_LETTERS.count(age=f"{get_settings().DEAD_LETTER_RETENTION} seconds", limit=BATCH)
