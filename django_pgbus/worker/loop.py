"""
`Loop`: do a step, wait, do it again.

A step returns how many seconds to wait; `wake()` cuts the wait short, `stop()` ends it. An error never ends a loop:
`on_error` says how long to wait before the next try. Waiting stands here and nowhere else.
"""

from __future__ import annotations

import random
import threading
from typing import ClassVar, Final

from django_pgbus import signals
from django_pgbus.postgres import is_connection_loss
from django_pgbus.worker.outage import Outage

LONGEST_WAIT: Final = 3600.0  # an Event cannot wait for infinity
FIRST_BACKOFF: Final = 0.1
LONGEST_BACKOFF: Final = 1.5  # a database that is back is noticed within 2 s


class Loop:
    """A step that is done again and again, in one thread."""

    part: ClassVar[str] = "worker"  # how log lines call it

    def __init__(self) -> None:
        self._news = threading.Event()
        self._stopping = False
        self._failures = 0
        self.connected_since = float("inf")  # by the monotonic clock; never, without a connection
        self.outage = Outage()  # of its own, until a process gives it the one that its loops share

    def step(self) -> float:
        """Do what there is to do; return the seconds to wait before the next step."""
        raise NotImplementedError

    def on_error(self, error: BaseException) -> float:
        """
        Return the seconds to wait after `error`, longer with each in a row.

        A lost database is announced once per outage and process, any other error each time.
        """
        if not is_connection_loss(error):
            signals.loop_failed.send_robust(type(self), part=self.part, exception=error)
        else:
            self.outage.begins(self, error)
        return backoff(self._failures, first=FIRST_BACKOFF, longest=LONGEST_BACKOFF)

    def run(self) -> None:
        """Step and wait until `stop`; a step runs code of the project, and even one that exits does not end the loop."""
        while not self._stopping:
            try:
                wait = self.step()
            except (Exception, SystemExit) as error:
                self._failures += 1
                wait = self.on_error(error)
            else:
                self._went_well()
            self._news.wait(min(max(wait, 0.0), LONGEST_WAIT))
            self._news.clear()  # Only here: news that comes during a step must not be lost.

    def wake(self) -> None:
        """Cut the wait short."""
        self._news.set()

    def stop(self) -> None:
        """End the loop after the step it is in."""
        self._stopping = True
        self.wake()

    @property
    def stopping(self) -> bool:
        """Return whether `stop` was called."""
        return self._stopping

    def _went_well(self) -> None:
        self._failures = 0
        self.outage.ends(self)


def backoff(failures: int, *, first: float, longest: float) -> float:
    """Return the seconds to wait after the nth failure in a row: doubling, capped, the upper half at random."""
    wait = min(longest, first * 2.0 ** min(failures - 1, 30))
    return wait * random.uniform(0.5, 1.0)  # noqa: S311  (spreads restarts, hides nothing)
