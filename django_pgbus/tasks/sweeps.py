"""
Repairs of what waits for a slot or a key, for a process that died between its commit and its next look.

Each is bounded, and correct too when two processes run it at the same time; where one left off is a matter of speed.
"""

from __future__ import annotations

from typing import Final

from django_pgbus.batches import counts
from django_pgbus.concurrency import parked, sql
from django_pgbus.concurrency.sweeps import forget_semaphores, reap_slots
from django_pgbus.conf import get_settings
from django_pgbus.postgres import retrying
from django_pgbus.queues.sweeps import move_forgotten
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks import sql as tasks_sql
from django_pgbus.uniqueness.sweeps import reap_keys

BATCH: Final = 500
KEYS: Final = 1000  # looked at in one statement
PAGES: Final = 10  # of keys, in one sweep


class GoOn:
    """
    Moves what is due and nobody moved, fences out silent holders, and lets in who there is room for.

    Starts from the keys that parked jobs wait for. Where nothing waits it is one statement.
    """

    def __init__(self) -> None:
        self._after = {"semaphore": "", "key": ""}

    def sweep(self) -> int:
        """
        Return how many were moved, fenced out or let in, each in a transaction of its own.

        Locks: messages (skipping), delayed (skipping), semaphores (skipping), semaphore_slots, blocked_executions
        (skipping), uniqueness_keys, levels.
        """
        there = tasks_sql.ANY_WAITING.row(lease=f"{get_settings().VISIBILITY_TIMEOUT} seconds")
        count = move_forgotten() if there.delayed else 0
        count += lifecycle.presume_dead(BATCH) if there.silent else 0
        if there.parked:
            self._make_due()
            count += self._promote("semaphore") + self._promote("key")
        return count

    @staticmethod
    def _make_due() -> None:
        queues = [row.queue for row in sql.FIND_DUE_QUEUES.rows()]
        lifecycle.let_in(*retrying(lambda: parked.make_due(queues)))

    def _promote(self, waits_for: str) -> int:
        count = 0
        for _ in range(PAGES):
            keys = parked.waited_for(waits_for, self._after[waits_for], KEYS)
            self._after[waits_for] = keys[-1] if len(keys) == KEYS else ""
            count += lifecycle.let_in(keys) if waits_for == "semaphore" else lifecycle.let_in((), keys)
            if len(keys) < KEYS:
                break
        return count


class SlotReaper:
    """Frees slots whose messages are nowhere, and lets in who waits for them."""

    def __init__(self) -> None:
        self._after = 0

    def reap(self) -> int:
        """
        Free the next of them and return how many keys have room now.

        Locks: semaphore_slots (skipping); then in transactions of its own what `lifecycle.let_in` locks.
        """
        count = 0
        for _ in range(PAGES):
            self._after, keys = reap_slots(self._after)
            count += len(keys)
            lifecycle.let_in(keys)
            if not self._after:
                break
        return count


class KeyReaper:
    """Frees uniqueness keys whose messages are nowhere, and lets in who waits for them."""

    def __init__(self) -> None:
        self._after = ""

    def reap(self) -> int:
        """
        Free the next of them and return how many.

        Locks: uniqueness_keys (skipping); then in transactions of its own what `lifecycle.let_in` locks.
        """
        count = 0
        for _ in range(PAGES):
            self._after, keys = reap_keys(self._after)
            count += len(keys)
            lifecycle.let_in((), keys)
            if not self._after:
                break
        return count


class BatchEnder:
    """Finishes batches that nobody finished, and says of which members are nowhere."""

    def __init__(self) -> None:
        self._after = 0

    def sweep(self) -> int:
        """
        Return how many of the next were finished.

        Each is a transaction of its own. Locks: batches (skipping), batch_counts, uniqueness_keys.
        """
        count = 0
        for _ in range(PAGES):
            ids = counts.unfinished(self._after, BATCH)
            self._after = ids[-1] if len(ids) == BATCH else 0
            count += lifecycle.finish_batches(ids) + lifecycle.repair_batches(ids)
            if not self._after:
                break
        return count


def free_batch_keys() -> int:
    """
    Free keys of batches that are finished or nowhere and return how many.

    Locks: uniqueness_keys (skipping); then in transactions of its own what `lifecycle.let_in` locks.
    """
    freed = [key for (key,) in tasks_sql.FREE_BATCH_KEYS.tuples(limit=KEYS)]
    lifecycle.let_in((), freed)
    return len(freed)


class SemaphoreForgetter:
    """Deletes semaphores that nobody holds or waits for, and looks again at those that it had locked."""

    def __init__(self) -> None:
        self._after = ""

    def forget(self) -> int:
        """
        Delete the next of them and return how many.

        Locks: semaphores (skipping); then in transactions of its own what `lifecycle.let_in` locks.
        """
        self._after, count, locked = forget_semaphores(self._after)
        lifecycle.let_in_after_commit(locked)
        return count
