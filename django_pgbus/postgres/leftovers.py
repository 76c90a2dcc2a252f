"""What a function of the user leaves behind of the connections of its thread, and what its queries can spoil."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from django.db import connections, transaction
from psycopg.pq import TransactionStatus


def is_left_open(connection: Any) -> bool:
    """Return whether somebody left a transaction behind, or a connection that is closed already; asks nobody."""
    session = connection.connection
    if connection.in_atomic_block or session is None:
        return bool(connection.in_atomic_block)
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return True
    return bool(connection.vendor == "postgresql" and session.info.transaction_status != TransactionStatus.IDLE)


def abandon(connection: Any) -> None:
    """Close a connection whatever state it is in; the next use opens a fresh one."""
    with contextlib.suppress(Exception):
        connection.close()
    with contextlib.suppress(AttributeError):
        del connections[connection.alias]


def depth(connection: Any) -> int:
    """Return how many blocks of atomic() are open."""
    return len(connection.savepoint_ids) + int(connection.in_atomic_block)


@contextlib.contextmanager
def as_it_was(alias: str) -> Iterator[None]:
    """
    Let the block leave the connections of this thread as they were.

    Outside a transaction what is left open or broken is closed. Inside one, blocks of atomic() that were left open are
    rolled back; then the block has failed: raises RuntimeError.
    """
    outer = depth(connections[alias])
    try:
        yield
    except BaseException:
        _close(alias, outer)
        raise
    if _close(alias, outer):
        raise RuntimeError("It left a transaction open inside the one that it runs in.")


def _close(alias: str, outer: int) -> bool:
    connection: Any = connections[alias]
    if not outer:
        for each in connections.all(initialized_only=True):
            if is_left_open(each):
                abandon(each)
            elif each.errors_occurred:
                each.close_if_unusable_or_obsolete()
        return False
    left = depth(connection) > outer
    while depth(connection) > outer:
        with contextlib.suppress(Exception):
            transaction.atomic(using=alias).__exit__(RuntimeError, RuntimeError(), None)
    return left


@contextlib.contextmanager
def guarded(alias: str) -> Iterator[None]:
    """Give each query inside a savepoint of its own, so that one that fails does not end the transaction around."""
    connection = connections[alias]
    busy = False

    def guard(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        nonlocal busy
        if busy or not connection.in_atomic_block or str(sql).startswith(("SAVEPOINT", "RELEASE", "ROLLBACK TO")):
            return execute(sql, params, many, context)
        busy = True
        try:
            with transaction.atomic(using=alias):
                return execute(sql, params, many, context)
        finally:
            busy = False

    with connection.execute_wrapper(guard):
        yield
