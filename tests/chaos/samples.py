"""What is looked at each second: sessions by name, memory of each process, locks waited for, sizes of tables."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from tests.processes.harness import memory
from tests.storm.batches import UNBALANCED

SESSIONS: Final = """
    SELECT application_name, count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%%')
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
    GROUP BY application_name
"""
WAITED: Final = "SELECT count(*) FROM pg_locks WHERE NOT granted"
SIZES: Final = """
    SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relname LIKE 'pgbus%%' AND relkind = 'r'
"""
STARVED: Final = 2.0  # seconds late: this machine gave nobody a processor


@dataclass(slots=True)
class Samples:
    """All that was seen."""

    sessions: list[Counter[str]] = field(default_factory=list)
    in_transaction: list[int] = field(default_factory=list)
    memory: dict[int, list[tuple[float, int]]] = field(default_factory=dict)  # KiB of each process over time
    waited: list[int] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # the largest of each table
    unbalanced: list[str] = field(default_factory=list)
    looks: int = 0


class Sampler(threading.Thread):
    """Looks each second, until it is stopped; `starved` is called with the seconds that a look was late."""

    def __init__(
        self, dsn: dict[str, Any], children: Callable[[], list[int]], starved: Callable[[float], None]
    ) -> None:
        super().__init__(name="sampler", daemon=True)
        self.samples = Samples()
        self.stopping = threading.Event()
        self._dsn, self._children, self._starved = dsn, children, starved
        self._connection: Any = None

    def run(self) -> None:
        """Look."""
        due = time.monotonic()
        while not self.stopping.wait(max(0.0, due - time.monotonic())):
            if (late := time.monotonic() - due) > STARVED:
                self._starved(late)
            due = max(due + 1.0, time.monotonic())
            self._look_at_memory()
            try:
                self._look()
            except psycopg.Error:
                self._connection = None
            due = max(due, time.monotonic())
        if self._connection is not None:
            self._connection.close()

    def _look_at_memory(self) -> None:
        for pid in self._children():
            try:
                self.samples.memory.setdefault(pid, []).append((time.monotonic(), memory(pid)))
            except (OSError, AssertionError):
                continue

    def _look(self) -> None:
        if self._connection is None:
            self._connection = psycopg.connect(
                **self._dsn, autocommit=True, application_name="sampler", connect_timeout=2
            )
        rows = self._connection.execute(SESSIONS).fetchall()
        self.samples.sessions.append(Counter({name: number for name, number, _ in rows}))
        self.samples.in_transaction.append(sum(open for *_, open in rows))
        self.samples.waited.append(self._connection.execute(WAITED).fetchone()[0])
        for id, outstanding, members in self._connection.execute(UNBALANCED).fetchall():
            self.samples.unbalanced.append(f"batch {id}: {outstanding} outstanding, {members} are somewhere")
        self.samples.looks += 1
        if self.samples.looks % 10 == 1:
            for name, size in self._connection.execute(SIZES).fetchall():
                self.samples.sizes[name] = max(self.samples.sizes.get(name, 0), size)
