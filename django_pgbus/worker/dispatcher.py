"""The sweeps, run by the one process of the cluster that is elected; it connects only while it is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from django_pgbus import signals
from django_pgbus.postgres import is_connection_loss, retrying
from django_pgbus.worker.connected import ConnectedLoop
from django_pgbus.worker.sweeps import SWEEPS, Sweep

NOT_ELECTED: Final = 5.0  # seconds between looks at the election


class Dispatcher(ConnectedLoop):
    """Runs each sweep when its time has come; one that fails never stops the others."""

    part = "dispatcher"

    def __init__(self, elected: Callable[[], bool], sweeps: Sequence[Sweep] = SWEEPS) -> None:
        super().__init__()
        self._elected = elected
        self._sweeps = sweeps
        self._due = {sweep.name: 0.0 for sweep in sweeps}

    def step(self) -> float:
        """Sweep if elected."""
        if not self._elected():
            self.disconnect()
            self.outage.leave(self)
            return NOT_ELECTED
        return super().step()

    def work(self) -> float:
        """Run the sweeps that are due; return the seconds until the next."""
        for sweep in self._sweeps:
            if self.stopping or not self._elected():
                return 0.0
            if self._due[sweep.name] <= time.monotonic():
                wait = sweep.interval * random.uniform(0.9, 1.1)  # noqa: S311
                self._due[sweep.name] = time.monotonic() + (0.1 if self._sweep(sweep) else wait)
        return max(0.0, min(self._due.values()) - time.monotonic())

    def _sweep(self, sweep: Sweep) -> bool:
        """Run one and return whether there is more to do."""
        try:
            count = retrying(sweep.function)
        except Exception as error:
            if is_connection_loss(error):
                raise
            signals.sweep_failed.send_robust(sender=type(self), name=sweep.name, exception=error)
            return False
        signals.sweep_done.send_robust(sender=type(self), name=sweep.name, count=count)
        return bool(sweep.batch) and count >= sweep.batch
