"""
Names a worker process that no longer beats.

No thread of the process can do that: a C call that keeps the GIL stops them all, and the heart with them. So the
supervisor counts the seconds since the child's last state, and asks for the stacks; if no thread answers, it demands
them by a signal whose handler needs no GIL (faulthandler). That reads frames of threads that may run, which can end a
process, so it comes second. What is found is announced, not ended: the leases have lapsed, and the runs are fenced out.
"""

from __future__ import annotations

from typing import Final

from django_pgbus import signals
from django_pgbus.worker.child import Child

FIRST_STATE: Final = 60.0  # seconds that imports may take before the first beat
STACKS_TAKE: Final = 0.5  # seconds


class Watchdog:
    """Watches one child."""

    def __init__(self, child: Child, lease: float) -> None:
        self._child = child
        self._lease = lease
        self._asked_at: float | None = None
        self._demanded = False
        self.stalled = False

    def look(self, now: float) -> float | None:
        """Announce a stall that began or ended; return when to look again at the latest, or None while it stalls."""
        child = self._child
        limit = max(self._lease, FIRST_STATE) if child.ledger.phase == "starting" else self._lease
        silent = now - child.heard
        if silent <= limit:
            if self.stalled:
                self.stalled = False
                signals.worker_resumed.send_robust(
                    type(self), name=child.name, worker=child.id, pid=child.pid, seconds=silent
                )
            self._asked_at = None
            self._demanded = False
            return child.heard + limit
        if self.stalled:
            return None
        if self._asked_at is None:
            self._asked_at = now
            child.ask_for_stacks()
        if now < self._asked_at + STACKS_TAKE:
            return self._asked_at + STACKS_TAKE
        if not child.stacks and not self._demanded and child.ledger.states:
            self._demanded = True
            child.demand_stacks()
            self._asked_at = now
            return now + STACKS_TAKE
        self.stalled = True
        signals.worker_stalled.send_robust(
            type(self),
            name=child.name,
            worker=child.id,
            pid=child.pid,
            seconds=silent,
            running=child.ledger.running,
            stacks=child.stacks.decode(errors="replace"),
        )
        return None
