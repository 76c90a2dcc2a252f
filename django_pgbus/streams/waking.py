"""Waking the groups of a stream, after commit and never inside it; as robust as `queues/wake.py`, and by its means."""

from __future__ import annotations

import time

from django.db import connections

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.postgres.after_commit import hook_of
from django_pgbus.queues import wake


class _Hook:
    """The streams to which one transaction has appended."""

    __slots__ = ("began", "spoken", "streams")

    def __init__(self) -> None:
        self.spoken = False
        self.began = time.monotonic()
        self.streams: set[int] = set()

    def speak(self) -> None:
        """Wake; registered as a bound method, since Django logs a failing hook by its name."""
        self.spoken = True
        _wake(self.streams, coalesced=time.monotonic() - self.began < wake.COALESCE)


def after_commit(stream: int) -> None:
    """
    Wake the groups of a stream once the caller's transaction is committed, at most every 50 ms.

    Where Django runs no hooks, polls find the entries.
    """
    connection = connections[database()]
    if connection.in_atomic_block:
        hook_of(connection, _Hook).streams.add(stream)
    elif connection.get_autocommit():
        try:  # As robustly as Django calls a hook.
            _wake((stream,), coalesced=True)
        except Exception as error:
            signals.wake_failed.send_robust(sender=None, exception=error)


def _wake(streams: set[int] | tuple[int], *, coalesced: bool) -> None:
    now = time.monotonic()
    # A transaction that was longer than that has appended before others spoke: they cannot have spoken for it.
    wake.notify(
        [
            ["stream", stream]
            for stream in sorted(streams)
            if wake.should_wake(("stream", stream, ""), now) or not coalesced
        ]
    )
