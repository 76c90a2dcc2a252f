"""
What every tool stands on: a connection of its own, on which nothing can be written.

PostgreSQL refuses whatever would write, and cannot be talked out of it before the transaction ends. The connection comes
from no pool, so none of its settings reaches anybody else, and it is closed when the answer is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import connections, transaction
from django.utils import translation

from django_pgbus.conf import database
from django_pgbus.postgres import Statement
from django_pgbus.postgres.own_connection import close, own_connection

PATIENCE: Final = 5_000  # milliseconds of one statement, and of the wait for a lock that somebody took by hand
CONNECTS_WITHIN: Final = 5  # seconds

READ_ONLY = Statement(
    sql="""
    SELECT set_config('transaction_read_only', 'on', true),
           set_config('statement_timeout', %(milliseconds)s::text, true),
           set_config('lock_timeout', %(milliseconds)s::text, true)
    """
)


@contextmanager
def reading() -> Iterator[None]:
    """Let this thread read the tables of pgbus for one answer, in English."""
    alias = database()
    before = connections[alias]
    connection = own_connection("mcp", connect_timeout=CONNECTS_WITHIN)
    try:
        with translation.override(None), transaction.atomic(using=alias):
            READ_ONLY.tuples(milliseconds=str(PATIENCE))
            yield
    finally:
        close(connection)
        connections[alias] = before
