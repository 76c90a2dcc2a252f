"""Whether what was there before is there after: in the line, delayed, dead or finished, and run once."""

from __future__ import annotations

from tests.benchmarks.counters import Counters
from tests.benchmarks.server import Database

WAITING = "SELECT (SELECT count(*) FROM pgbus_messages) + (SELECT count(*) FROM pgbus_delayed)"
FINISHED = "SELECT (SELECT count(*) FROM pgbus_archive) + (SELECT count(*) FROM pgbus_dead_letters)"


class Books:
    """The jobs of a database, counted before its worker starts and after it has ended."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting, self._finished = database.value(WAITING), database.value(FINISHED)

    def close(self, counters: Counters, checks: dict[str, int]) -> None:
        """Add to the checks which jobs are gone, and which starts were one too many; nothing may run any more."""
        waiting, finished = self._database.value(WAITING), self._database.value(FINISHED)
        checks["lost"] += self._waiting + self._finished - waiting - finished
        checks["doubled"] += counters.starts().count - (finished - self._finished)
