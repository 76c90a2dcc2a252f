"""
What appends in the storm over streams: transactions of every kind, of which some are rolled back.

Each entry is entered in a ledger by the same transaction, and inside the same savepoint: what is in the ledger was appended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from django.db import connection, models, transaction

from django_pgbus import Stream
from tests.processes.server import Server
from tests.storm.sending import Sender
from tests.storm.stream_tables import STREAM

KEYS: Final = 60
STUBBORN: Final = 99
APPENDED: Final = """
    INSERT INTO stream_storm_appended (id, key, amount, stubborn, how)
    SELECT (entry->>'id')::bigint, (entry->>'key')::int, (entry->>'amount')::int, (entry->>'fails')::int = 99, %s::text
    FROM unnest(%s::json[]) AS entry
"""
AT_ONCE: Final = """
    WITH appended AS (INSERT INTO {log} (payload) SELECT unnest(%s::json[]))
    INSERT INTO stream_storm_appended (id, key, amount, stubborn, how)
    SELECT (entry->>'id')::bigint, (entry->>'key')::int, (entry->>'amount')::int, (entry->>'fails')::int = 99, 'at once'
    FROM unnest(%s::json[]) AS entry
"""


class Undone(Exception):
    """A transaction, or a savepoint, is rolled back."""


def model_of(table: str) -> Any:
    """Return a model of the log, for what inserts by the ORM."""

    class Meta:
        app_label = "stream_storm"
        db_table = table
        managed = False

    body = {
        "__module__": __name__,
        "Meta": Meta,
        "position": models.BigIntegerField(primary_key=True, db_default=0),
        "payload": models.JSONField(),
    }
    return type("LogEntry", (models.Model,), body)


class Producer(Sender):
    """One of those that append, until it is asked to stop; it counts entries by how."""

    def __init__(self, number: int, seed: int, server: Server, log: str, model: Any, pace: Callable[[], float]) -> None:
        kinds = {
            self.short: 30,
            self.at_once: 15,
            self.many: 6,
            self.undone: 15,
            self.savepoints: 15,
            self.long: 8,
            self.prepared: 10,
            self.by_orm: 10,
            self.old_id: 10,
            self.nothing_but_an_id: 5,
        }
        super().__init__(number, seed, server.settings, kinds, pace)
        self._number, self._count = number, 0
        self._server, self._log, self._model = server, log, model
        self._stream = Stream(STREAM)
        self._raw: Any = None

    def forget_connections(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()
        super().forget_connections()

    # --- what is appended -------------------------------------------------------------------------------

    def entry(self, how: str) -> dict[str, Any]:
        self._count += 1
        self.tried[how] += 1
        chance = self.random.random()
        return {
            "id": self._number * 10**9 + self._count,
            "key": self.random.randrange(KEYS),
            "amount": self.random.randrange(1000),
            "fails": STUBBORN if chance < 0.002 else self.random.choice((1, 2)) if chance < 0.02 else 0,
            "seconds": self.random.uniform(0, 0.002),
        }

    def _append(self, how: str) -> None:
        entry = self.entry(how)
        self._stream.append(entry)
        self._enter(how, [entry])

    def _enter(self, how: str, entries: list[dict[str, Any]]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(APPENDED, [how, [json.dumps(entry) for entry in entries]])

    @contextmanager
    def _sometimes_undone(self, share: float = 0.3) -> Iterator[None]:
        try:
            with transaction.atomic():
                yield
                if self.random.random() < share:
                    raise Undone
        except Undone:
            pass

    # --- transactions -----------------------------------------------------------------------------------

    def short(self) -> None:
        with transaction.atomic():
            for _ in range(self.random.randint(1, 3)):
                self._append("short")

    def at_once(self) -> None:
        """Append and enter by one statement, outside any transaction."""
        entries = [json.dumps(self.entry("at once")) for _ in range(self.random.randint(1, 3))]
        with connection.cursor() as cursor:
            cursor.execute(AT_ONCE.format(log=self._log), [entries, entries])

    def many(self) -> None:
        """Append by one statement, or by COPY."""
        number = self.random.choice((5, 20, 45, 90))
        how = "append_many" if number <= 40 else "COPY"
        with self._sometimes_undone(0.2):
            entries = [self.entry(how) for _ in range(number)]
            self._stream.append_many(entries)
            self._enter(how, entries)

    def undone(self) -> None:
        with self._sometimes_undone(1):
            for _ in range(self.random.randint(1, 4)):
                self._append("rolled back")
            time.sleep(self.random.uniform(0, 0.05))

    def savepoints(self) -> None:
        with self._sometimes_undone(0.15):
            if self.random.random() < 0.7:
                self._append("beside savepoints")
            for _ in range(self.random.randint(1, 3)):
                with self._sometimes_undone(0.5):
                    self._append("savepoint")
                    with self._sometimes_undone(0.5):
                        self._append("savepoint in a savepoint")
            if self.random.random() < 0.7:
                self._append("beside savepoints")

    def long(self) -> None:
        """Stay open while many others come and go."""
        with self._sometimes_undone():
            for _ in range(self.random.randint(1, 4)):
                self._append("long")
                self.stopping.wait(self.random.uniform(0.1, 0.8))

    def by_orm(self) -> None:
        with self._sometimes_undone(0.2):
            entries = [self.entry("ORM") for _ in range(self.random.randint(1, 3))]
            if len(entries) == 1:
                self._model.objects.create(payload=entries[0])
            else:
                self._model.objects.bulk_create([self._model(payload=entry) for entry in entries])
            self._enter("ORM", entries)

    def old_id(self) -> None:
        """Take the transaction id long before the position."""
        with self._sometimes_undone(0.2), connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")
            time.sleep(self.random.uniform(0, 0.2))
            self._append("old id")
            time.sleep(self.random.uniform(0, 0.02))

    def nothing_but_an_id(self) -> None:
        """Hold back what is proven, and append nothing."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")
            self.stopping.wait(self.random.uniform(0, 0.5))

    def prepared(self) -> None:
        """Let a transaction outlive its session, and end it by another statement."""
        if self._raw is None:
            self._raw = psycopg.connect(**self._server.postgres.dsn, autocommit=True)
        raw = self._raw
        entries = [json.dumps(self.entry("prepared")) for _ in range(self.random.randint(1, 3))]
        name = f"storm-{self._number}-{self._count}"
        raw.execute("BEGIN")
        for entry in entries:
            raw.execute(f"INSERT INTO {self._log} (payload) VALUES (%s)", [entry])
        raw.execute(APPENDED, ["prepared", entries])
        raw.execute(f"PREPARE TRANSACTION '{name}'")
        self.stopping.wait(self.random.uniform(0, 0.6))
        raw.execute(f"{self.random.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} PREPARED '{name}'")
