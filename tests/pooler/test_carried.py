"""Settings that travel with each statement where a session is lent, as through a pooler; and telling the two apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction

from django_pgbus.postgres import Statement, listen, pooler
from django_pgbus.postgres.own_connection import (
    IMPATIENT,
    PIN_PLANS,
    SETTLED_IN,
    close,
    own_connection,
    prepare_statements,
)
from tests.line import COMMITTED

pytestmark = COMMITTED

ASK = Statement(
    sql="""
    SELECT current_setting('enable_seqscan') AS seqscan,
           current_setting('statement_timeout') AS timeout,
           current_setting('transaction_isolation') AS isolation,
           (SELECT count(*) FROM pg_prepared_statements) AS prepared,
           %(number)s::int AS number
    """
)


@pytest.fixture
def own() -> Iterator[Any]:
    """Let this thread have a connection of its own."""
    before = connections["default"]
    connection = own_connection("test")
    connection.connect()
    yield connection
    close(connection)
    connections["default"] = before


def hold(own: Any) -> None:
    SETTLED_IN.hold()
    PIN_PLANS.hold()
    IMPATIENT.hold(milliseconds="4321")
    prepare_statements(own)


def of_the_session(own: Any) -> tuple[str, str]:
    """Return what is set without anything that travels."""
    found = own.connection.execute("SELECT current_setting('enable_seqscan'), current_setting('statement_timeout')")
    return found.fetchone()


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooler, "is_pooled", lambda connection: True)


def test_a_session_of_ours_is_set_once_and_prepares(own):
    hold(own)
    assert of_the_session(own) == ("off", "4321ms")
    for number in range(2):
        row = ASK.row(number=number)
    assert (row.seqscan, row.timeout, row.prepared > 0) == ("off", "4321ms", True)


def test_through_a_pooler_each_statement_brings_its_settings_and_leaves_none(own, lent):
    hold(own)
    for number in range(7):
        row = ASK.row(number=number)
    assert (row.seqscan, row.timeout, row.prepared, row.number) == ("off", "4321ms", 0, 6)
    assert of_the_session(own) == ("on", "0")


def test_so_it_does_inside_a_transaction_and_a_savepoint(own, lent):
    hold(own)
    with transaction.atomic():
        with transaction.atomic():
            assert ASK.row(number=1).seqscan == "off"
        assert ASK.row(number=2).number == 2
    assert of_the_session(own) == ("on", "0")


def test_rows_are_counted_and_read_as_of_the_statement_itself(own, lent):
    hold(own)
    some = Statement(sql="SELECT n FROM generate_series(1, %(most)s::int) AS n")
    assert some.tuples(most=3) == [(1,), (2,), (3,)]
    assert some.count(most=3) == 3
    assert some.row(most=0) is None


def test_each_statement_is_a_transaction_of_its_own(own, lent):
    """What a fence rests on: a look takes no transaction id, and a write takes one that ends with it."""
    hold(own)
    is_reading = Statement(sql="SELECT pg_current_xact_id_if_assigned() IS NULL AS it")
    assert is_reading.row().it
    first, second = (Statement(sql="SELECT pg_current_xact_id()::text AS it").row().it for _ in range(2))
    assert first != second


def test_a_default_that_is_stricter_does_not_reach_it(own, lent):
    own.connection.execute("SELECT set_config('default_transaction_isolation', 'serializable', false)")
    hold(own)
    assert ASK.row(number=1).isolation == "read committed"
    with transaction.atomic():
        assert ASK.row(number=1).isolation == "read committed"


def test_what_cannot_stand_in_a_transaction_goes_alone(own, lent):
    hold(own)
    with own.cursor() as cursor:
        cursor.execute("VACUUM pgbus_levels")


def test_a_server_itself_is_told_from_a_pooler(own):
    assert not pooler.is_pooled(own)
    assert pooler.carrier_of(own) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "shared"),
    [
        ("AAAAAAAAAA", "BBBBB", False),
        ("AAAAAAAAAA", "BBABB", True),
        ("AAAAAAAAAB", "CCCCC", True),
        ("AAAABBBBBB", "BBBBB", True),  # by the first three alone each would have its own
    ],
)
def test_who_takes_turns_with_others_is_found_out_though_others_interfere(monkeypatch, ours, theirs, shared):
    lent = {"ours": iter(ours), "theirs": iter(theirs)}
    monkeypatch.setattr(listen, "_backend", lambda session: next(lent[session]))
    assert listen._take_turns("ours", "theirs") is shared


def test_a_pooler_that_lends_two_sessions_in_turn_is_found_out(monkeypatch):
    turns = itertools.cycle("AB")
    monkeypatch.setattr(listen, "_backend", lambda session: next(turns))
    assert listen._take_turns("ours", "theirs")
