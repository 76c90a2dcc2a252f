"""
The four handlers of the storm of events, and the tables they write.

What they do in the transaction of their completion stands in the ledger; the others note when they began and ended, each
at once.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Any, Final

from django.db import connection

from django_pgbus import subscribe
from tests.storm.notes import note

TOPIC: Final = "storm.happened"
CREATE: Final = """
    CREATE TABLE event_storm_ledger (event uuid NOT NULL, handler text NOT NULL);
    CREATE TABLE event_storm_runs (
        run uuid PRIMARY KEY,
        event uuid NOT NULL,
        handler text NOT NULL,
        publication int NOT NULL,
        pid int NOT NULL,
        began timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended timestamptz
    );
    CREATE TABLE event_storm_kills (pid int NOT NULL, after timestamptz NOT NULL, before timestamptz NOT NULL);
"""
DROP: Final = "DROP TABLE event_storm_ledger, event_storm_runs, event_storm_kills"
# A reply may be lost, and the row be there.
BEGAN: Final = """
    INSERT INTO event_storm_runs (run, event, handler, publication, pid)
    VALUES (%s::uuid, %s::uuid, %s::text, %s::int, %s::int)
    ON CONFLICT (run) DO NOTHING
"""
ENDED: Final = "UPDATE event_storm_runs SET ended = clock_timestamp() WHERE run = %s::uuid AND ended IS NULL"
MOST: Final = 100  # attempts: the kills are many


def _books(event: Any, handler: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO event_storm_ledger (event, handler) VALUES (%s::uuid, %s::text)", [event.id, handler]
        )
    time.sleep(event.payload["seconds"])


def _notes(event: Any, handler: str) -> None:
    run = uuid.uuid4()
    note(BEGAN, run, event.id, handler, event.payload["publication"], os.getpid())
    time.sleep(event.payload["seconds"])
    note(ENDED, run)


@subscribe("storm.*", transactional=True, max_attempts=MOST)
def transactional(event: Any) -> None:
    _books(event, "transactional")


@subscribe("storm.happened", max_attempts=MOST)
def plain(event: Any) -> None:
    _notes(event, "plain")


@subscribe("#.happened", idempotent=True, max_attempts=MOST)
def idempotent(event: Any) -> None:
    _notes(event, "idempotent")


@subscribe("storm.#", idempotent=True, transactional=True, max_attempts=MOST)
def both(event: Any) -> None:
    _books(event, "both")


HANDLERS: Final = (transactional, plain, idempotent, both)
