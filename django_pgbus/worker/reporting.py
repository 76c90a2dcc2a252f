"""Telling the supervisor what this process holds, in batches."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from django_pgbus.queues.heartbeat import Held
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks.runnable import known
from django_pgbus.worker.loop import Loop
from django_pgbus.worker.reports import Reports

COLLECT: Final = 0.02  # seconds


class Reporter(Loop):
    """Sends claims and ends at once, and starts within `COLLECT`; those that ended meanwhile are not told."""

    part = "reporter"

    def __init__(self, reports: Reports | None, held: Held) -> None:
        super().__init__()
        self._reports = reports
        self._held = held
        self._starts: list[Delivery] = []
        self._collecting = False

    def claimed(self, deliveries: Iterable[Delivery]) -> None:
        """Report claims, before anything of them runs."""
        self._send("claimed", [(d.id, d.delivery, d.level.suspect) for d in deliveries])

    def started(self, delivery: Delivery) -> None:
        """Report a start; a suspect's before it runs, since it may be the last thing this process does."""
        if self._reports is None:
            return
        if delivery.level.suspect:
            self._send("started", [delivery.id])
            return
        self._starts.append(delivery)
        if not self._collecting:
            self._collecting = True
            self.wake()

    def ended(self, deliveries: Iterable[Delivery]) -> None:
        """Report that deliveries are settled or handed back."""
        self._send("ended", [d.id for d in deliveries])

    def timed_out(self, delivery: Delivery) -> None:
        """Report that this process has to go because of a run."""
        runnable = known(delivery)
        ran_for = time.monotonic() - delivery.started_at
        self._send("timed_out", (delivery.id, runnable.policy.max_attempts if runnable else None, ran_for))

    def state(self, **state: Any) -> None:
        """Report how this process is."""
        self._send("state", state)

    def declared(self) -> None:
        """Report that the subscriptions of this code are written: who replaces this process need not do it again."""
        self._send("declared", True)

    def leaving(self, code: int) -> None:
        """Report that this process ends on purpose."""
        self._send("leaving", code)

    def step(self) -> float:
        """Collect for a moment, then tell."""
        starts, self._starts = self._starts, []
        if ids := [d.id for d in starts if self._held.has(d)]:
            self._send("started", ids)
        if starts:
            return COLLECT
        if self._collecting:
            self._collecting = False
            return 0.0 if self._starts else COLLECT
        return 3600.0

    def _send(self, kind: str, content: Any) -> None:
        if self._reports is not None and (content or kind in {"state", "leaving"}):
            self._reports.send((kind, content))
