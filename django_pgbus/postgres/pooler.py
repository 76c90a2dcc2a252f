"""Telling a server's own session from one that a pooler lends out, transaction by transaction."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql.base import Cursor

from django_pgbus.postgres.statement import Statement

WHOSE = Statement(sql="SELECT pg_backend_pid() AS backend")
# A setting ends with the transaction, so nobody else gets it; one that counts between transactions is of no use there, nor
# one of a network that ends at the pooler.
NOT_CARRIED = frozenset({"idle_session_timeout", "plan_cache_mode"})
OF_A_TRANSACTION = {"default_transaction_isolation": "transaction_isolation"}
CARRIED_BY = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")


def is_pooled(connection: Any) -> bool:
    """Return whether a pooler answers for the server: it names itself when it lets us in. On this thread's connection."""
    backend = WHOSE.row().backend
    return bool(connection.connection.info.backend_pid != backend)


class Carrier:
    """
    Sends settings along with each statement, for its transaction: one message, and so one transaction and one way.

    Django's `execute_wrapper`. Parameters are bound by the client, since a message of several statements takes none.
    """

    def __init__(self, connection: Any) -> None:
        self._settings: dict[str, str] = {}
        self._text = ""
        connection.connection.cursor_factory = Cursor
        connection.execute_wrappers.append(self)

    def take(self, settings: dict[str, str]) -> None:
        """Add these to what is sent along."""
        self._settings |= {
            OF_A_TRANSACTION.get(name, name): value
            for name, value in settings.items()
            if name not in NOT_CARRIED and not name.startswith("tcp_")
        }
        self._text = "".join(f"SET LOCAL {name} = '{value}';\n" for name, value in self._settings.items())

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        """Execute a statement after the settings; the cursor stands at its own result."""
        if many or not sql.lstrip().startswith(CARRIED_BY):
            return execute(sql, params, many, context)
        result = execute(self._text + sql, params, many, context)
        cursor = context["cursor"].cursor
        while cursor.nextset():
            pass
        return result


def carrier_of(connection: Any) -> Carrier | None:
    """Return what carries the settings of a connection that goes through a pooler, None for a session of its own."""
    for wrapper in connection.execute_wrappers:
        if isinstance(wrapper, Carrier):
            return wrapper
    return Carrier(connection) if is_pooled(connection) else None
