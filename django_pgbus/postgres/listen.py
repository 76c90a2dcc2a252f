"""
Waiting for notifications.

One connection of its own, owned by one thread. A lost session is opened anew by the caller, which then looks once
for what it missed; a session that no longer hears itself is deaf (a transaction pooler sits between). Through such a pooler
nothing listens: LISTEN would be of a session that is lent to others.
"""

from __future__ import annotations

import contextlib
import json
import select
import time
import uuid
from typing import Any, Final

import psycopg
from django.db import connections

from django_pgbus.conf import database, get_settings
from django_pgbus.postgres.own_connection import NOTICES, SETTLED_IN

CHANNEL: Final = "pgbus"
SELF_TEST_WAIT: Final = 2.0  # seconds
# A pooler in use may lend the same session twice by chance, and another one to somebody else meanwhile.
LENDINGS: Final = 5


class Listener:
    """A session that listens on our channel; not safe for several threads but for `connected`."""

    def __init__(self) -> None:
        self._session: psycopg.Connection[Any] | None = None
        self._overheard: list[str] = []  # what came with the reply to a statement of ours
        self._pooled = False
        self._listens = False

    @property
    def connected(self) -> bool:
        """Return whether a session is open."""
        return self._session is not None and not self._session.closed

    def open(self) -> None:
        """Connect and listen; raises psycopg.OperationalError."""
        self.close()
        self._session = self._connect()
        self._session.add_notify_handler(lambda notify: self._overheard.append(notify.payload))
        self._pooled = self._session.info.backend_pid != _backend(self._session)
        self._listens = False
        if not self._pooled:
            self._session.execute(SETTLED_IN.sql.encode())
            self._listen()

    def _connect(self) -> psycopg.Connection[Any]:
        wrapper = connections[get_settings().LISTEN_DATABASE or database()]
        params = {**wrapper.get_connection_params(), "connect_timeout": 5, "application_name": "pgbus listen"}
        params |= {**NOTICES, "prepare_threshold": None}
        for ours in ("context", "cursor_factory", "pool", "server_side_binding"):
            params.pop(ours, None)
        return psycopg.connect(**params, autocommit=True)

    def _listen(self) -> None:
        if not self._listens:
            assert self._session is not None
            self._session.execute(f"LISTEN {CHANNEL}")
            self._listens = True

    def close(self) -> None:
        """Close the session if there is one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def hears_itself(self) -> tuple[bool, list[Any]]:
        """Return whether a notification sent here arrives here, and what else came meanwhile."""
        assert self._session is not None
        if not self._pooled:
            return self._hears(self._session)
        with contextlib.closing(self._connect()) as another:
            if _take_turns(self._session, another):
                return False, []  # Nothing listens: whoever is lent the session next would hear what was meant for us.
            self._listen()
            return self._hears(another)

    def _hears(self, sender: psycopg.Connection[Any]) -> tuple[bool, list[Any]]:
        token = uuid.uuid4().hex
        sender.execute("SELECT pg_notify(%s::text, %s::text)", [CHANNEL, json.dumps(["test", token])])
        others: list[Any] = []
        deadline = time.monotonic() + SELF_TEST_WAIT
        while (left := deadline - time.monotonic()) > 0:
            for message in self.wait(left):
                if message == ["test", token]:
                    return True, others
                others.append(message)
        return False, others

    def wait(self, seconds: float, interrupt: int | None = None) -> list[Any]:
        """
        Return what arrived within `seconds`, empty when nothing did or `interrupt` (a file descriptor) spoke.

        Raises psycopg.OperationalError when the session is lost.
        """
        session = self._session
        if session is None:
            raise psycopg.OperationalError("not connected")
        messages = self._arrived(session)
        if not messages:
            watched = [session.fileno(), *([interrupt] if interrupt is not None else [])]
            readable, _, _ = select.select(watched, [], [], max(0.0, seconds))
            if session.fileno() in readable:
                messages = self._arrived(session)
        return messages

    def _arrived(self, session: psycopg.Connection[Any]) -> list[Any]:
        # consume_input() raises once the server has gone; notifies() of psycopg would hold its lock meanwhile.
        session.pgconn.consume_input()
        texts, self._overheard = self._overheard, []
        while notification := session.pgconn.notifies():
            texts.append(notification.extra.decode("utf-8", "replace"))
        messages = []
        for text in texts:
            try:
                messages.append(json.loads(text))
            except ValueError:
                continue  # Somebody else's notification on our channel.
        return messages


def _backend(session: psycopg.Connection[Any]) -> int:
    """Return the process at the server that has answered."""
    row = session.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def _take_turns(one: psycopg.Connection[Any], another: psycopg.Connection[Any]) -> bool:
    """Return whether a pooler lends the server's sessions by the transaction: one has two of them, or two have one."""
    ours, theirs = set(), set()
    for _ in range(LENDINGS):
        # Twice: a pooler that lends two sessions in turn would give each of us its own.
        ours |= {_backend(one), _backend(one)}
        theirs.add(_backend(another))
    return len(ours) > 1 or bool(ours & theirs)
