"""Which errors of PostgreSQL mean "try again", and trying again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
from django.db import InterfaceError, OperationalError, connections

from django_pgbus.conf import database

T = TypeVar("T")

CONFLICTS = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock not available
ATTEMPTS = 5
LOSS = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE behind an error of Django or psycopg, or None."""
    state = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
    return state if isinstance(state, str) else None


def is_conflict(error: BaseException) -> bool:
    """Return whether PostgreSQL ended this transaction in favour of another one."""
    return sqlstate(error) in CONFLICTS


def is_connection_loss(error: BaseException) -> bool:
    """Return whether the connection is gone: unknown whether the statement took effect."""
    state = sqlstate(error)
    if state is not None:
        # 08 connection exception, 25006 a server that is a standby now, 57P shutdown, start-up or a timeout of idle
        # sessions, 25P03 and 25P04 timeouts of transactions, 53300 too many clients
        return state.startswith(("08", "57P")) or state in {"25006", "25P03", "25P04", "53300"}
    return isinstance(error, LOSS)


def retrying(transaction: Callable[[], T], *, attempts: int = ATTEMPTS) -> T:
    """
    Return what `transaction` returns, running it again when PostgreSQL ended it in favour of another one.

    Inside a caller's `atomic()` it runs once: only the caller can repeat what came before.
    """
    for attempt in range(1, attempts + 1):
        try:
            return transaction()
        except Exception as error:
            inside = connections[database()].in_atomic_block
            if inside or attempt == attempts or not is_conflict(error):
                raise
            time.sleep(random.uniform(0, 0.01 * 2**attempt))  # noqa: S311
    raise AssertionError("unreachable")
