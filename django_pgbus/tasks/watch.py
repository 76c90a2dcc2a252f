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
    """
    Which threads may be interrupted, and when; raises only between `arm` and `disarm`.

    Coroutines are cancelled by their own loop. Here they are only `awaited`: one that swallows it, or a loop that is
    blocked, is as stuck as a thread that does not stop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: dict[int, _Armed] = {}
        self._awaited: dict[Delivery, float] = {}

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

    def await_end(self, delivery: Delivery, timeout: float) -> None:
        """Count an async run as stuck if it has not `ended` by its hard limit."""
        with self._lock:
            self._awaited[delivery] = time.monotonic() + timeout + HARD_MARGIN

    def ended(self, delivery: Delivery) -> None:
        """Forget an async run."""
        with self._lock:
            self._awaited.pop(delivery, None)

    def interrupt(self, now: float) -> list[Delivery]:
        """Raise in the threads whose time has come, and return deliveries past their hard limit."""
        with self._lock:
            stuck = [delivery for delivery, hard_limit in self._awaited.items() if hard_limit <= now]
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
            soft = (a.deadline + HARD_MARGIN if a.raised else a.deadline for a in self._armed.values())
            return min([*soft, *self._awaited.values()], default=float("inf"))


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(exception) if exception else None
    )
