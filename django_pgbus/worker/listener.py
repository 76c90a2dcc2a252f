"""Waiting for wake-ups, in a thread and on a session of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from django_pgbus import signals
from django_pgbus.postgres.listen import Listener as Session
from django_pgbus.worker.loop import Loop
from django_pgbus.worker.shutdown import Demands

TEST_EVERY: Final = 60.0  # seconds
WAIT: Final = 3600.0


class Listener(Loop):
    """Hands on what arrives; after any loss it listens anew and lets the consumer look for what it missed."""

    part = "listener"

    def __init__(self, hand_on: Callable[[list[Any]], None], catch_up: Callable[[], None]) -> None:
        super().__init__()
        self._session = Session()
        self._hand_on = hand_on
        self._catch_up = catch_up
        self._interrupt = Demands()  # wakes the select() of this thread; its signals are never installed
        self._next_test = 0.0
        self.hears: bool | None = None

    def step(self) -> float:
        """Wait for what arrives; test now and then whether anything can."""
        if not self._session.connected:
            self.hears = None
            self._session.open()
            self._catch_up()
            self._next_test = 0.0
        now = time.monotonic()
        if now >= self._next_test:
            self._test()
            self._next_test = now + TEST_EVERY
            return 0.0  # It works (again): that is not to be told with the next message only.
        messages = self._session.wait(min(WAIT, self._next_test - time.monotonic()), self._interrupt.fileno())
        self._interrupt.settle()
        self._deliver(messages)
        return 0.0

    def on_error(self, error: BaseException) -> float:
        """Drop the session; the next step opens a new one."""
        self._session.close()
        self.hears = None
        return super().on_error(error)

    def stop(self) -> None:
        """End the wait too."""
        super().stop()
        self._interrupt.poke()

    def run(self) -> None:
        """Listen until `stop`; the session is closed by the thread that owns it."""
        try:
            super().run()
        finally:
            self._session.close()

    def _test(self) -> None:
        heard, others = self._session.hears_itself()
        self._deliver(others)
        if heard and self.hears is False:
            signals.listener_hears.send_robust(sender=type(self))
        elif not heard and self.hears is not False:
            signals.listener_deaf.send_robust(sender=type(self))
        self.hears = heard

    def _deliver(self, messages: list[Any]) -> None:
        if messages:
            self._hand_on(messages)
