"""An entry of a stream, as handlers and readers get it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django_pgbus.postgres.moments import moment


class Entry:
    """
    One entry: `payload` as it was appended, `position` in its stream, `attempt` from 1.

    Whoever calls a handler in a test makes one by hand: `Entry(payload={"order": 7})`.
    """

    # Tens of thousands are made each second, so the time stays a number until it is asked for (postgres/moments.py).
    __slots__ = ("_at", "attempt", "payload", "position", "stream")

    def __init__(self, stream: str = "", position: int = 0, payload: Any = None, at: int = 0, attempt: int = 1) -> None:
        self.stream = stream
        self.position = position
        self.payload = payload
        self.attempt = attempt
        self._at = at

    @property
    def appended_at(self) -> datetime:
        """Return when it was appended, in UTC: when the statement that wrote it began."""
        return moment(self._at)

    def __repr__(self) -> str:
        return f"<Entry {self.stream}/{self.position}, attempt {self.attempt}>"
