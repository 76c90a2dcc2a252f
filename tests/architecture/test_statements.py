"""Every statement prepares against the schema, says what it locks, and is written as the house writes SQL."""

from __future__ import annotations

import re

import pytest

from django_pgbus.models import StreamLog
from django_pgbus.postgres import LOCK_ORDER, Statement
from django_pgbus.streams import logs
from tests.architecture.statements import all_statements, prepare, tables_locked

STATEMENTS = dict(all_statements())
NAMES = sorted(STATEMENTS)


@pytest.fixture
def a_log(db):
    """The log 0, for the statements about any log."""
    StreamLog.objects.create(id=0, name="any", partition_size=1000)
    assert logs.ensure("any")


@pytest.mark.usefixtures("a_log")
@pytest.mark.parametrize("name", NAMES)
def test_every_statement_prepares_against_the_schema(name: str) -> None:
    assert prepare(STATEMENTS[name]) == ""


@pytest.mark.django_db
def test_a_statement_with_an_unknown_column_is_refused() -> None:
    assert "no_such_column" in prepare(Statement(sql="SELECT no_such_column FROM pgbus_messages"))


@pytest.mark.parametrize("name", NAMES)
def test_declared_locks_are_those_taken(name: str) -> None:
    assert set(STATEMENTS[name].locks) == tables_locked(STATEMENTS[name].sql)


def test_statements_about_a_log_are_among_them() -> None:
    assert "pgbus_stream_0" in STATEMENTS["django_pgbus.streams.logs_sql.APPEND"].sql


def test_undeclared_locks_are_seen() -> None:
    text = "WITH a AS (SELECT id FROM pgbus_messages FOR UPDATE) DELETE FROM pgbus_delayed USING a"
    assert tables_locked(text) == {"messages", "delayed"}
    assert tables_locked("INSERT INTO pgbus_levels (queue) VALUES ('a') ON CONFLICT DO UPDATE SET queue = 'a'") == {
        "levels"
    }


@pytest.mark.parametrize("name", NAMES)
def test_locks_stand_in_the_lock_order(name: str) -> None:
    order = list(LOCK_ORDER)
    places = [order.index(table) for table in STATEMENTS[name].locks]
    assert places == sorted(places)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_cast(name: str) -> None:
    uncast = re.findall(r"%\(\w+\)s(?!::)", STATEMENTS[name].sql)
    assert not uncast, "server-side binding cannot know the type"


@pytest.mark.proves("the-databases-clock")
@pytest.mark.parametrize("name", NAMES)
def test_conditions_use_a_clock_that_keeps_the_index(name: str) -> None:
    assert not re.search(r"(?<!SELECT )\b(clock_timestamp|now)\(\)", STATEMENTS[name].sql)


@pytest.mark.proves("every-statement-finds-its-rows-by-an-index")
@pytest.mark.parametrize("name", NAMES)
def test_multi_row_locks_are_ordered_or_skip(name: str) -> None:
    text = re.sub(r"--[^\n]*", "", STATEMENTS[name].sql)
    for match in re.finditer(r"FOR (?:NO KEY )?UPDATE(?: OF \w+)?( SKIP LOCKED)?", text):
        before = text[: match.start()].rsplit("SELECT", 1)[-1]
        assert match[1] or "ORDER BY" in before
