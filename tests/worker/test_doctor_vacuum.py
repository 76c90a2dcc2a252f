"""What `pgbus_doctor` says of dead rows, and of who keeps them."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgbus.worker import doctor_vacuum
from django_pgbus.worker.findings import Grade
from tests.sessions import execute, sessions
from tests.worker.doctors import complaint, complaints

pytestmark = pytest.mark.needs_session("the doctor has something to say about a pooler, and looks at sessions")


@pytest.mark.parametrize("options", ["autovacuum_enabled = false", "toast.autovacuum_enabled = off"])
def test_autovacuum_that_is_off_for_a_table_fails(healthy, options):
    execute(f"ALTER TABLE pgbus_messages SET ({options})")
    try:
        found = complaint("autovacuum", "pgbus_messages")
    finally:
        execute("ALTER TABLE pgbus_messages RESET (autovacuum_enabled, toast.autovacuum_enabled)")
    assert found.grade is Grade.FAIL
    assert "is off for pgbus_messages" in found.text
    execute(found.remedy)
    assert complaints() == []


def test_dead_rows_that_stay_are_counted(healthy, monkeypatch):
    monkeypatch.setattr(doctor_vacuum, "MANY_DEAD", 100)
    execute("ALTER TABLE pgbus_levels SET (autovacuum_enabled = false)")
    try:
        execute(
            "INSERT INTO pgbus_levels (queue, priority, suspect) SELECT n, 0, false FROM generate_series(1, 500) AS n"
        )
        execute("DELETE FROM pgbus_levels")
        execute("SELECT pg_stat_force_next_flush()")
        execute("SELECT 1")
        lag = [one for one in complaints() if one.where == "pgbus_levels" and one.grade is Grade.WARN]
    finally:
        execute("ALTER TABLE pgbus_levels RESET (autovacuum_enabled)")
    assert "lags behind: pgbus_levels has 500 dead rows beside 0 living ones, last vacuumed" in lag[0].text


def test_pages_without_room_for_updates_are_named(healthy):
    execute("ALTER TABLE pgbus_messages SET (fillfactor = 100)")
    try:
        found = complaint("autovacuum", "pgbus_messages")
    finally:
        execute("ALTER TABLE pgbus_messages SET (fillfactor = 45)")
    assert "has fillfactor 100 instead of 45" in found.text


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(doctor_vacuum, "OLD", -1.0)


def test_an_old_transaction_and_its_snapshot_are_named(healthy, impatient):
    with sessions() as reader:
        reader.open()
        reader.sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.sql("SELECT 1")
        found = {one.subject: one for one in complaints()}
        reader.roll_back()

    assert found["transactions"].where == found["snapshots"].where == str(reader.pid)
    assert f"session {reader.pid}" in found["transactions"].text
    assert f"pg_terminate_backend({reader.pid})" in found["snapshots"].remedy


def test_a_prepared_transaction_is_named_with_its_end(healthy, impatient):
    if execute("SHOW max_prepared_transactions") == [("0",)]:
        pytest.skip("this server has no prepared transactions")
    with connection.cursor() as cursor:
        for text in ("BEGIN", "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'left alone'"):
            cursor.execute(text)
    try:
        found = complaint("transactions", "left alone")
    finally:
        execute("ROLLBACK PREPARED 'left alone'")
    assert "ROLLBACK PREPARED 'left alone'" in found.remedy
