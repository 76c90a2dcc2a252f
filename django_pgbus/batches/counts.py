"""The verbs of the batches: thin names over `sql.py`, for the transitions in `tasks/`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django_pgbus.batches import sql

MANY_ROWS: Final = 100  # of counts: summing them with every look would cost more than folding them
FOLD_ROWS: Final = 10_000  # in one statement
NONE: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a batch is: `total = outstanding + succeeded + failed`."""

    id: int
    total: int
    succeeded: int
    failed: int
    finished_at: datetime | None = None
    rows: int = 0

    @property
    def outstanding(self) -> int:
        """Return how many members have not ended."""
        return max(0, self.total - self.succeeded - self.failed)


def added(batches: Iterable[int | None]) -> None:
    """Count one member more for each of these batches, in the transaction that enqueues it. Locks: none."""
    _count(added=_members(batches))


def settled(*, succeeded: Iterable[int | None] = (), failed: Iterable[int | None] = ()) -> set[int]:
    """
    Count members that have ended, the batch of each (None: of none), and return these batches.

    In the transaction that settles them. Locks: none.
    """
    return _count(succeeded=_members(succeeded), failed=_members(failed))


def lost(missing: dict[int, int]) -> None:
    """Count members that are nowhere as failed: {batch: how many}. Locks: none."""
    _count(failed=missing)


def _members(batches: Iterable[int | None]) -> Counter[int]:
    return Counter(batch for batch in batches if batch is not None)


def _count(
    added: Mapping[int, int] = NONE, succeeded: Mapping[int, int] = NONE, failed: Mapping[int, int] = NONE
) -> set[int]:
    batches = {*added, *succeeded, *failed}
    if ordered := sorted(batches):
        sql.COUNT.count(
            batches=ordered,
            added=[added.get(batch, 0) for batch in ordered],
            succeeded=[succeeded.get(batch, 0) for batch in ordered],
            failed=[failed.get(batch, 0) for batch in ordered],
        )
    return batches


def standing(ids: Iterable[int]) -> list[Standing]:
    """Return how far these batches are, by one snapshot and without a lock."""
    return [Standing(**row._asdict()) for row in sql.STANDING.rows(ids=sorted(ids))]


def fold(id: int) -> Standing:
    """
    Fold all that was counted into a batch that the caller has locked, and return how far it is.

    Locks: batches, batch_counts.
    """
    while True:
        row = sql.FOLD.row(id=id, limit=FOLD_ROWS)
        if row.rows < FOLD_ROWS:
            return Standing(id=row.id, total=row.total, succeeded=row.succeeded, failed=row.failed)


def lock_unfinished(ids: Sequence[int]) -> list[int]:
    """Lock those of these batches that are not finished, and return them. Locks: batches (skipping)."""
    return [id for (id,) in sql.LOCK_UNFINISHED.tuples(ids=sorted(ids))]


def finish(id: int) -> Any:
    """Write that a batch is finished and return its row, or None if it was. Locks: batches."""
    return sql.FINISH.row(id=id)


def unfinished(after: int, limit: int) -> list[int]:
    """Return the next batches after `after` that are not finished."""
    return [id for (id,) in sql.UNFINISHED.tuples(after=after, limit=limit)]


def deserted(ids: Sequence[int]) -> dict[int, int]:
    """Return {batch: how many are missing} of those whose members are nowhere."""
    return dict(sql.DESERTED.tuples(ids=sorted(ids))) if ids else {}
