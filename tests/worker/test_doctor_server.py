"""What `pgbus_doctor` says of the server: settings, clock, notifications, permissions."""

from __future__ import annotations

import time

import pytest
from django.db import connection
from django.test import override_settings

from django_pgbus.postgres.listen import Listener
from django_pgbus.worker import doctor, doctor_server
from django_pgbus.worker.findings import Grade
from tests.sessions import execute
from tests.streams.following import a_stream
from tests.worker.doctors import complaint, complaints

pytestmark = pytest.mark.needs_session("the doctor has something to say about a pooler, and looks at sessions")

# --- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "grade", "text"),
    [
        ("track_activities", "off", Grade.WARN, "nobody can see which transaction"),
        ("track_counts", "off", Grade.FAIL, "autovacuum never learns"),
        ("default_transaction_read_only", "on", Grade.FAIL, "are refused"),
        ("statement_timeout", "1s", Grade.WARN, "is 1000 ms"),
        ("lock_timeout", "100", Grade.WARN, "is 100 ms"),
        ("idle_in_transaction_session_timeout", "5s", Grade.WARN, "is 5000 ms"),
        ("transaction_timeout", "30s", Grade.WARN, "is 30000 ms"),
        ("jit_above_cost", "0", Grade.WARN, "compiled"),
    ],
)
def test_a_setting_that_is_in_the_way_is_named(healthy, session_options, setting, value, grade, text):
    if not execute("SELECT 1 FROM pg_settings WHERE name = %s", [setting]):
        pytest.skip(f"this PostgreSQL has no {setting}")
    session_options(f"-c {setting}={value} -c jit=on")

    found = complaint("settings", setting)
    assert found.grade is grade
    assert text in found.text


@pytest.mark.parametrize(
    "options",
    [
        "-c statement_timeout=60s -c lock_timeout=10s -c idle_in_transaction_session_timeout=60s",
        "-c jit_above_cost=0 -c jit=off",
    ],
)
def test_settings_that_are_wide_enough_are_not(healthy, session_options, options):
    session_options(options)
    assert complaints() == []


@pytest.mark.parametrize(
    ("setting", "grade"), [("fsync", Grade.FAIL), ("full_page_writes", Grade.WARN), ("synchronous_commit", Grade.WARN)]
)
def test_a_server_that_forgets_commits_is_named(transactional_db, setting, grade):
    """As that of the tests does."""
    on = execute("SELECT current_setting(%s)", [setting]) == [("on",)]
    found = [one.grade for one in doctor.examine() if one.where == setting]
    assert found == ([] if on else [grade])


def test_a_session_that_is_never_ended_is_worth_a_word(healthy, session_options):
    session_options("-c synchronous_commit=on -c idle_in_transaction_session_timeout=0")
    wrong = execute("SELECT current_setting('fsync')") == [("off",)]
    (said,) = [one.text for one in doctor.examine() if one.subject == "settings" and one.grade is Grade.OK] or [None]
    assert said is None if wrong else "idle_in_transaction_session_timeout" in said


# --- clock --------------------------------------------------------------------------------------------


def test_a_clock_that_is_off_is_a_warning(healthy, monkeypatch):
    real = time.time
    monkeypatch.setattr(doctor_server.time, "time", lambda: real() - 600)

    (found,) = complaints()
    assert found.subject == "clock"
    assert "600.0 s ahead of this host's" in found.text


def test_a_server_of_the_future_is_a_warning(healthy, monkeypatch):
    monkeypatch.setattr(doctor_server, "NEWEST_POSTGRES", 9)
    assert "newer" in complaint("database", "default").text


# --- notifications ------------------------------------------------------------------------------------


def test_a_listener_that_a_pooler_has_made_deaf_is_a_warning(healthy, monkeypatch):
    opened = Listener.open

    def open_and_lose(self):
        """Do as a transaction pooler does: the next statement is another server session's."""
        opened(self)
        self._session.execute("UNLISTEN *")

    monkeypatch.setattr(Listener, "open", open_and_lose)
    monkeypatch.setattr("django_pgbus.postgres.listen.SELF_TEST_WAIT", 0.05)

    found = complaint("notifications", "default")
    assert found.grade is Grade.WARN
    assert "LISTEN_DATABASE" in found.remedy


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_an_alias_for_notifications_that_is_another_database_fails(monkeypatch):
    monkeypatch.setattr(doctor_server, "SELF_TEST_WAIT", 0.2)
    with override_settings(PGBUS={"DATABASE": "default", "LISTEN_DATABASE": "other"}):
        found = complaint("notifications", "other")

    assert found.grade is Grade.FAIL
    assert "sent on alias 'default' do not arrive on 'other'" in found.text


# --- permissions --------------------------------------------------------------------------------------

ROLE = "pgbus_doctor_reader"


@pytest.fixture
def as_reader(session_options):
    """Let the doctor be a role that may read, and little more."""
    execute(f"DROP ROLE IF EXISTS {ROLE}")
    execute(f"CREATE ROLE {ROLE}")
    execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {ROLE}")
    execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {ROLE}")
    for (log,) in execute(
        "SELECT oid::regclass FROM pg_class WHERE relname ~ '^pgbus_stream_[0-9]+$' AND relkind = 'p'"
    ):
        execute(f"ALTER TABLE {log} OWNER TO {ROLE}")
    session_options(f"-c role={ROLE}")
    yield
    execute(f"REASSIGN OWNED BY {ROLE} TO CURRENT_USER")
    execute(f"DROP OWNED BY {ROLE}")
    execute(f"DROP ROLE {ROLE}")


def test_a_role_that_may_all_has_nothing_to_complain_about(healthy, as_reader):
    assert complaints() == []
    (said,) = [one.text for one in doctor.examine() if one.subject == "permissions"]
    assert said.startswith(f"the role {ROLE} may do what a worker does; of the sessions of other roles")


def test_what_a_role_may_not_is_named_with_the_grant(healthy, as_reader):
    execute(f"REVOKE UPDATE, DELETE ON pgbus_messages FROM {ROLE}")
    execute(f"REVOKE ALL ON SEQUENCE pgbus_task_id FROM {ROLE}")

    table, sequence = complaint("permissions", "pgbus_messages"), complaint("permissions", "pgbus_task_id")
    assert table.text == f"the role {ROLE} may not UPDATE, DELETE on pgbus_messages"
    assert sequence.text == f"the role {ROLE} may not USAGE on pgbus_task_id"
    execute(table.remedy)
    execute(sequence.remedy)
    assert complaints() == []


def test_rows_that_are_hidden_from_a_role_are_named(healthy, as_reader):
    execute("ALTER TABLE pgbus_messages ENABLE ROW LEVEL SECURITY")
    try:
        assert "row level security" in complaint("permissions", "pgbus_messages").text
    finally:
        execute("ALTER TABLE pgbus_messages DISABLE ROW LEVEL SECURITY")


def test_a_log_that_belongs_to_another_role_is_named(healthy, as_reader):
    ledger = a_stream()
    execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}")
    execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {ROLE}")
    found = complaint("permissions", f"pgbus_stream_{ledger.id()}")
    assert found.grade is Grade.WARN
    assert "neither made ahead nor dropped" in found.text


def test_our_own_connection_is_left_as_it_was(healthy):
    before = connection.connection
    complaints()
    assert connection.connection is before
