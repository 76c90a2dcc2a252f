"""Counting outcomes once they are settled, and writing the sums now and then; nothing here stops a settlement."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from django_pgbus import signals
from django_pgbus.insights.recording import Tally, Verdict
from django_pgbus.postgres import is_conflict, is_connection_loss
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks.executor import Done, HandBack, Outcome, Superseded
from django_pgbus.tasks.outcomes import GaveUp, PutOff, Success

PART: Final = "counting of runs"
SOON: Final = 1.0  # seconds from the first run after a pause to the row that tells of it
AGAIN: Final = 60.0  # seconds after an error: the table may not be there yet

VERDICTS: Final = {
    Success: Verdict.SUCCEEDED,
    Done: Verdict.SUCCEEDED,
    PutOff: Verdict.FAILED,
    GaveUp: Verdict.DEAD,
    Superseded: Verdict.SUPERSEDED,
    HandBack: Verdict.HANDED_BACK,
}
SNOOZED: Final = Verdict.SNOOZED


class Counter:
    """Counts for one process; whoever settles calls it, on the connection it settles on."""

    def __init__(self, every: float) -> None:
        """`every` is the least number of seconds between two writes."""
        self._every = max(every, SOON)
        self._tally = Tally()
        self._due = 0.0  # by the monotonic clock
        self._written_at = float("-inf")
        self.hurries = False  # the process ends: write at once

    def count(self, outcomes: Iterable[Outcome], otherwise: Mapping[Delivery, Verdict | None]) -> None:
        """Count outcomes as what they are, or `otherwise`; None is not counted."""
        if not self._tally:
            self._due = max(self._written_at + self._every, time.monotonic() + SOON)
        add = self._tally.add
        for outcome in outcomes:
            delivery = outcome.delivery
            verdict = otherwise[delivery] if delivery in otherwise else verdict_of(outcome)
            if verdict is not None:
                add(delivery, verdict, None if _has_not_run(outcome) else outcome.ran_for)

    @property
    def owes(self) -> bool:
        """Return whether there is something to write."""
        return bool(self._tally)

    def write_if_due(self) -> float:
        """Write if it is time, and return the seconds until then; a lost connection is the caller's."""
        if not self._tally:
            self.hurries = False
            return float("inf")
        now = time.monotonic()
        if now < self._due and not self.hurries:
            return self._due - now
        self.hurries = False  # What cannot be written now is not waited for.
        self._due = now + self._every
        try:
            self._tally.write()
        except Exception as error:
            if is_connection_loss(error):
                raise
            if not is_conflict(error):  # Somebody has locked the table: next time.
                self._due = now + AGAIN
                signals.loop_failed.send_robust(sender=type(self), part=PART, exception=error)
        else:
            self._written_at = now
        return self._every


def verdict_of(outcome: Outcome) -> Verdict:
    """Return what a settled outcome counts as."""
    kind = type(outcome)
    return SNOOZED if kind is PutOff and outcome.reason == "snoozed" else VERDICTS[kind]  # type: ignore[union-attr]


def count_at_once(outcome: Outcome) -> None:
    """Count one outcome that another process than its own has settled; that it cannot be counted is only said."""
    tally = Tally()
    tally.add(outcome.delivery, verdict_of(outcome), None if _has_not_run(outcome) else outcome.ran_for)
    try:
        tally.write()
    except Exception as error:
        signals.loop_failed.send_robust(sender=Counter, part=PART, exception=error)


def _has_not_run(outcome: Outcome) -> bool:
    return type(outcome) is GaveUp and outcome.not_run
