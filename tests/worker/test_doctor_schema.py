"""What `pgbus_doctor` says of tables, indexes and sequences that are not as migrations made them; its remedies work."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest
from django.db import DatabaseError, migrations

import django_pgbus.migrations
from django_pgbus.models import Subscription
from django_pgbus.worker import doctor_schema, doctor_sequences, doctor_vacuum
from django_pgbus.worker.findings import Grade
from tests.sessions import execute
from tests.streams.following import a_group, a_stream
from tests.worker.doctors import complaint, complaints, message

pytestmark = pytest.mark.needs_session("the doctor has something to say about a pooler, and looks at sessions")


def broken(*statements):
    for statement in statements:
        execute(statement)


def mended(remedy):
    """Do what the doctor says, and be sure that it has nothing more to say."""
    execute(remedy)
    assert complaints() == []


# --- migrations ---------------------------------------------------------------------------------------


def test_a_migration_that_is_missing_fails(healthy):
    last = "0004_streams"
    execute("DELETE FROM django_migrations WHERE app = 'pgbus' AND name = %s", [last])
    try:
        found = complaint("schema", "pgbus.W010")
    finally:
        execute("INSERT INTO django_migrations (app, name, applied) VALUES ('pgbus', %s, now())", [last])
    assert found.grade is Grade.FAIL
    assert "migrate pgbus" in found.remedy


def test_a_migration_of_a_later_version_is_named(healthy):
    execute("INSERT INTO django_migrations (app, name, applied) VALUES ('pgbus', '9999_later', now())")
    try:
        found = complaint("schema", "9999_later")
    finally:
        execute("DELETE FROM django_migrations WHERE name = '9999_later'")
    assert found.grade is Grade.WARN


# --- indexes and constraints --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("breaks", "where"),
    [
        ("DROP INDEX pgbus_messages_line", "pgbus_messages_line"),
        ("DROP INDEX pgbus_blocked_line", "pgbus_blocked_line"),
        ("DROP INDEX pgbus_slots_leased", "pgbus_slots_leased"),
        ("ALTER TABLE pgbus_semaphore_slots DROP CONSTRAINT pgbus_slots_once", "pgbus_slots_once"),
        ("ALTER TABLE pgbus_semaphore_slots DROP CONSTRAINT pgbus_slots_from_one", "pgbus_slots_from_one"),
        ("ALTER TABLE pgbus_delayed DROP CONSTRAINT pgbus_delayed_pkey", "on (id)"),
        (
            "DROP INDEX pgbus_messages_line; CREATE INDEX pgbus_messages_line ON pgbus_messages (queue)",
            "pgbus_messages_line",
        ),
        (
            "DROP INDEX pgbus_delayed_batch; CREATE INDEX pgbus_delayed_batch ON pgbus_delayed (batch_id, id)",
            "pgbus_delayed_batch",
        ),
    ],
)
def test_what_is_missing_is_put_back_by_what_the_doctor_says(healthy, breaks, where):
    execute(breaks)
    found = complaint("tables", where)
    assert found.grade is Grade.FAIL
    for statement in filter(None, found.remedy.split("; ")):
        execute(statement)
    assert complaints() == []


def test_a_foreign_key_and_its_index_are_put_back(healthy):
    ((key,),) = execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = 'pgbus_stream_leases'::regclass AND contype = 'f'"
    )
    ((index,),) = execute(
        "SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'pgbus_stream_leases'::regclass "
        "AND NOT indisunique AND indnatts = 1"
    )
    broken(f'ALTER TABLE pgbus_stream_leases DROP CONSTRAINT "{key}"', f"DROP INDEX {index}")

    execute(complaint("tables", "on (group_id)").remedy)
    mended(complaint("tables", "on group_id").remedy)


def test_an_index_of_ours_that_is_invalid_fails(healthy):
    execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'pgbus_archive_finished'::regclass")
    found = complaint("tables", "pgbus_archive_finished")
    assert found.grade is Grade.FAIL
    mended(found.remedy)


def test_an_invalid_index_that_somebody_left_is_named(healthy):
    message(task="twice")
    message(task="twice")
    with pytest.raises(DatabaseError):
        execute("CREATE INDEX CONCURRENTLY left_behind ON pgbus_messages ((1 / (length(task) - 5)))")
    try:
        found = complaint("tables", "left_behind")
    finally:
        execute("DROP INDEX left_behind")
    assert found.grade is Grade.WARN
    assert "DROP INDEX CONCURRENTLY left_behind" in found.remedy


def test_a_constraint_that_was_never_validated_is_named(healthy):
    execute("ALTER TABLE pgbus_messages ADD CONSTRAINT ours_too CHECK (priority > -1000) NOT VALID")
    try:
        found = complaint("tables", "ours_too")
        mended(found.remedy)
    finally:
        execute("ALTER TABLE pgbus_messages DROP CONSTRAINT ours_too")


def test_a_table_and_a_column_that_are_missing_are_named(healthy):
    broken("ALTER TABLE pgbus_batch_counts RENAME TO gone", "ALTER TABLE pgbus_queue_states RENAME paused_by TO paused")
    try:
        table, column = complaint("tables", "pgbus_batch_counts"), complaint("tables", "paused_by")
    finally:
        broken(
            "ALTER TABLE gone RENAME TO pgbus_batch_counts", "ALTER TABLE pgbus_queue_states RENAME paused TO paused_by"
        )
    assert "migrate" in table.remedy
    assert column.text == "the column paused_by of pgbus_queue_states is missing"


def test_a_default_that_is_missing_is_named(healthy):
    execute("ALTER TABLE pgbus_queue_states ALTER paused_by DROP DEFAULT")
    try:
        assert "the default of the column paused_by" in complaint("tables", "paused_by").text
    finally:
        execute("ALTER TABLE pgbus_queue_states ALTER paused_by SET DEFAULT ''")


@pytest.mark.parametrize(
    ("breaks", "mends", "where"),
    [
        (
            "ALTER FUNCTION pgbus_take_transaction_id() RENAME TO gone",
            "ALTER FUNCTION gone() RENAME TO pgbus_take_transaction_id",
            "pgbus_take_transaction_id",
        ),
        (
            "ALTER TABLE pgbus_subscriptions RENAME CONSTRAINT pgbus_subscriptions_regex TO gone",
            "ALTER TABLE pgbus_subscriptions RENAME CONSTRAINT gone TO pgbus_subscriptions_regex",
            "pgbus_subscriptions_regex",
        ),
    ],
)
def test_what_migrations_make_by_hand_is_missed_too(healthy, breaks, mends, where):
    execute(breaks)
    try:
        assert complaint("tables", where).grade is Grade.FAIL
    finally:
        execute(mends)


def handwritten():
    """Return the SQL that migrations run by hand."""
    for module in pkgutil.iter_modules(django_pgbus.migrations.__path__):
        migration = importlib.import_module(f"django_pgbus.migrations.{module.name}").Migration
        for operation in migration.operations:
            if isinstance(operation, migrations.RunSQL):
                yield from [operation.sql] if isinstance(operation.sql, str) else operation.sql


def test_the_doctor_knows_everything_that_migrations_make_by_hand():
    text = "\n".join(handwritten())
    assert set(re.findall(r"ADD CONSTRAINT (\w+)", text)) == {
        name for names in doctor_schema.CHECKS.values() for name in names
    }
    assert set(re.findall(r"CREATE FUNCTION (\w+)", text)) == set(doctor_schema.FUNCTIONS)
    assert set(re.findall(r"CREATE SEQUENCE (\w+)", text)) == {doctor_sequences.IDS, doctor_sequences.POSITIONS}
    assert not re.findall(r"CREATE (?:UNIQUE )?INDEX|CREATE TRIGGER", text)
    room = re.findall(r"ALTER TABLE (\w+) SET \(\s*fillfactor = (\d+)", text)
    assert {table: int(factor) for table, factor in room} == doctor_vacuum.FILLFACTORS


# --- sequences ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "back", "grade"),
    [
        ("pgbus_position", "CACHE 10", "CACHE 1", Grade.FAIL),
        ("pgbus_task_id", "CACHE 10", "CACHE 1", Grade.WARN),
        ("pgbus_position", "INCREMENT -1", "INCREMENT 1", Grade.FAIL),
        ("pgbus_task_id", "CYCLE", "NO CYCLE", Grade.WARN),
    ],
)
def test_a_sequence_that_hands_out_what_is_old_is_named(healthy, name, change, back, grade):
    execute(f"ALTER SEQUENCE {name} {change}")
    try:
        found = complaint("sequences", name)
    finally:
        execute(f"ALTER SEQUENCE {name} {back}")
    assert found.grade is grade
    assert f"ALTER SEQUENCE {name} {back}" in found.remedy
    assert complaints() == []


def test_a_sequence_that_is_missing_is_named(healthy):
    execute("ALTER SEQUENCE pgbus_position RENAME TO gone")
    try:
        assert "nothing can be enqueued" in complaint("sequences", "pgbus_position").text
    finally:
        execute("ALTER SEQUENCE gone RENAME TO pgbus_position")


def test_ids_that_are_taken_are_seen(healthy):
    id = message().id
    execute("SELECT setval('pgbus_task_id', %s)", [id - 1])

    found = complaint("sequences", "pgbus_task_id")
    assert (
        found.text == f"pgbus_task_id is at {id - 1}, and {id} is taken: what it hands out next was handed out before"
    )
    mended(found.remedy.split(";")[0])
    assert message().id > id


def test_positions_that_are_taken_are_seen(healthy):
    position = message().position
    execute("INSERT INTO pgbus_levels (queue, priority, suspect) VALUES ('default', 0, false) ON CONFLICT DO NOTHING")
    execute("SELECT setval('pgbus_position', %s)", [position - 1])

    mended(complaint("sequences", "pgbus_position").remedy.split(";")[0])


def test_numbers_of_rows_that_are_taken_are_seen(healthy):
    Subscription.objects.create(id=10_000_000, handler="shop.handlers.audit", pattern="a", queue="@events", regex="^a$")
    where = "pgbus_subscriptions_id_seq"
    try:
        assert complaint("sequences", where).text.endswith(
            "10000000 is taken: what it hands out next was handed out before"
        )
    finally:
        Subscription.objects.all().delete()


def test_positions_of_a_log_that_are_taken_are_seen(healthy):
    ledger = a_stream(entries=5)
    a_group()
    sequence = f"pgbus_stream_{ledger.id()}_position"
    execute(f"SELECT setval('{sequence}', 3)")

    execute(complaint("sequences", sequence).remedy.split(";")[0])
    assert not [one for one in complaints() if one.subject == "sequences"]
