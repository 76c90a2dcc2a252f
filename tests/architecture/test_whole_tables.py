"""
No statement of a worker's own connections reads a whole table, not even by an index.

These connections must not sort (the pins), so that a planner takes an index for the order wherever there is one: it reads
the table from end to end, though another index would find the few rows that are wanted.
"""

from __future__ import annotations

import json
import re

import psycopg
import pytest
from django.db import connection

from django_pgbus.postgres.own_connection import PIN_PLANS
from tests.architecture.statements import all_statements, numbered
from tests.line import COMMITTED, long_up  # noqa: F401
from tests.sessions import sessions

pytestmark = COMMITTED

ROWS = 20_000
FILL = {
    "pgbus_messages": "(id, queue, task, payload, event_id, topic) "
    "SELECT n, 'default', 't', '{}', md5(n::text)::uuid, 'topic'",
    "pgbus_delayed": "(id, queue, task, payload, due_at) SELECT n, 'default', 't', '{}', now()",
    "pgbus_blocked_executions": "(id, queue, task, payload, waits_for, key, semaphore) "
    "SELECT n, 'default', 't', '{}', 'semaphore', 'k' || n / 10, 'k' || n / 10",
    "pgbus_semaphores": "(key, capacity) SELECT 'k' || n, 2",
    "pgbus_semaphore_slots": "(key, ordinal, message_id, duration) SELECT 'k' || n, 1, n, 60",
    "pgbus_uniqueness_keys": "(key, name, message_id, delivery, strategy, queue) "
    "SELECT 'k' || n, '', n, 1, 'while_executing', 'default'",
    "pgbus_processed_events": "(event_id, handler, message_id, delivery) SELECT md5(n::text)::uuid, 'h', n, 1",
}
MODULES = {"queues", "concurrency", "uniqueness", "idempotency", "tasks"}

# Run by the dispatcher, whose connection has no pins, or asking for one row of many.
OTHERS = {"concurrency.FREE_SEEN", "concurrency.UNOWNED", "uniqueness.UNOWNED", "tasks.ANY_WAITING"}

STATEMENTS = {
    f"{component}.{statement}": found
    for name, found in all_statements()
    if (match := re.fullmatch(r"django_pgbus\.(\w+)\.sql\.(\w+)", name))
    and (component := match[1]) in MODULES
    and (statement := match[2])
}


@pytest.fixture(scope="module")
def planner(django_db_setup, django_db_blocker):
    """A session that sees copies of the tables with many rows, and is pinned as a worker's own are."""
    with django_db_blocker.unblock(), sessions() as planner:
        planner.sql("DROP SCHEMA IF EXISTS pgbus_whole CASCADE")
        planner.sql("CREATE SCHEMA pgbus_whole")
        planner.sql("SET search_path = pgbus_whole, public")
        for table, rows in FILL.items():
            planner.sql(f"CREATE TABLE {table} (LIKE public.{table} INCLUDING ALL)")
            planner.sql(f"INSERT INTO {table} {rows} FROM generate_series(1, {ROWS}) AS n")
        planner.sql(f"ANALYZE {', '.join(FILL)}")
        planner.do(PIN_PLANS.tuples)
        try:
            yield planner
        finally:
            planner.sql("DROP SCHEMA pgbus_whole CASCADE")
            planner.sql("RESET ALL")


def read_whole(sql):
    """Return what reads a table of many rows from end to end, with nothing above that ends it early."""
    number = len(set(re.findall(r"%\((\w+)\)s", sql)))
    with psycopg.ClientCursor(connection.connection) as cursor:
        cursor.execute(f"PREPARE planned AS {numbered(sql)}")
        try:  # The plan is a generic one: no value counts.
            given = f"({', '.join(['NULL'] * number)})" if number else ""
            cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE planned{given}")
            found = cursor.fetchone()[0]
        finally:
            cursor.execute("DEALLOCATE planned")
    (top,) = json.loads(found) if isinstance(found, str) else found
    return [
        f"{plan['Node Type']} on {plan['Relation Name']}"
        for plan, above in whole(top["Plan"], ())
        if plan["Node Type"] in {"Seq Scan", "Index Scan", "Index Only Scan"}
        and plan["Relation Name"] in FILL
        and "Index Cond" not in plan
        and "Limit" not in above
    ]


def whole(plan, above):
    yield plan, above
    for child in plan.get("Plans", ()):
        yield from whole(child, (*above, plan["Node Type"]))


@pytest.mark.proves("every-statement-finds-its-rows-by-an-index")
@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - OTHERS))
def test_it_finds_its_rows_by_an_index(planner, name):
    assert planner.do(read_whole, STATEMENTS[name].sql) == []


def test_an_order_that_an_index_has_would_make_it_read_everything(planner):
    """What these tests are for: as it is written at first."""
    sql = """
        SELECT message.id FROM pgbus_messages AS message
        JOIN unnest(%(ids)s::bigint[]) AS held (id) ON held.id = message.id
        ORDER BY message.id
    """
    assert planner.do(read_whole, sql) == ["Index Only Scan on pgbus_messages"]
    wanted = "WHERE message.id = ANY (%(ids)s::bigint[]) ORDER"
    assert planner.do(read_whole, sql.replace("ORDER", wanted)) == []


def test_what_is_left_out_exists():
    assert STATEMENTS.keys() >= OTHERS
