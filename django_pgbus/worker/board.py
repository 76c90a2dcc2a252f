"""
Which jobs run in a process at this instant, in memory it shares with its supervisor.

A report takes a moment to be sent, and a job that kills its process may have begun in that moment. A store into
shared memory takes none and outlives the process, so the supervisor knows who was running when it died: only those
are suspects, and what had merely been waiting in a buffer, or had ended, is not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

COROUTINES_PER_THREAD: Final = 10
BUFFER_LIMIT: Final = 400  # jobs claimed and not started; all of one buffer may turn out to be async
_IN_USE: Final = 0  # the cell that says whether the process writes here at all


class Board:
    """Places for ids; each has one writer at a time."""

    def __init__(self, cells: Any) -> None:
        self._cells = cells

    @classmethod
    def shared(cls, context: Any, capsules: Sequence[int]) -> Board:
        """Return a board for capsules of so many threads, which crosses over to a child made by this context."""
        return cls(context.RawArray(ctypes.c_int64, 1 + sum(map(places_for, capsules))))

    @classmethod
    def private(cls, capsules: Sequence[int]) -> Board:
        """Return a board that nobody else reads."""
        return cls([0] * (1 + sum(map(places_for, capsules))))

    def open(self) -> None:
        """Say that from now on every run is written here."""
        self._cells[_IN_USE] = 1

    def give_up(self) -> None:
        """Say that a run is not written here: whoever reads must suspect all."""
        self._cells[_IN_USE] = 0

    def places(self, first: int, count: int) -> Callable[[int, int], None]:
        """Return a function that writes (number, id or 0) into `count` places from `first` on."""
        cells, start = self._cells, 1 + first
        assert start + count <= len(cells)

        def write(number: int, id: int) -> None:
            cells[start + number] = id

        return write

    def running(self) -> frozenset[int] | None:
        """Return the ids of what runs, or None if the process does not write here."""
        cells: Sequence[int] = self._cells[:]
        return frozenset(cells[1:]) - {0} if cells[_IN_USE] else None


def coroutine_places(threads: int) -> int:
    """Return how many coroutines there can be: those allowed, and what one more claim may bring."""
    return threads * (1 + COROUTINES_PER_THREAD) + BUFFER_LIMIT


def places_for(threads: int) -> int:
    """Return how many runs there can be: one per thread, and the coroutines."""
    return threads + coroutine_places(threads)
