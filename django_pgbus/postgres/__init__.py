"""
How pgbus talks to PostgreSQL.

`Statement` is SQL text with the rows it locks, run on the caller's connection and so in the caller's
transaction. `LOCK_ORDER` is the one order in which rows are locked. `retrying` repeats our own outermost
transactions when PostgreSQL ended them. `own_connection` gives a worker's thread a connection of its own, and
`listen` waits on one for notifications.
"""

from django_pgbus.postgres.locks import LOCK_ORDER
from django_pgbus.postgres.retrying import is_conflict, is_connection_loss, retrying
from django_pgbus.postgres.statement import Statement

__all__ = ["LOCK_ORDER", "Statement", "is_conflict", "is_connection_loss", "retrying"]
