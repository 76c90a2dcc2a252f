"""
What the storm's rows add up to.

A run is fenced in from its beginning to the earliest of its end, the kill of its process, and the moment when its
delivery number was raised. A moment shared by an end and a beginning belongs to the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

Execute = Callable[..., list[tuple[Any, ...]]]


class Run(NamedTuple):
    """One run, while it was fenced in."""

    id: int
    limited: str | None
    allowed: int
    only: str | None
    began: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Everything that was seen."""

    runs: list[Run]
    lives: list[tuple[str, datetime, datetime]]  # jobs unique until executed: (key, first run began, last run ended)

    def over_the_limit(self) -> list[str]:
        """Return each moment at which more runs of a key were fenced in than allowed."""
        return _excess((run.limited, run.allowed, run.began, run.until, run.id) for run in self.runs if run.limited)

    def together(self) -> list[str]:
        """Return each moment at which two runs of a uniqueness key were fenced in, or two jobs of one lived."""
        found = _excess((run.only, 1, run.began, run.until, run.id) for run in self.runs if run.only)
        return found + _excess((f"{key} (jobs)", 1, began, until, 0) for key, began, until in self.lives)

    def full(self) -> int:
        """Return how many keys had as many runs at once as they are allowed: without any, nothing was tried."""
        by_key: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            if run.limited:
                by_key[run.limited].append(run)
        return sum(
            max((len(ids) for _, ids in _at_once([(r.began, r.until, r.id) for r in of_key])), default=0)
            >= of_key[0].allowed
            for of_key in by_key.values()
        )


def read(execute: Execute, unique: str = "tests.storm.tasks.unique") -> Books:
    """Return the books of the storm that is over; `unique` is the path of the task that is unique until executed."""
    raised: dict[int, list[tuple[datetime, int, Any]]] = defaultdict(list)
    for id, delivery, worker, at in execute("SELECT id, delivery, worker, at FROM storm_deliveries ORDER BY at"):
        raised[id].append((at, delivery, worker))
    killed: dict[int, list[datetime]] = defaultdict(list)
    for pid, at in execute("SELECT pid, at FROM storm_kills ORDER BY at"):
        killed[pid].append(at)
    ((last,),) = execute("SELECT clock_timestamp()")
    runs = []
    rows = execute("SELECT id, worker, pid, limited, allowed, sole, began, ended FROM storm_runs ORDER BY began")
    for id, worker, pid, limited, allowed, only, began, ended in rows:
        ends = [ended or last, *killed[pid][bisect_right(killed[pid], began) :][:1]]
        ends += _raised_after(raised[id], worker, began)
        runs.append(Run(id, limited, allowed or 0, only, began, max(began, min(ends))))
    lives = execute(
        f"""
        SELECT runs.sole, min(runs.began), archived.finished_at
        FROM pgbus_archive AS archived
        JOIN storm_runs AS runs ON runs.id = archived.id
        WHERE archived.task = '{unique}'
        GROUP BY runs.sole, archived.id, archived.finished_at
        """
    )
    return Books(runs=runs, lives=[(key, began, ended) for key, began, ended in lives])


def _raised_after(history: list[tuple[datetime, int, Any]], worker: Any, began: datetime) -> list[datetime]:
    """Return when the number of the delivery that began then, by that worker, was raised."""
    mine = max((delivery for at, delivery, claimer in history if at <= began and claimer == worker), default=None)
    if mine is None:
        raise AssertionError(f"Nobody saw the claim of a run that began at {began}.")
    return [min(later)] if (later := [at for at, delivery, _ in history if delivery > mine]) else []


def _excess(spans: Iterable[tuple[str, int, datetime, datetime, int]]) -> list[str]:
    by_key: dict[tuple[str, int], list[tuple[datetime, datetime, int]]] = defaultdict(list)
    for key, allowed, began, until, id in spans:
        by_key[key, allowed].append((began, until, id))
    return [
        f"{key}: {len(at_once)} at {moment}, allowed {allowed}, the last is #{at_once[-1]}"
        f" beside {', '.join(f'#{id}' for id in at_once[:-1])}"
        for (key, allowed), of_key in by_key.items()
        for moment, at_once in _at_once(of_key)
        if len(at_once) > allowed
    ]


def _at_once(spans: list[tuple[datetime, datetime, int]]) -> list[tuple[datetime, list[int]]]:
    """Return (when, which run, the one that began last) for each beginning."""
    lasting = [span for span in spans if span[1] > span[0]]
    events = sorted(
        [(b, 1, nth) for nth, (b, _, _) in enumerate(lasting)] + [(u, -1, nth) for nth, (_, u, _) in enumerate(lasting)]
    )
    running: dict[int, int] = {}
    found = []
    for moment, change, nth in events:
        if change < 0:
            del running[nth]
        else:
            running[nth] = lasting[nth][2]
            found.append((moment, list(running.values())))
    return found
