"""A claim and a beat touch no index and find room on their page: HOT updates, or the line is a third slower."""

from __future__ import annotations

import os

import pytest
from django.db import connection

from django_pgbus.models import Message
from django_pgbus.queues import heartbeat
from django_pgbus.queues.line import Line
from tests.line import COMMITTED, LEASE, claim, holding, long_up, put  # noqa: F401
from tests.sessions import execute, sessions

pytestmark = [
    COMMITTED,
    pytest.mark.skipif(
        "PYTEST_XDIST_WORKER" in os.environ, reason="snapshots of the other test process keep old versions on the pages"
    ),
]

CHANGED = {"leased_until", "delivery", "attempts", "started", "claimed_at", "worker", "discard_requested"}


def updates(worker):
    worker.sql("SELECT pg_stat_force_next_flush()")
    worker.sql("SELECT 1")
    return execute("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'pgbus_messages'")[0]


@pytest.mark.proves("claims-and-beats-are-hot-updates")
def test_claims_and_beats_are_hot_updates():
    line = Line()
    with sessions() as worker:
        put(1000)
        worker.sql("SELECT pg_stat_reset_single_table_counters('pgbus_messages'::regclass)")
        held = holding(*(delivery for _ in range(10) for delivery in worker.do(claim, line)))
        claims, hot_claims = updates(worker)
        for _ in range(2):
            worker.do(heartbeat.renew, held, LEASE)
        total, hot = updates(worker)
    assert claims == hot_claims == 1000
    assert hot / total > 0.9


def test_without_the_room_on_each_page_they_are_not():
    with sessions() as worker:
        worker.sql("ALTER TABLE pgbus_messages SET (fillfactor = 100)")
        try:
            put(1000)
            worker.sql("SELECT pg_stat_reset_single_table_counters('pgbus_messages'::regclass)")
            worker.do(claim, limit=1000)
            claims, hot_claims = updates(worker)
        finally:
            worker.sql("ALTER TABLE pgbus_messages SET (fillfactor = 45)")
    assert hot_claims / claims < 0.5


@pytest.mark.proves("claims-and-beats-are-hot-updates")
def test_no_index_of_the_line_holds_what_a_claim_or_a_beat_changes():
    """In an index, in its expressions or in its condition, each of these would end HOT updates."""
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, Message._meta.db_table)
    assert not CHANGED & {column for index in constraints.values() if index["index"] for column in index["columns"]}
    definitions = [text for (text,) in execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'pgbus_messages'")]
    assert len(definitions) == 4
    conditions = [text.partition(" WHERE ")[2] for text in definitions if " WHERE " in text]
    assert sorted(conditions) == ["(batch_id IS NOT NULL)", "(event_id IS NOT NULL)"]  # which no claim or beat changes
    options = execute("SELECT reloptions FROM pg_class WHERE oid = 'pgbus_messages'::regclass")[0][0]
    assert "fillfactor=45" in options
