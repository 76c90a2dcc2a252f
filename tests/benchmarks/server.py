"""
A PostgreSQL for benchmarks: durable as in production, and a fresh database for each run.

The embedded server on a disk, with fsync and synchronous_commit on; memory and WAL are given enough room that no
checkpoint falls into a run by chance, all else is PostgreSQL's default. `DATABASE_URL` names another server instead: a
superuser's, with pg_stat_statements preloaded.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg

from django_pgbus.embedded import EmbeddedPostgres
from tests.benchmarks import machine

SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_preload_libraries": "pg_stat_statements",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}
TOLD: Final = ("server_version", *SETTINGS, "autovacuum_naptime")


class Store(Protocol):
    """Where a system has its jobs: a database of PostgreSQL, or Redis."""

    @property
    def url(self) -> str:
        """Return how it is connected to."""
        ...

    def settle(self) -> None:
        """Bring what was written before behind us."""
        ...

    def asking(self, question: str) -> contextlib.AbstractContextManager[Callable[[], Any]]:
        """Open a connection for a block, and return a function that asks for one value through it."""
        ...


@dataclass(frozen=True, slots=True)
class Database:
    """One database of the server."""

    name: str
    url: str

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Return a connection, in autocommit."""
        return psycopg.connect(self.url, autocommit=True, **options)

    def value(self, sql: str) -> Any:
        """Return the first column of the first row."""
        with self.asking(sql) as value:
            return value()

    @contextlib.contextmanager
    def asking(self, question: str) -> Iterator[Callable[[], Any]]:
        """Open a connection for a block, and return a function that asks for one value through it."""
        with self.connect() as connection:

            def value() -> Any:
                row = connection.execute(question).fetchone()
                return row[0] if row else None

            yield value

    def settle(self) -> None:
        """Bring statistics and visibility up to date, and the checkpoint behind us."""
        with self.connect() as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")


class Server:
    """The server, and the databases that are made for runs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: set[str] = set()
        self.admin = psycopg.connect(url, autocommit=True)
        self.admin.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    @classmethod
    def open(cls) -> Self:
        """Return the server of DATABASE_URL, or one of our own that ends with this process."""
        if url := os.environ.get("DATABASE_URL"):
            return cls(url)
        place = Path(os.environ.get("BENCH_FOLDER", tempfile.gettempdir())) / f"pgbus-bench-{secrets.token_hex(4)}"
        return cls(EmbeddedPostgres(place, keep=False).start(**SETTINGS).url())

    @property
    def process(self) -> int:
        """Return the number of the server's first process, 0 where it runs on another machine."""
        row = self.admin.execute("SELECT pg_backend_pid()").fetchone()
        return machine.parent_of(row[0]) if row and self.admin.info.host.startswith("/") else 0

    def describe(self) -> dict[str, Any]:
        """Return the settings that the figures depend on."""
        rows = self.admin.execute(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)", [[*TOLD]]
        )
        return dict(sorted(rows.fetchall()))

    def database(self, name: str) -> Database:
        """Return a handle on a database, whether it exists or not."""
        return Database(name, urlunsplit(urlsplit(self._url)._replace(path=f"/{name}")))

    @contextlib.contextmanager
    def fresh(self, kind: str, fill: Callable[[Database], None]) -> Iterator[Database]:
        """
        Make a database for the length of a block: what `fill` made of an empty one, copied from a template.

        `fill` is called once for each `kind`.
        """
        template = self.database(f"bench_{kind}")
        if template.name not in self._made:
            self._create(template.name)
            fill(template)
            template.settle()
            self._made.add(template.name)
        database = self.database(f"bench_{kind}_run")
        self._create(database.name, f"TEMPLATE {template.name} STRATEGY file_copy")
        try:
            yield database
        finally:
            self._drop(database.name)

    def close(self) -> None:
        """Drop what was made."""
        for name in self._made:
            self._drop(name)
        self.admin.close()

    def _create(self, name: str, options: str = "") -> None:
        self._drop(name)
        self.admin.execute(f"CREATE DATABASE {name} {options}")

    def _drop(self, name: str) -> None:
        self.admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
