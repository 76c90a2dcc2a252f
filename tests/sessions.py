"""More than one session at the database, in an order that the test decides."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

from django.db import connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import IsolationLevel

T = TypeVar("T")
PATIENCE = 20.0  # seconds until a test that hangs fails; never a proof
POOLED = "PGBUS_TEST_DIRECT_URL" in os.environ  # a pooler lends us the server's sessions: ours is the one with our name
BLOCKED = """
    SELECT EXISTS (
        SELECT
        FROM pg_stat_activity
        WHERE CASE WHEN %s THEN application_name = %s AND state = 'active' ELSE pid = %s END
          AND cardinality(pg_blocking_pids(pid)) > 0
    )
"""
NAMED = """
    SELECT pid
    FROM pg_stat_activity
    WHERE application_name = %s
      AND state <> 'idle'
      AND pid <> pg_backend_pid()
"""


class Session:
    """A thread with a connection of its own that does what it is told, one thing after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._atomic: Any = None
        self.name = f"{os.getpid()}/{id(self)}"
        if POOLED:
            self.sql("SELECT set_config('application_name', %s, false)", self.name)
        self._pid = self.do(_backend_pid)

    @property
    def pid(self) -> int:
        """Return its process at the server; through a pooler that of its transaction, while it is in one."""
        if not POOLED:
            return self._pid
        found = _execute(NAMED, [self.name])
        return int(found[0][0]) if found else self.do(_backend_pid)

    def do(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return what the call returns, over there."""
        return self.begin(call, *args, **kwargs).result(PATIENCE)

    def begin(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
        """Start a call that may have to wait for somebody."""
        return self._thread.submit(call, *args, **kwargs)

    def sql(self, text: str, *params: Any) -> list[Any]:
        """Run a statement over there and return its rows."""
        return self.do(_execute, text, params)

    def open(self) -> None:
        """Begin a transaction."""
        self._atomic = transaction.atomic()
        self.do(self._atomic.__enter__)

    def commit(self) -> None:
        """End the transaction."""
        self.do(self._atomic.__exit__, None, None, None)

    def roll_back(self) -> None:
        """End the transaction as if it had never been."""
        self.do(transaction.set_rollback, True)
        self.commit()

    def wait_until_blocked(self) -> None:
        """Return once its statement waits for a lock of somebody else."""
        deadline = time.monotonic() + PATIENCE
        while not self.is_blocked():
            assert time.monotonic() < deadline, "nobody waits"

    def is_blocked(self) -> bool:
        """Return whether its statement waits for a lock of somebody else."""
        if POOLED:
            _execute(
                "SELECT pg_stat_clear_snapshot()"
            )  # A transaction sees the activity as it was when it first looked.
        return bool(_execute(BLOCKED, [POOLED, self.name, self._pid])[0][0])

    def close(self) -> None:
        """Leave."""
        self.do(_leave)
        self._thread.shutdown()


def until(true: Callable[[], Any]) -> None:
    """Return once it is true; a test that fails fails here after a while."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


@contextmanager
def sessions(number: int = 1) -> Iterator[Any]:
    """Yield one session, or a tuple of them."""
    them = [Session() for _ in range(number)]
    try:
        yield them[0] if number == 1 else tuple(them)
    finally:
        for one in them:
            one.close()


@contextmanager
def strict_session() -> Iterator[Session]:
    """Yield a session whose transactions go on seeing what they saw first, as a project may set it in `OPTIONS`."""
    with mock.patch.dict(connection.settings_dict["OPTIONS"], isolation_level=IsolationLevel.REPEATABLE_READ):
        one = Session()
        try:
            yield one
        finally:
            one.close()


def _leave() -> None:
    if connection.connection is not None:
        connection.connection.close()  # What the session was set to must not go back to a pool.
    connections.close_all()


def _backend_pid() -> int:
    return int(_execute("SELECT pg_backend_pid()")[0][0])


def _execute(text: str, params: Any = ()) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        return cursor.fetchall() if cursor.description else []


execute = _execute
