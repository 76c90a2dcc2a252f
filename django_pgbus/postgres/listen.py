"""
Waiting for notifications.

One connection of its own, owned by one thread. A lost session is opened anew by the caller, which then looks once
for what it missed; a session that no longer hears itself is deaf (a transaction pooler sits between).
"""

from __future__ import annotations

import json
import select
import time
import uuid
from typing import Any, Final

import psycopg
from django.db import connections

from django_pgbus.conf import database, get_settings

CHANNEL: Final = "pgbus"
SELF_TEST_WAIT: Final = 2.0  # seconds


class Listener:
    """A session that listens on our channel; not safe for several threads but for `connected`."""

    def __init__(self) -> None:
        self._session: psycopg.Connection[Any] | None = None
        self._overheard: list[str] = []  # what came with the reply to a statement of ours

    @property
    def connected(self) -> bool:
        """Return whether a session is open."""
        return self._session is not None and not self._session.closed

    def open(self) -> None:
        """Connect and listen; raises psycopg.OperationalError."""
        self.close()
        wrapper = connections[get_settings().LISTEN_DATABASE or database()]
        params = {**wrapper.get_connection_params(), "connect_timeout": 5, "application_name": "pgbus listen"}
        params |= {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
        for ours in ("context", "prepare_threshold", "cursor_factory", "pool", "server_side_binding"):
            params.pop(ours, None)
        self._session = psycopg.connect(**params, autocommit=True)
        self._session.add_notify_handler(lambda notify: self._overheard.append(notify.payload))
        self._session.execute("SET idle_session_timeout = 0")
        self._session.execute(f"LISTEN {CHANNEL}")

    def close(self) -> None:
        """Close the session if there is one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def hears_itself(self) -> tuple[bool, list[Any]]:
        """Return whether a notification sent here arrives here, and what else came meanwhile."""
        token = uuid.uuid4().hex
        assert self._session is not None
        self._session.execute("SELECT pg_notify(%s::text, %s::text)", [CHANNEL, json.dumps(["test", token])])
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
