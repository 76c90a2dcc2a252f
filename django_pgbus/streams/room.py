"""What this process knows about the room ahead in a log: whether an append may go without a savepoint."""

from __future__ import annotations

import time
from typing import Final

from django_pgbus.streams import partitions

# An append that finds no partition fails, and with it the transaction of its caller, unless it stands in a savepoint: two
# round trips, and a transaction id of its own. Where this process has seen a position a fifth of a second ago, and knows
# partitions that stay for a million more, there is no need: five million positions a second would have to be taken
# meanwhile, a hundred times what PostgreSQL takes in.
ENOUGH: Final = 1_000_000  # positions
FRESH: Final = 0.2  # seconds
LEARN: Final = 1.0  # seconds


class Room:
    """The last position seen and when, and the end of the unbroken run of partitions from there that are to stay."""

    __slots__ = ("_asked_at", "_end", "_position", "_seen_at")

    def __init__(self) -> None:
        self._position = self._end = 0
        self._seen_at = self._asked_at = float("-inf")

    def saw(self, position: int) -> None:
        """Note a position that was handed out just now."""
        self._position = position
        self._seen_at = time.monotonic()

    def is_enough(self, stream: int, size: int, entries: int) -> bool:
        """Return whether so many entries more are certain to find their partition; may ask the catalog, once a second."""
        now = time.monotonic()
        if now - self._seen_at > FRESH:
            return False
        if self._end - self._position < ENOUGH + entries and now - self._asked_at > LEARN:
            self._asked_at = now
            self._end = self._learnt(stream, size)
        return self._end - self._position >= ENOUGH + entries

    def _learnt(self, stream: int, size: int) -> int:
        # What a transaction has made that still runs, our own included, may be rolled back.
        settled = {found.number for found in partitions.attached(stream) if found.is_settled}
        number = self._position // size
        while number in settled:
            number += 1
        return number * size
