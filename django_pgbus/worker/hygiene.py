"""
Request-like hygiene around every job (semantics 8.3), on the connections of this thread.

A transaction that a job left open is rolled back with its connection. A pooled connection goes back after each job.
CONN_MAX_AGE = 0 closes when the thread goes idle, not between two jobs.
"""

from __future__ import annotations

import contextlib
import select
import threading
from typing import Any, Final

from django.db import connections
from django.db.backends.signals import connection_created

from django_pgbus.postgres.leftovers import abandon, is_left_open


class _Mine(threading.local):
    """The connections of this thread, those not opened yet too: asking Django before each job would take longer than it."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.find()

    def find(self) -> None:
        for alias in connections:
            with contextlib.suppress(Exception):  # An engine that cannot be loaded opens no connection either.
                self.found[alias] = connections[alias]


_mine: Final = _Mine()


def _note_connected(*, connection: Any, **kwargs: Any) -> None:
    """Take note of one that somebody put in the place of another; one that stands in no place is its maker's own."""
    with contextlib.suppress(Exception):
        if connections[connection.alias] is connection:
            _mine.found[connection.alias] = connection


connection_created.connect(_note_connected, dispatch_uid="pgbus.hygiene")


def tidy(*, idle: bool) -> None:
    """Leave this thread's connections as a fresh request would find them."""
    if idle:
        _mine.find()
    for connection in list(_mine.found.values()):
        if connection.queries_log:
            connection.queries_log.clear()
        if connection.connection is None and not connection.in_atomic_block:
            continue
        if is_left_open(connection) or (not idle and _was_ended(connection)):
            abandon(connection)
            _mine.find()
        elif connection.connection is not None:
            _refresh(connection, idle=idle)


def _was_ended(connection: Any) -> bool:
    """Return whether the server has spoken meanwhile: to a session that asks nothing it says only goodbye."""
    if connection.connection is None or connection.vendor != "postgresql":
        return False
    socket = select.poll()
    socket.register(connection.connection.fileno(), select.POLLIN)
    return bool(socket.poll(0))


def _refresh(connection: Any, *, idle: bool) -> None:
    settings = connection.settings_dict
    connection.health_check_done = False
    if settings["CONN_MAX_AGE"] != 0 or connection.errors_occurred or idle or settings["OPTIONS"].get("pool"):
        connection.close_if_unusable_or_obsolete()
