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
from typing import Final, Protocol

from django_pgbus.exceptions import TaskSuperseded, TaskTimeout

HARD_MARGIN: Final = 10.0  # seconds between the soft limit and the end of the process


class Held(Protocol):
    """What is held by a lease: a delivery, or a range of a stream."""

    superseded: bool


@dataclass(slots=True)
class _Armed:
    held: Held
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
        self._awaited: dict[Held, float] = {}

    def arm(self, held: Held, timeout: float | None = None) -> None:
        """Let this thread be interrupted: after `timeout` seconds, or when what it works on is superseded."""
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        with self._lock:
            self._armed[threading.get_ident()] = _Armed(held, deadline)

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

    def await_end(self, held: Held, timeout: float) -> None:
        """Count an async run as stuck if it has not `ended` by its hard limit."""
        with self._lock:
            self._awaited[held] = time.monotonic() + timeout + HARD_MARGIN

    def ended(self, held: Held) -> None:
        """Forget an async run."""
        with self._lock:
            self._awaited.pop(held, None)

    def interrupt(self, now: float) -> list[Held]:
        """Raise in the threads whose time has come, and return what is past its hard limit."""
        with self._lock:
            stuck = [held for held, hard_limit in self._awaited.items() if hard_limit <= now]
            for thread, armed in self._armed.items():
                if armed.deadline + HARD_MARGIN <= now:
                    stuck.append(armed.held)
                elif not armed.raised and armed.deadline <= now:
                    armed.raised = True
                    _raise_in(thread, TaskTimeout)
                elif not armed.raised and armed.held.superseded:
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
