"""What the group has written down, as the benchmark reads it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.figures import rounded

RECORD: Final = struct.Struct("<qqqdd")


@dataclass(frozen=True, slots=True)
class Books:
    """Entries in all, the sum of their positions, and how many came out of order."""

    entries: int
    total: int
    wrong: int


class Followed:
    """The records of all processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._skipped = 0

    def _records(self) -> list[tuple[int, int, int, float, float]]:
        records = []
        for file in sorted(self._folder.glob("*.followed")):
            raw = file.read_bytes()
            records += list(RECORD.iter_unpack(raw[: len(raw) // RECORD.size * RECORD.size]))
        return records

    def read(self) -> Books:
        """Return what was handled so far."""
        records = self._records()
        return Books(sum(r[0] for r in records), sum(r[1] for r in records), sum(r[2] for r in records))

    def skip(self) -> None:
        """Leave what was handled so far out of the lags."""
        self._skipped = len(self._records())

    def lags(self, name: str) -> dict[str, Any]:
        """Return p50, p99 and the maximum of the lags, in milliseconds, each batch counted for its entries."""
        records = sorted((r[3] * 1000, r[0]) for r in self._records()[self._skipped :])
        total = sum(entries for _, entries in records)

        def at(share: float) -> float | None:
            passed = 0
            for lag, entries in records:
                passed += entries
                if passed >= share * total:
                    return lag
            return None

        return {
            f"{name}_p50_ms": rounded(at(0.5), 2),
            f"{name}_p99_ms": rounded(at(0.99), 2),
            f"{name}_max_ms": rounded(records[-1][0] if records else None, 2),
        }
