"""
Request-like hygiene around every job (semantics 8.3), on the connections of this thread.

A transaction that a job left open is rolled back with its connection. A pooled connection goes back after each job.
CONN_MAX_AGE = 0 closes when the thread goes idle, not between two jobs.
"""

from __future__ import annotations

import select
from typing import Any

from django.db import connections

from django_pgbus.postgres.leftovers import abandon, is_left_open


def tidy(*, idle: bool) -> None:
    """Leave this thread's connections as a fresh request would find them."""
    for connection in connections.all(initialized_only=True):
        if connection.queries_log:
            connection.queries_log.clear()
        if is_left_open(connection) or (not idle and _was_ended(connection)):
            abandon(connection)
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
