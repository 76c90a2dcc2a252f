"""
Ending sync runs that outlive their timeout or are superseded: an exception raised in their thread.

Python delivers it at the next bytecode of that thread, so a long C call is not interrupted; past the hard limit
the process has to go (semantics 8.5).
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass
from typing import Final

from django_pgbus.exceptions import TaskSuperseded, TaskTimeout
from django_pgbus.queues.message import Delivery

HARD_MARGIN: Final = 10.0  # seconds between the soft limit and the end of the process


@dataclass(slots=True)
class _Armed:
    delivery: Delivery
    deadline: float
    raised: bool = False


class Watch:
    """Which threads may be interrupted, and when; raises only between `arm` and `disarm`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: dict[int, _Armed] = {}

    def arm(self, delivery: Delivery, timeout: float | None = None) -> None:
        """Let this thread be interrupted: after `timeout` seconds, or when `delivery` is superseded."""
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        with self._lock:
            self._armed[threading.get_ident()] = _Armed(delivery, deadline)

    def disarm(self) -> None:
        """Let this thread alone again; one raised at the last moment may still come out of this call."""
        me = threading.get_ident()
        pending: BaseException | None = None
        while me in self._armed:
            try:
                with self._lock:
                    self._armed.pop(me, None)
            except (TaskTimeout, TaskSuperseded) as error:
                pending = error
        _raise_in(me, None)
        if pending is not None:
            raise pending

    def interrupt(self, now: float) -> list[Delivery]:
        """Raise in the threads whose time has come, and return deliveries past their hard limit."""
        stuck = []
        with self._lock:
            for thread, armed in self._armed.items():
                if armed.deadline + HARD_MARGIN <= now:
                    stuck.append(armed.delivery)
                elif not armed.raised and armed.deadline <= now:
                    armed.raised = True
                    _raise_in(thread, TaskTimeout)
                elif not armed.raised and armed.delivery.superseded:
                    armed.raised = True
                    _raise_in(thread, TaskSuperseded)
        return stuck

    def next_deadline(self) -> float:
        """Return the monotonic time at which `interrupt` has something to do."""
        with self._lock:
            return min(
                (a.deadline + HARD_MARGIN if a.raised else a.deadline for a in self._armed.values()),
                default=float("inf"),
            )


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(exception) if exception else None
    )
