"""
How urgently this process is asked to stop.

The supervisor counts: the first SIGTERM, SIGINT or SIGQUIT drains, the second stops at once, the third kills. A
child does not count, since the same wish may reach it twice (systemd signals the whole group, and the supervisor
forwards): SIGTERM and SIGINT drain however often they come, SIGQUIT stops at once.

A handler only sets a number and writes a byte: setting a threading.Event in it could wait for a lock that the
interrupted thread holds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from enum import IntEnum
from functools import cache
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class Level(IntEnum):
    """How urgent it is."""

    RUN = 0
    DRAIN = 1  # finish what runs within the grace
    NOW = 2  # end what runs, hand it back
    KILL = 3


class Demands:
    """What was asked of this process, with a file descriptor that becomes readable when that changes."""

    def __init__(self) -> None:
        self.level = Level.RUN
        self._before: dict[signal.Signals, Any] = {}
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def fileno(self) -> int:
        """Return the descriptor to wait on; `settle` empties it."""
        return self._reader

    def ask(self, level: Level) -> None:
        """Ask for `level`, from any thread; never takes an earlier demand back."""
        if level > self.level:
            self.level = level
        self.poke()

    def poke(self) -> None:
        """Wake whoever waits, from any thread or signal handler."""
        with contextlib.suppress(OSError):  # Full: it wakes up anyway. Closed: nobody waits.
            os.write(self._writer, b"\0")

    def settle(self) -> Level:
        """Empty the descriptor and return the level."""
        with contextlib.suppress(OSError):
            while os.read(self._reader, 4096):
                pass
        return self.level

    def wait(self, seconds: float) -> Level:
        """Return the level after `seconds`, or earlier if somebody spoke."""
        select.select([self._reader], [], [], seconds)
        return self.settle()

    def install(self, *, supervised: bool = False) -> bool:
        """
        Take over the signals of this process; return whether that was possible.

        It is not outside the main thread (autoreload), where somebody else must call `ask`.
        """
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._told if supervised else self._counted)
        if not supervised:
            # A child's descriptors may live on in processes its jobs started: its end is told by the kernel.
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._woken)
        return True

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def close(self) -> None:
        """Restore the signals and free the descriptors."""
        self.restore()
        os.close(self._reader)
        os.close(self._writer)

    def _counted(self, number: int, frame: FrameType | None) -> None:
        self.ask(Level(min(self.level + 1, Level.KILL)))

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.ask(Level.NOW if number == signal.SIGQUIT else Level.DRAIN)

    def _woken(self, number: int, frame: FrameType | None) -> None:
        self.poke()


@cache
def demands() -> Demands:
    """Return the demands on this process: one, as its signals are."""
    return Demands()
