"""A PgBouncer of a test's own, in transaction mode, in front of a PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
STARTS_WITHIN = 10.0  # seconds

# The pool is smaller than the number of clients, so that they do share.
CONFIG = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
admin_users = postgres
pool_mode = transaction
max_client_conn = 1000
default_pool_size = {pool}
query_wait_timeout = 30
server_round_robin = {scatter:d}
logfile = {folder}/log
pidfile = {folder}/pid
log_connections = 0
log_disconnections = 0
"""


def is_installed() -> bool:
    """Return whether there is a PgBouncer here."""
    return os.access(PROGRAM, os.X_OK)


class Bouncer:
    """The pooler, and how to reach a database through it."""

    def __init__(self, server: dict[str, Any], *, pool: int = 20, scatter: bool = True) -> None:
        self.port = _free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="pgbus-pooler-"))
        (self._folder / "users").write_text('"postgres" ""\n')
        config = self._folder / "config"
        config.write_text(
            CONFIG.format(
                host=server["HOST"],
                port=server["PORT"],
                listen=self.port,
                folder=self._folder,
                pool=pool,
                scatter=scatter,
            )
        )
        user = []
        if os.geteuid() == 0:
            # It refuses to be root; who owns the socket of the server may use it.
            deputy = Path(server["HOST"]).owner() if server["HOST"].startswith("/") else "nobody"
            user = ["-u", deputy]
            for place in (self._folder, *self._folder.iterdir()):
                shutil.chown(place, deputy)
        self._process = subprocess.Popen(
            [PROGRAM, "-q", *user, str(config)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PgBouncer does not start: {self.log[-2000:]}")
            time.sleep(0.05)

    @property
    def log(self) -> str:
        """Return what it has written."""
        with contextlib.suppress(OSError):
            return (self._folder / "log").read_text()
        return ""

    def database(self, name: str = "postgres", **more: Any) -> dict[str, Any]:
        """Return an entry of Django's `DATABASES`."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "USER": "postgres",
            "NAME": name,
            "DISABLE_SERVER_SIDE_CURSORS": True,
            **more,
        }

    def url(self, name: str = "postgres") -> str:
        """Return the address as text, for `DATABASE_URL`."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def show(self, what: str) -> list[dict[str, Any]]:
        """Return what its console says: POOLS, SERVERS, CLIENTS, STATS."""
        with psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            dbname="pgbouncer",
            autocommit=True,
            row_factory=psycopg.rows.dict_row,
            cursor_factory=psycopg.ClientCursor,
        ) as console:
            return console.execute(f"SHOW {what}".encode()).fetchall()

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def in_front_of(server: dict[str, Any], **options: Any) -> Iterator[Bouncer]:
    """Yield a pooler in front of a server, an entry of `DATABASES`, for the length of a block."""
    bouncer = Bouncer(server, **options)
    try:
        yield bouncer
    finally:
        bouncer.stop()
