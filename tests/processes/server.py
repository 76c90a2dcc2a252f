"""A PostgreSQL of a test's own, to be stopped and started under the workers."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
from django.core.management import call_command
from django.db import connections
from django.db.utils import load_backend

from django_pgbus.embedded import EmbeddedPostgres
from tests.processes.harness import prepare_runs
from tests.settings import place_for_a_run

# A kill of its processes must lose nothing: what was committed is in the hands of the system at least.
SETTINGS = {"fsync": "off", "synchronous_commit": "on", "full_page_writes": "on"}


class Server:
    """The server, and how workers reach it."""

    def __init__(self, place: Path | None = None, options: Mapping[str, str] = SETTINGS) -> None:
        folder = (place or place_for_a_run()) / f"pgbus-away-{secrets.token_hex(4)}"
        self.postgres = EmbeddedPostgres(folder, keep=False)
        self.options = options
        self.postgres.start(**options)
        self.settings = {**connections["default"].settings_dict, **self.postgres.database(), "OPTIONS": {}}

    def stop(self, mode: str = "immediate") -> None:
        connections["default"].close()
        self.postgres.stop(mode)

    def start(self) -> float:
        """Start it again; return the monotonic time from which it answers."""
        self.postgres.start(**self.options)
        with psycopg.connect(**self.postgres.dsn):
            return time.monotonic()


@contextlib.contextmanager
def own_server(place: Path | None = None, options: Mapping[str, str] = SETTINGS) -> Iterator[Server]:
    """Let `default` be a server of its own for the length of a block; raises EmbeddedPostgresError."""
    before = connections["default"]
    server = Server(place, options)
    wrapper = load_backend(server.settings["ENGINE"]).DatabaseWrapper(server.settings, "default")
    connections["default"] = wrapper
    try:
        call_command("migrate", verbosity=0)
        prepare_runs()
        yield server
    finally:
        with contextlib.suppress(Exception):
            wrapper.close()
        connections["default"] = before
        server.postgres.stop("immediate")
