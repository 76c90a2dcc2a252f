"""
Request-like hygiene around every job (semantics 8.3), on the connections of this thread.

A transaction that a job left open is rolled back with its connection. A pooled connection goes back after each job.
CONN_MAX_AGE = 0 closes when the thread goes idle, not between two jobs.
"""

from __future__ import annotations

import contextlib
from typing import Any

from django.db import connections
from psycopg.pq import TransactionStatus


def tidy(*, idle: bool) -> None:
    """Leave this thread's connections as a fresh request would find them."""
    for connection in connections.all(initialized_only=True):
        if connection.queries_log:
            connection.queries_log.clear()
        if connection.in_atomic_block:
            _abandon(connection)
        elif connection.connection is not None:
            _refresh(connection, idle=idle)


def _refresh(connection: Any, *, idle: bool) -> None:
    settings = connection.settings_dict
    connection.health_check_done = False
    left_open = connection.vendor == "postgresql" and (
        connection.connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
    )
    if left_open or connection.get_autocommit() != settings["AUTOCOMMIT"]:
        _abandon(connection)
    elif settings["CONN_MAX_AGE"] != 0 or connection.errors_occurred or idle or settings["OPTIONS"].get("pool"):
        connection.close_if_unusable_or_obsolete()


def _abandon(connection: Any) -> None:
    """Close a connection whatever state it is in; the next use opens a fresh one."""
    with contextlib.suppress(Exception):
        connection.close()
    with contextlib.suppress(AttributeError):
        del connections[connection.alias]
