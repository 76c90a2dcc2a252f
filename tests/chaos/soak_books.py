"""
The books: each job that was sent is open until it has run as often as it must, and closed then.

So they hold what is open, not what ever was. What runs though nothing of it is open ran once too often.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from tests.chaos.soak_workload import KINDS, MEMBERS, Outcome, Sent

PARTS: Final = 4  # of one number, at most
CALLBACK: Final = 1
BATCH: Final = next(at for at, kind in enumerate(KINDS) if kind.name == "batch")


class Books:
    """What was sent, what ran, and how long it waited."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()  # actions by kind, those that were committed
        self.refused: Counter[str] = Counter()
        self.undone = 0
        self.broken = 0
        self.jobs = 0
        self.runs: Counter[str] = Counter()  # expected ones, by kind
        self.unexpected: list[tuple[int, int]] = []  # (number, part) that ran once too often
        self.behind: list[tuple[float, float]] = []  # (when, by how much) a producer was behind its instants
        # key -> [kind, runs that are due, committed, run after]
        self._open: dict[int, list[float]] = {}
        self.waits: dict[str, list[tuple[float, float]]] = defaultdict(list)  # (when it began, seconds)

    def enter(self, records: Iterable[Sent]) -> None:
        """Enter what was sent."""
        for record in records:
            kind = KINDS[record.kind]
            if record.outcome == Outcome.SENT:
                self.sent[kind.name] += 1
                self.jobs += kind.jobs
                self.behind.append((record.committed, record.committed - record.due))
                for number in range(record.number, record.number + (MEMBERS if record.kind == BATCH else 1)):
                    for part, runs in enumerate(kind.parts):
                        self._expect(number, part, record, runs)
                if record.kind == BATCH:
                    self._expect(record.number, CALLBACK, record, 1)
            elif record.outcome == Outcome.REFUSED:
                self.refused[kind.name] += 1
            elif record.outcome == Outcome.UNDONE:
                self.undone += 1
            else:
                self.broken += 1

    def _expect(self, number: int, part: int, record: Sent, runs: int) -> None:
        if runs:
            self._open[number * PARTS + part] = [record.kind, runs, record.committed, record.run_after]

    def settle(self, runs: Iterable[tuple[int, int, float]]) -> None:
        """Enter (number, part, when it began) of runs; each was sent before, and entered."""
        for number, part, began in runs:
            key = number * PARTS + part
            entry = self._open.get(key)
            if entry is None:
                self.unexpected.append((number, part))
                continue
            kind = KINDS[int(entry[0])]
            is_callback = entry[0] == BATCH and part == CALLBACK
            self.runs["end of a batch" if is_callback else kind.name] += 1
            if entry[1] > 1:
                entry[1] -= 1
            else:
                del self._open[key]
            if kind.latency and not is_callback:
                since = entry[3] if kind.latency == "late" else entry[2]
                self.waits[kind.latency].append((began, began - since))

    @property
    def left(self) -> int:
        """Return how many parts of jobs have not run as often as they must."""
        return len(self._open)

    def lost(self) -> Counter[str]:
        """Return what is open, by kind: at the end, what was lost."""
        return Counter(KINDS[int(entry[0])].name for entry in self._open.values())

    def waits_until(self, moment: float) -> dict[str, list[float]]:
        """Take out the waits of what began before a moment, by series."""
        taken: dict[str, list[float]] = {}
        for name, pairs in [*self.waits.items(), ("behind", self.behind)]:
            taken[name] = [seconds for began, seconds in pairs if began < moment]
            pairs[:] = [pair for pair in pairs if pair[0] >= moment]
        return taken
