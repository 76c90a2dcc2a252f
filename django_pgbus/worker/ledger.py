"""
What one child holds, as it reported it.

Called for every job, so it is sets and dicts of plain values; rows are made only when the child has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Holding(NamedTuple):
    """A job the child had claimed and not ended."""

    id: int
    delivery: int
    started: bool
    suspect: bool
    running: bool | None = None  # when the child ended; None if it does not tell


class TimedOut(NamedTuple):
    """The job whose hard timeout ended the child."""

    id: int
    max_attempts: int | None = None
    ran_for: float = 0.0


class Ledger:
    """The books on one child."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.states = 0
        self.done = 0
        self.timed_out: TimedOut | None = None
        self.leaving: int | None = None
        self.declared = False  # the subscriptions of its code are written
        self.ran: frozenset[int] | None = None  # what its board says, read once it has ended
        self._claims: dict[int, tuple[int, bool]] = {}
        self._started: set[int] = set()
        self._kinds: dict[str, Callable[[Any], None]] = {
            "claimed": self._claimed,
            "started": self._start,
            "ended": self._end,
            "timed_out": self._time_out,
            "state": self._tell,
            "leaving": self._leave,
            "declared": self._declare,
        }

    def enter(self, message: tuple[Any, ...]) -> None:
        """Enter one report; unknown kinds are passed over."""
        kind, content = message
        if entry := self._kinds.get(kind):
            entry(content)

    @property
    def phase(self) -> str:
        """Return what the child says it does: starting, running, draining or stopping."""
        return str(self.state.get("state", "running")) if self.states else "starting"

    @property
    def running(self) -> list[int]:
        """Return the ids of the jobs that have started, oldest claim first."""
        return [id for id in self._claims if id in self._started]

    def __len__(self) -> int:
        return len(self._claims)

    def held(self) -> list[Holding]:
        """Return what the child holds; what its board shows has started, however late the report."""
        ran = self.ran
        return [
            Holding(
                id,
                delivery,
                id in self._started or (ran is not None and id in ran),
                suspect,
                None if ran is None else id in ran,
            )
            for id, (delivery, suspect) in self._claims.items()
        ]

    def _claimed(self, claims: Iterable[tuple[int, int, bool]]) -> None:
        for id, delivery, suspect in claims:
            self._claims[id] = (delivery, suspect)
            self._started.discard(id)

    def _start(self, ids: list[int]) -> None:
        # The report of a start is lazy and may come after that of its end.
        self._started.update(id for id in ids if id in self._claims)

    def _end(self, ids: list[int]) -> None:
        self.done += len(ids)
        self._started.difference_update(ids)
        for id in ids:
            self._claims.pop(id, None)

    def _time_out(self, job: int | tuple[Any, ...]) -> None:
        self.timed_out = TimedOut(*job) if isinstance(job, tuple) else TimedOut(job)

    def _tell(self, state: dict[str, Any]) -> None:
        self.state = state
        self.states += 1

    def _leave(self, code: int) -> None:
        self.leaving = code

    def _declare(self, done: bool) -> None:  # noqa: FBT001
        self.declared = done
