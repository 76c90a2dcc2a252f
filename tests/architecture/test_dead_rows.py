"""Under a held snapshot nothing that was done can be vacuumed away, and a claim does not walk over it."""

from __future__ import annotations

import json
import uuid

import pytest
from django.db import connection

from django_pgbus.postgres.own_connection import PIN_PLANS
from django_pgbus.queues import sql
from django_pgbus.queues.line import Line
from tests.line import COMMITTED, DEFAULT, claim, put, succeed
from tests.races.test_late_commits import clock, passed_over  # noqa: F401
from tests.sessions import sessions

pytestmark = [COMMITTED, pytest.mark.races]
DONE = 3000


def pages_read(floor: int) -> int:
    """Return how many pages a claim reads that starts above this floor."""
    given = {
        "queues": [DEFAULT.queue],
        "priorities": [DEFAULT.priority],
        "suspects": [False],
        "floors": [floor],
        "limit": 10,
        "lease": "30 seconds",
        "worker": uuid.uuid4(),
    }
    PIN_PLANS.tuples()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql.CLAIM.sql}", given)
        found = cursor.fetchone()[0]
    (top,) = json.loads(found) if isinstance(found, str) else found
    return int(top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"])


@pytest.mark.proves("dead-rows-are-not-walked-over")
def test_a_claim_does_not_walk_over_what_was_done(clock):  # noqa: F811
    line = Line()
    with sessions(2) as (reader, worker):
        reader.open()
        reader.sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.sql("SELECT 1 FROM pgbus_messages")
        put(DONE)
        succeed(*claim(line, limit=DONE - 1))
        passed_over(line, clock)  # the last one; the floor is above all of them now
        floor = line.floors[DEFAULT].floor
        above, from_zero = worker.do(pages_read, floor), worker.do(pages_read, 0)
        reader.commit()
    assert above < 30
    assert from_zero > 3 * above, "or there is nothing to walk over, and this shows nothing"
