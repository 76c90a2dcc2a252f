"""A loop with a database connection of its own, opened before a step and dropped when it is lost."""

from __future__ import annotations

import time
from typing import Any

from django.db import OperationalError

from django_pgbus.postgres import is_connection_loss
from django_pgbus.postgres.own_connection import SETTLED_IN, close, own_connection, prepare_statements
from django_pgbus.worker.loop import Loop


class ConnectedLoop(Loop):
    """Connects in the thread that runs it; `connected()` is called after each opening."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options  # of the connection
        self._connection: Any = None
        self._session: Any = None

    def step(self) -> float:
        """Connect if need be, and work."""
        if self._connection is not None and self.is_cut_off:
            self.disconnect()
        if self._connection is None:
            self.connect()
        return self.work()

    def connect(self) -> None:
        """Open the connection."""
        began = time.monotonic()
        connection = own_connection(self.part, **self._options)
        try:
            connection.connect()
            SETTLED_IN.hold()
            prepare_statements(connection)
            self.connected()
        except BaseException:
            close(connection)
            raise
        self._connection, self._session = connection, connection.connection
        self.connected_since = began

    def connected(self) -> None:
        """Do what a fresh connection needs."""

    def work(self) -> float:
        """Do what there is to do; return the seconds to wait before the next step."""
        raise NotImplementedError

    def on_error(self, error: BaseException) -> float:
        """Drop a lost connection; anything else leaves it as it is."""
        if self._connection is not None and (
            is_connection_loss(error) or isinstance(error, OperationalError) or self.is_cut_off
        ):
            self.disconnect()
        wait = super().on_error(error)
        if self._connection is None:
            self.connected_since = float("inf")
        return wait

    @property
    def is_cut_off(self) -> bool:
        """
        Return whether our session is closed, whatever was raised: Django would open another one, without settings.

        It may have done so: where a hook after a commit loses the session, it logs that and nothing else.
        """
        session = self._connection and self._connection.connection
        return session is None or session is not self._session or session.closed

    def disconnect(self) -> None:
        """Drop the connection; the next step opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection)

    def run(self) -> None:
        """Step and wait until `stop`, then disconnect."""
        try:
            super().run()
        finally:
            self.disconnect()
