"""
The plans of publishing and of the claims: an index finds what is wanted, however many subscriptions and claims there are.

Publishing runs on whatever connection the caller has, so nothing pins it; the claims are taken, renewed and settled on a
worker's own connections, which pin theirs, and by transactional handlers on connections that do not.
"""

from __future__ import annotations

import json
import uuid

import psycopg
import pytest
from django.db import connection

from django_pgbus.events import sql as events_sql
from django_pgbus.events.publishing import CHUNK
from django_pgbus.events.topics import compiled, lookups
from django_pgbus.idempotency import sql as claims_sql
from django_pgbus.postgres.arrays import texts
from django_pgbus.postgres.own_connection import PIN_PLANS
from tests.architecture.statements import numbered
from tests.line import COMMITTED, long_up  # noqa: F401
from tests.sessions import execute, sessions

pytestmark = COMMITTED

TABLES = (
    "pgbus_subscriptions",
    "pgbus_processed_events",
    "pgbus_event_counts",
    "pgbus_messages",
    "pgbus_delayed",
    "pgbus_dead_letters",
)
SUBSCRIPTIONS = 10_000
CLAIMS = 20_000
FILL_CLAIMS = """
    INSERT INTO pgbus_processed_events (event_id, handler, message_id, delivery, leased_until, completed_at)
    SELECT md5(n::text)::uuid, 'app.handler', n, 1,
           CASE WHEN n %% 10 = 0 THEN now() + interval '30 s' END,
           CASE WHEN n %% 10 > 0 THEN now() - make_interval(days => 30, secs => n) END
    FROM generate_series(1, %s) AS n
"""
FILL_COPIES = """
    INSERT INTO {table} (queue, task, payload, event_id, topic{more})
    SELECT '@events', 'app.handler', '{{}}', md5((n * 1000)::text)::uuid, 'orders'{values}
    FROM generate_series(1, %s) AS n
"""
MORE = {
    "pgbus_messages": ("", ""),
    "pgbus_delayed": (", due_at", ", now()"),
    "pgbus_dead_letters": (", reason, died_at", ", 'exhausted', now()"),
}
PATTERNS = {
    "exact topics": lambda n: f"orders.shop{n}.created",
    "wildcards at the end": lambda n: f"orders.shop{n}.#",
    "wildcards at the beginning": lambda n: f"#.shop{n}.created",
    "wildcards in the middle": lambda n: f"orders.*.shop{n}",
}


def fill_subscriptions(pattern_of):
    found = [compiled(pattern_of(n)) for n in range(SUBSCRIPTIONS)]
    execute(
        "INSERT INTO pgbus_subscriptions (pattern, handler, queue, prefix, suffix, regex) "
        "SELECT pattern, 'app.' || row_number() OVER (), '@events', prefix, suffix, regex "
        "FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) AS one (pattern, prefix, suffix, regex)",
        [texts(getattr(one, name) for one in found) for name in ("text", "prefix", "suffix", "regex")],
    )


def never_analyzed(fill):
    fill()


def analyzed_empty_then_filled(fill):
    execute(f"ANALYZE {', '.join(TABLES)}")
    fill()


def analyzed_full(fill):
    fill()
    execute(f"ANALYZE {', '.join(TABLES)}")


STATES = [never_analyzed, analyzed_empty_then_filled, analyzed_full]


@pytest.fixture
def planner(django_db_setup, django_db_blocker):
    """A session that sees copies of the tables, empty and never analyzed."""
    with django_db_blocker.unblock(), sessions() as planner:
        planner.sql("DROP SCHEMA IF EXISTS pgbus_event_plans CASCADE")
        planner.sql("CREATE SCHEMA pgbus_event_plans")
        planner.sql("SET search_path = pgbus_event_plans, public")
        for table in TABLES:
            planner.sql(f"CREATE TABLE {table} (LIKE public.{table} INCLUDING ALL)")
            planner.sql(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        try:
            yield planner
        finally:
            planner.sql("DROP SCHEMA pgbus_event_plans CASCADE")
            planner.sql("RESET ALL")


def nodes(plan, above=()):
    """Return the nodes from the top down, each with the kinds above it."""
    yield plan, above
    for child in plan.get("Plans", ()):
        yield from nodes(child, (*above, plan["Node Type"]))


def explained(text, params, options="FORMAT JSON"):
    """Return the nodes of the plan that psycopg's literals get: that of whoever is not pinned."""
    with psycopg.ClientCursor(connection.connection) as cursor:
        cursor.execute(f"EXPLAIN ({options}) {text}", params)
        found = cursor.fetchone()[0]
    (top,) = json.loads(found) if isinstance(found, str) else found
    return [node for node, _ in nodes(top["Plan"])]


def explained_pinned(text, arguments):
    """Return the nodes of the plan that a worker's own connection gets."""
    PIN_PLANS.tuples()
    try:
        with psycopg.ClientCursor(connection.connection) as cursor:
            cursor.execute(f"PREPARE planned AS {numbered(text)}")
            try:
                cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE planned({arguments})")
                found = cursor.fetchone()[0]
            finally:
                cursor.execute("DEALLOCATE planned")
    finally:
        execute("RESET ALL")
        execute("SET search_path = pgbus_event_plans, public")
    (top,) = json.loads(found) if isinstance(found, str) else found
    return [node for node, _ in nodes(top["Plan"])]


def scans(found, table):
    """Return (kind, columns of the index) of the nodes that read a table."""
    columns = dict(
        execute(
            "SELECT indexname, substring(indexdef FROM '\\((.*?)\\)') FROM pg_indexes WHERE schemaname = 'pgbus_event_plans'"
        )
    )
    reading = [node for node in found if node.get("Relation Name") == table and node["Node Type"] != "ModifyTable"]
    indexed = [
        (node["Node Type"], columns[node["Index Name"]])
        for node in found
        if node.get("Index Name", "").startswith(f"{table}_")
    ]
    return indexed + [
        (node["Node Type"], None)
        for node in reading
        if node["Node Type"] not in {"Bitmap Heap Scan"} and "Index Name" not in node
    ]


# --- publishing ---------------------------------------------------------------------------------------


def published(topics):
    found = [lookups(topic) for topic in topics]
    return {
        "ids": [uuid.uuid4() for _ in topics],
        "topics": topics,
        "payloads": texts(['{"payload":null,"headers":{}}'] * len(topics)),
        "prefixes": [prefixes for prefixes, _ in found],
        "suffixes": [suffixes for _, suffixes in found],
        "priority": None,
        "delay": None,
    }


@pytest.mark.proves("publishing-looks-at-what-may-match")
@pytest.mark.parametrize("number", [1, CHUNK])
@pytest.mark.parametrize("fill", PATTERNS)
@pytest.mark.parametrize("state", STATES)
def test_publishing_finds_its_subscriptions_by_their_ends(planner, state, fill, number):
    topics = [f"orders.shop{n}.created" for n in range(number)]
    planner.do(state, lambda: fill_subscriptions(PATTERNS[fill]))
    found = planner.do(explained, events_sql.PUBLISH.sql, published(topics))
    assert {columns for _, columns in planner.do(scans, found, "pgbus_subscriptions")} == {"prefix, suffix"}


@pytest.mark.proves("publishing-looks-at-what-may-match")
@pytest.mark.parametrize("state", STATES)
def test_of_ten_thousand_subscriptions_only_those_that_fit_are_looked_at(planner, state):
    """Counted in the run itself: rows that the index gave and the regular expression judged."""
    planner.do(state, lambda: fill_subscriptions(lambda n: f"orders.shop{n}.#" if n else "#"))
    found = planner.do(
        explained,
        events_sql.PUBLISH.sql,
        published(["orders.shop7.created", "else"]),
        "ANALYZE, FORMAT JSON, TIMING off",
    )
    looked_at = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in found
        if node.get("Relation Name") == "pgbus_subscriptions"
    )
    # "#" twice, and the one shop; before PostgreSQL 18 the rows of each of the two loops are rounded.
    assert 3 <= looked_at <= 4


# --- claims -------------------------------------------------------------------------------------------

EVENTS = f"ARRAY['{uuid.UUID(int=1)}', '{uuid.UUID(int=2)}']::uuid[], ARRAY['app.a', 'app.b']"
PAIRS = "ARRAY[1, 2]::bigint[], ARRAY[1, 1]"
PINNED = {
    "LOOK": f"'30 s', {EVENTS}",
    "TAKE": f"'30 s', {EVENTS}, {PAIRS}",
    "STAMP": f"{PAIRS}, '30 s'",
    "COMPLETE": f"{EVENTS}, {PAIRS}",
    "RELEASE": PAIRS,
}
GIVEN = {
    "lease": "30 s",
    "events": [uuid.UUID(int=1), uuid.UUID(int=2)],
    "handlers": ["app.a", "app.b"],
    "ids": [1, 2],
    "deliveries": [1, 1],
}
FOUND_BY = {
    "LOOK": {"event_id, handler"},
    "TAKE": set(),  # by ON CONFLICT, which is the index
    "STAMP": {"message_id", "event_id, handler"},
    "COMPLETE": set(),
    "RELEASE": {"message_id", "event_id, handler"},
}


def fill_claims():
    execute(FILL_CLAIMS, [CLAIMS])
    for table, (more, values) in MORE.items():
        execute(FILL_COPIES.format(table=table, more=more, values=values), [CLAIMS])


def wrong_ways(found):
    return [
        f"{node['Node Type']} on {node['Relation Name']}"
        for node in found
        if node.get("Relation Name", "").startswith("pgbus_")
        and node["Node Type"] in {"Seq Scan", "Index Scan", "Index Only Scan"}
        and "Index Cond" not in node
    ]


@pytest.mark.parametrize("state", STATES)
def test_claims_are_found_by_an_index_on_a_worker_s_own_connection(planner, state):
    planner.do(state, fill_claims)
    for name, arguments in PINNED.items():
        found = planner.do(explained_pinned, getattr(claims_sql, name).sql, arguments)
        assert wrong_ways(found) == [], name
        assert {columns for _, columns in planner.do(scans, found, "pgbus_processed_events")} == FOUND_BY[name], name


def test_claims_are_found_by_an_index_where_nothing_is_pinned(planner):
    planner.do(analyzed_full, fill_claims)
    for name in PINNED:
        text = getattr(claims_sql, name).sql
        found = planner.do(explained, text, {key: value for key, value in GIVEN.items() if f"%({key})s" in text})
        assert wrong_ways(found) == [], name


def test_the_arguments_are_in_the_order_of_their_names():
    """What is explained is what the code sends: PREPARE numbers the names as they come."""
    order = {
        "LOOK": "lease events handlers",
        "TAKE": "lease events handlers ids deliveries",
        "STAMP": "ids deliveries lease",
        "COMPLETE": "events handlers ids deliveries",
        "RELEASE": "ids deliveries",
    }
    for name, given in order.items():
        text = getattr(claims_sql, name).sql
        names = given.split()
        assert sorted(names, key=lambda one: text.index(f"%({one})s")) == names, name


# --- sweeps -------------------------------------------------------------------------------------------


def rows_read(found, *tables):
    return sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in found
        if node.get("Relation Name") in tables and "Scan" in node["Node Type"]
    )


@pytest.mark.parametrize("state", [analyzed_full, analyzed_empty_then_filled])
def test_forgetting_claims_reads_as_many_as_it_may_forget_and_not_the_line(planner, state):
    """A thousandth of them has a copy that may still come."""
    planner.do(state, fill_claims)
    limit = 500
    found = planner.do(
        explained,
        claims_sql.PURGE_CLAIMS.sql,
        {"age": "7 days", "limit": limit},
        "ANALYZE, FORMAT JSON, TIMING off",
    )
    by_age = [node for node in found if node.get("Index Name", "").startswith("pgbus_processed_events_completed_at")]
    assert rows_read(by_age, "pgbus_processed_events") == limit  # What deletes them may read as it likes.
    assert "Sort" not in [node["Node Type"] for node in found]
    assert rows_read(found, "pgbus_messages", "pgbus_delayed", "pgbus_dead_letters") <= 3 * limit
    assert planner.sql("SELECT count(*) FROM pgbus_processed_events") == [(CLAIMS - limit,)]


def test_a_plan_made_while_there_was_no_claim_looks_them_up_by_their_key(planner):
    """A generic plan is kept for long: with the first ten thousand claims each look would read all of them."""
    planner.sql(f"ANALYZE {', '.join(TABLES)}")
    found = planner.do(explained_pinned, claims_sql.LOOK.sql, PINNED["LOOK"])
    assert [way for way in wrong_ways(found) if "processed_events" in way] == []
