"""
What runs write down about themselves, at once and whatever transaction they are in.

Each thread has a connection of its own for it. `NOTES`, a setting, says where it leads if not to where the project's
connection does: what observes must not suffer from the faults it observes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import connection

NAME: Final = "notes of the storm"  # of its sessions
PATIENCE: Final = 20.0  # seconds that a run waits for the database to come back, to note its end

_mine = threading.local()


def note(statement: str, *values: Any, patience: float = PATIENCE) -> Any:
    """Return the first value that it returns; it is tried again for so long where the database is away."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if getattr(_mine, "connection", None) is None or _mine.connection.closed:
                _mine.connection = psycopg.connect(
                    **_address(), autocommit=True, connect_timeout=5, application_name=NAME
                )
            cursor = _mine.connection.execute(statement, values)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None
        except psycopg.OperationalError:
            with contextlib.suppress(Exception):
                _mine.connection.close()
            _mine.connection = None
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _address() -> dict[str, Any]:
    known = getattr(settings, "NOTES", None) or connection.get_connection_params()
    return {name: known[name] for name in ("dbname", "user", "password", "host", "port") if known.get(name)}
