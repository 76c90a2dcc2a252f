"""A shuffled deck of what may happen: each once before any comes again, each noted with the database's clock."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

from tests.storm.patience import patiently

WAY: Final = ("drop", "refuse", "delay", "stall", "stall_and_reset", "cut")  # what happens on the way to the server
NOTE: Final = "INSERT INTO chaos_faults (name, pids, after, before, detail) VALUES (%s, %s, %s, clock_timestamp(), %s)"


class Lasting(NamedTuple):
    """A fault that goes on: until when, how it ends, and what is noted then."""

    due: float
    end: Callable[[], list[int] | None]
    name: str
    pids: list[int]
    after: datetime
    detail: str


class Deck:
    """
    What may happen, by name.

    A fault returns the processes that it concerns, perhaps a word about it, and, if it lasts, its seconds and what ends it,
    which may return those that it has come to concern meanwhile.
    """

    def __init__(self, seed: int, faults: dict[str, Callable[[], Any]]) -> None:
        self.random = random.Random(f"{seed}/faults")
        self.faults, self.names = faults, list(faults)
        self.happened: Counter[str] = Counter(dict.fromkeys(self.names, 0))
        self.decks = 0  # that are through
        self.lasting: list[Lasting] = []
        self._deck: list[str] = []

    def strike(self) -> None:
        """Let the next of the deck happen."""
        if not self.names:
            return
        if not self._deck:
            self._deck = self.random.sample(self.names, len(self.names))
        name = self._deck.pop()
        if name in WAY and any(lasting.name in WAY for lasting in self.lasting):
            self._deck.insert(0, name)  # one at a time
            return
        self.happened[name] += 1
        after = now()
        done = self.faults[name]()
        pids, detail = done[0], str(done[1]) if len(done) > 1 else ""
        if len(done) > 2:
            seconds, end = done[2], done[3]
            self.lasting.append(Lasting(time.monotonic() + seconds, end, name, pids, after, detail))
        else:
            patiently(NOTE, name, pids, after, detail)
        self.decks += not self._deck

    def end(self, *, all_of_them: bool = False) -> None:
        """End what has lasted long enough."""
        for lasting in self.lasting[:]:
            if lasting in self.lasting and (all_of_them or time.monotonic() >= lasting.due):
                self.lasting.remove(lasting)  # first: ending may take a while, in which others end
                pids = dict.fromkeys([*lasting.pids, *(lasting.end() or ())])
                patiently(NOTE, lasting.name, list(pids), lasting.after, lasting.detail)


def now() -> datetime:
    ((moment,),) = patiently("SELECT clock_timestamp()")
    return moment  # type: ignore[no-any-return]
