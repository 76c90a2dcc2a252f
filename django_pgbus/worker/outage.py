"""A lost database, as one process has it: said once by whichever part finds out first, and once when all have it back."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from django_pgbus import signals

if TYPE_CHECKING:
    from django_pgbus.worker.loop import Loop


class Outage:
    """Which parts of a process are without their database; shared by its loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._without: set[Loop] = set()
        self._since = float("-inf")

    def begins(self, loop: Loop, error: BaseException) -> None:
        """
        Take note that this loop has lost its connection, and announce the outage if it is the first.

        A connection that is older than the last outage was lost in it, though it is only used again now.
        """
        with self._lock:
            if not self._without and loop.connected_since < self._since:
                return
            first = not self._without
            self._without.add(loop)
            if first:
                self._since = time.monotonic()
        if first:
            signals.database_lost.send_robust(type(loop), part=loop.part, exception=error)

    def ends(self, loop: Loop) -> None:
        """Take note that this loop has it back, and announce that if it was the last."""
        with self._lock:
            if loop not in self._without:
                return
            self._without.discard(loop)
            last = not self._without
            seconds = time.monotonic() - self._since
        if last:
            signals.database_back.send_robust(type(loop), part=loop.part, seconds=seconds)

    def leave(self, loop: Loop) -> None:
        """Forget a loop that needs no database any more: it cannot say that it is back."""
        with self._lock:
            self._without.discard(loop)
