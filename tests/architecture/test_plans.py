"""
The plans of the hot statements, in the states in which a planner goes astray.

A worker's own connection pins them. Without the pins a table that was never analyzed, or analyzed while it was empty,
is scanned whole, or sorted under the row locks, which then locks more than it returns.
"""

from __future__ import annotations

import json

import psycopg
import pytest
from django.db import connection

from django_pgbus.postgres.own_connection import PIN_PLANS
from django_pgbus.queues import sql
from tests.architecture.statements import numbered
from tests.line import COMMITTED, long_up  # noqa: F401
from tests.sessions import execute, sessions

pytestmark = COMMITTED

LEVELS = "ARRAY['default', 'mail'], ARRAY[0, 5]::smallint[], ARRAY[false, false]"
ARGUMENTS = {
    "CLAIM": f"'30 s', '{'0' * 32}'::uuid, {LEVELS}, ARRAY[10, 10]::bigint[], 100",
    "SUCCEED": "ARRAY[1, 2]::bigint[], ARRAY[1, 1], ARRAY['null', 'null'], ARRAY[0.1, 0.1]::float8[], "
    "ARRAY[0.1, 0.1]::float8[]",
    "RENEW": "ARRAY[1, 2]::bigint[], ARRAY[1, 1], ARRAY[false, false], '30 s'",
    "MOVE_DUE": "ARRAY['default', 'mail'], 1000",
    "POLL": f"true, ARRAY['default', 'mail'], '30 s', {LEVELS}, ARRAY[0, 0]::bigint[], ARRAY[10, 10]::bigint[], "
    "ARRAY[1, 2]::bigint[]",
}
MANY = 60_000


def fill(count):
    execute(
        "INSERT INTO pgbus_messages (queue, task, payload) "
        "SELECT CASE WHEN n %% 2 = 0 THEN 'default' ELSE 'mail' END, 't', '{}' FROM generate_series(1, %s) AS n",
        [count],
    )
    execute(
        "INSERT INTO pgbus_delayed (queue, task, payload, due_at) SELECT 'default', 't', '{}', "
        "now() + make_interval(secs => n - 100) FROM generate_series(1, %s) AS n",
        [count],
    )


def never_analyzed():
    pass


def analyzed_empty_then_filled():
    execute("ANALYZE pgbus_messages, pgbus_delayed")
    fill(MANY // 3)


def analyzed_full():
    fill(MANY // 3)
    execute("ANALYZE pgbus_messages, pgbus_delayed")


def dead_under_a_held_snapshot():
    fill(MANY)
    execute("ANALYZE pgbus_messages, pgbus_delayed")
    execute("DELETE FROM pgbus_messages")
    execute("DELETE FROM pgbus_delayed")
    execute("ANALYZE pgbus_messages, pgbus_delayed")


STATES = [never_analyzed, analyzed_empty_then_filled, analyzed_full, dead_under_a_held_snapshot]


@pytest.fixture(scope="module", params=STATES, ids=lambda state: state.__name__.replace("_", " "))
def planner(request, django_db_setup, django_db_blocker):
    """A session that sees copies of the tables in the state asked for, and a snapshot from before."""
    with django_db_blocker.unblock(), sessions(2) as (planner, reader):
        reader.open()
        reader.sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.sql("SELECT 1")
        planner.sql("CREATE SCHEMA pgbus_plans")
        planner.sql("SET search_path = pgbus_plans, public")
        for table in ("pgbus_messages", "pgbus_delayed"):
            planner.sql(f"CREATE TABLE {table} (LIKE public.{table} INCLUDING ALL)")
            planner.sql(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        planner.do(request.param)
        try:
            yield planner
        finally:
            reader.commit()
            planner.sql("DROP SCHEMA pgbus_plans CASCADE")
            planner.sql("RESET ALL")


def plan_of(name):
    """Return the nodes of a plan from the top down, each as (kind, table, kinds above it)."""
    statement = numbered(getattr(sql, name).sql)
    with psycopg.ClientCursor(connection.connection) as cursor:
        cursor.execute(f"PREPARE planned AS {statement}")
        try:
            cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE planned({ARGUMENTS[name]})")
            found = cursor.fetchone()[0]
        finally:
            cursor.execute("DEALLOCATE planned")
    (top,) = json.loads(found) if isinstance(found, str) else found
    return list(nodes(top["Plan"], ()))


def nodes(plan, above):
    yield plan["Node Type"], plan.get("Relation Name"), above
    for child in plan.get("Plans", ()):
        yield from nodes(child, (*above, plan["Node Type"]))


def faults(name):
    """Return what is wrong with the plan of a statement."""
    plan = plan_of(name)
    found = [
        f"{kind} on {table}"
        for kind, table, _ in plan
        if kind == "Seq Scan" and table in ("pgbus_messages", "pgbus_delayed")
    ]
    found += ["Sort under the locks" for kind, _, above in plan if kind.endswith("Sort") and "LockRows" in above]
    found += [f"{kind} of rows to lock" for kind, _, _ in plan if kind.startswith("Bitmap")]
    if name == "CLAIM" and "Tid Scan" not in [kind for kind, _, _ in plan]:
        found.append("no Tid Scan")
    return found


def pinned(name):
    PIN_PLANS.tuples()
    try:
        return faults(name)
    finally:
        execute("RESET ALL")
        execute("SET search_path = pgbus_plans, public")


@pytest.mark.proves("a-claim-reads-what-it-takes")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_plan_uses_the_indexes_and_sorts_nothing_under_locks(planner, name):
    assert planner.do(pinned, name) == []


def test_without_the_pins_a_planner_goes_astray(planner, request):
    """In the states a young table is in; the pins are for those, and for statistics that have grown old."""
    if request.node.callspec.params["planner"] in (never_analyzed, analyzed_empty_then_filled):
        assert any(planner.do(faults, name) for name in ARGUMENTS)


def test_the_arguments_are_in_the_order_of_their_names():
    """What is explained is what the code sends: PREPARE numbers the names as they come."""
    for name, given in {"CLAIM": "lease worker queues priorities suspects floors limit"}.items():
        text = getattr(sql, name).sql
        names = given.split()
        assert sorted(names, key=lambda one: text.index(f"%({one})s")) == names
