"""
`pgbus_doctor`: what could keep jobs from running here, each look in one line.

The system checks come first, since most of what can be wrong can be known without a worker. Then the looks at the
living system: they read and change nothing, are bounded (rows and seconds), and know nothing of each other; one that
cannot be made says so, and the next is made all the same.
"""

from __future__ import annotations

from typing import Final

from django.db import DatabaseError, connections

from django_pgbus.conf import database
from django_pgbus.postgres.own_connection import IMPATIENT, close, own_connection
from django_pgbus.worker import (
    doctor_project,
    doctor_schema,
    doctor_sequences,
    doctor_server,
    doctor_settings,
    doctor_streams,
    doctor_vacuum,
    doctor_work,
)
from django_pgbus.worker.findings import Finding, Findings, Grade, Look

LOOK_TAKES: Final = 5.0  # seconds that a statement may take

LOOKS: Final[dict[str, Look]] = {
    "database": doctor_server.server,
    "settings": doctor_settings.look,
    "schema": doctor_schema.migrations,
    "tables": doctor_schema.tables,
    "sequences": doctor_sequences.look,
    "permissions": doctor_server.permissions,
    "notifications": doctor_server.notifications,
    "connections": doctor_server.room,
    "workers": doctor_work.workers,
    "queues": doctor_work.queues,
    "tasks": doctor_work.tasks,
    "events": doctor_work.events,
    "streams": doctor_streams.look,
    "autovacuum": doctor_vacuum.tables,
    "transactions": doctor_vacuum.transactions,
}


def examine() -> Findings:
    """Yield what is found, one look after the other."""
    yield from _look("configuration", doctor_project.configuration)
    yield from _look("routing", doctor_project.routing)
    alias = database()
    before = connections[alias]
    connection = own_connection("doctor")
    try:
        connection.connect()
        IMPATIENT.hold(milliseconds=str(int(LOOK_TAKES * 1000)))
    except Exception as error:
        yield Finding(Grade.FAIL, "database", f"alias {alias!r} cannot be reached: {_line(error)}", "Check DATABASES.")
    else:
        for subject, look in LOOKS.items():
            yield from _look(subject, look)
    finally:
        close(connection)
        connections[alias] = before


def _look(subject: str, look: Look) -> Findings:
    try:
        yield from look()
    except Exception as error:
        grade = Grade.WARN if isinstance(error, DatabaseError) else Grade.FAIL
        yield Finding(grade, subject, f"could not be looked at: {_line(error)}")


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else repr(error)
