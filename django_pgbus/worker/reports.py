"""
What a child tells its supervisor: which jobs it holds, so that they can be handed back once it is gone.

    ("claimed", [(id, delivery, suspect), ...])   before anything of it runs
    ("started", [id, ...])                        at the latest 50 ms after; a suspect's before it runs
    ("ended", [id, ...])                          after its settlement was committed, or it was handed back
    ("timed_out", (id, max_attempts, ran_for))    the hard timeout of this one ends the process (exit code 65)
    ("state", {...})                              once per beat; see `STATE`
    ("declared", True)                            the subscriptions of its code are written
    ("leaving", code)                             about to end on purpose

Both ends stand here. The reader never blocks: a child that was stopped or killed in the middle of a message must
not keep the supervisor from its signals.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import struct
import threading
from multiprocessing.connection import Connection
from typing import Any, Final

from django_pgbus.worker.board import Board

# What a "state" may say; all of it optional.
STATE: Final = {
    "state": "starting, running, draining or stopping",
    "running": "jobs that run now",
    "buffered": "jobs claimed and not started",
    "done": "jobs ended since the process began",
    "failed": "runs that failed since the process began",
    "database": "False while the database is away",
    "listening": "whether notifications arrive",
}

HEADER: Final = struct.Struct("!I")
PIPE_BYTES: Final = 1 << 20
AT_ONCE: Final = 1 << 18  # bytes read from one child before the others get their turn


class Reports:
    """The child's end. Safe for several threads; silent when the supervisor is gone (see `orphan.py`)."""

    def __init__(self, connection: Connection, board: Board | None = None) -> None:
        self._connection = connection
        self.board = board
        self._lock = threading.Lock()
        with contextlib.suppress(OSError, AttributeError):
            # A supervisor that is busy for a moment must not hold up the claims.
            fcntl.fcntl(connection.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def send(self, message: tuple[Any, ...]) -> None:
        """Send one message; waits only while the pipe is full."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        view = memoryview(HEADER.pack(len(body)) + body)
        with self._lock, contextlib.suppress(BrokenPipeError):
            while view:
                view = view[os.write(self._connection.fileno(), view) :]


class ReportReader:
    """The supervisor's end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self.ended = False  # nobody holds the other end any more
        os.set_blocking(connection.fileno(), False)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._connection.fileno()

    def read(self) -> list[tuple[Any, ...]]:
        """Return the messages that have arrived in full; never waits."""
        self._fill()
        return self._complete()

    def read_to_the_end(self) -> list[tuple[Any, ...]]:
        """Return all that a child which has ended had still sent."""
        while self._fill():
            pass
        return self._complete()

    def close(self) -> None:
        """Free the descriptor."""
        self._connection.close()

    def _complete(self) -> list[tuple[Any, ...]]:
        messages = []
        at = 0
        while at + HEADER.size <= len(self._buffer):
            (length,) = HEADER.unpack_from(self._buffer, at)
            if at + HEADER.size + length > len(self._buffer):
                break
            at += HEADER.size
            with memoryview(self._buffer) as view, view[at : at + length] as body:
                messages.append(pickle.loads(body))  # noqa: S301  (written by our own child)
            at += length
        del self._buffer[:at]
        return messages

    def _fill(self) -> bool:
        """Take in a bounded amount; return whether there may be more."""
        try:
            chunk = os.read(self._connection.fileno(), AT_ONCE)
        except BlockingIOError:
            return False
        self._buffer += chunk
        self.ended = not chunk
        return bool(chunk)
