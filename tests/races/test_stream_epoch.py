"""
A cursor means something in one log of one cluster, to one version of the fence; elsewhere its group refuses to work.

And so it does where the log is not what the proof rests on.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgbus.exceptions import ConsumeRefused
from django_pgbus.postgres import Statement
from django_pgbus.streams import groups, leases, logs, sql
from django_pgbus.streams.fence import check_session
from django_pgbus.streams.log_statement import log_table
from tests.line import COMMITTED
from tests.races.guards import at_the_same_time, fails_if, without
from tests.sessions import execute, sessions
from tests.streams.following import Claimer, a_group, a_stream, nothing_declared
from tests.streams.producing import append, append_in_vain, cursor, followed, polls, polls_by_new_workers, take_id

pytestmark = [COMMITTED, pytest.mark.races]

REPAIR = "manage.py pgbus_doctor --repair-cursor ledger/totals"


@pytest.fixture(autouse=True)
def _only_these() -> Iterator[None]:
    with nothing_declared():
        yield


def another_cluster(log: str) -> None:
    execute("UPDATE pgbus_stream_cursors SET epoch = '1' || epoch")


def truncated(log: str) -> None:
    execute(f"TRUNCATE {log} RESTART IDENTITY")


def begun_anew(log: str) -> None:
    execute(f"DELETE FROM {log}")
    execute(f"ALTER SEQUENCE {log}_position RESTART")


def another_fence(log: str) -> None:
    execute("UPDATE pgbus_stream_cursors SET fence = fence + 1")


whatever_the_epoch = at_the_same_time(
    without(
        "streams.CLAIM",
        ("AND cursors.epoch = %(system)s::text || '/' || pg_relation_filenode('pgbus_stream_0_position')", ""),
        ("AND cursors.fence = %(fence)s::smallint", ""),
    ),
    without(
        "streams.LOCK_TO_ROUTE",
        ("AND cursors.epoch = %(system)s::text || '/' || pg_relation_filenode('pgbus_stream_0_position')", ""),
        ("AND cursors.fence = %(fence)s::smallint", ""),
    ),
)


@pytest.mark.proves("a-cursor-of-another-log-claims-nothing")
@pytest.mark.parametrize("happens", [another_cluster, truncated, begun_anew, another_fence])
@fails_if(whatever_the_epoch)
def test_a_cursor_that_belongs_elsewhere_claims_nothing(happens):
    stream = a_stream(entries=2)
    a_group()
    assert Claimer().poll() == [1, 2]
    happens(log_table(stream.id()))
    append(stream, 3)
    claimer = Claimer()
    row = claimer.look()
    assert claimer.claim().elsewhere
    assert polls(claimer) == []
    assert cursor()[:2] == (2, 0)
    assert REPAIR in (groups.why_refused("ledger/totals", row) or "")


@pytest.mark.parametrize("happens", [another_cluster, truncated, begun_anew, another_fence])
def test_a_follower_refuses_it_until_it_is_repaired(happens):
    stream = a_stream(entries=2)
    consumer = a_group()
    assert Claimer().poll() == [1, 2]
    execute("DELETE FROM pgbus_stream_leases")
    happens(log_table(stream.id()))
    append(stream, 3)
    with followed(consumer) as worker:
        worker.steps(2)
        assert REPAIR in worker.lane.refused
        before = cursor()[:2]
        assert before[0] == 2
        assert groups.repair("ledger", "totals") == before
        worker.steps(3)
        assert worker.lane.refused is None
        worker.until_handled(max(3, stream.head()))
    assert cursor()[0] == stream.head()


def test_what_is_repaired_moves_nothing():
    stream = a_stream(entries=2)
    a_group()
    claimer = Claimer(limit=1)
    assert claimer.poll() == [1]
    append_in_vain(stream)
    append(stream)
    another_cluster("")
    before = cursor()[:2]
    assert groups.repair("ledger", "totals") == before
    assert cursor() == (1, 0, 0, 0, False)
    assert polls(Claimer()) == [2, 4]


@fails_if(without("streams.REPAIR", ("pending_xid = NULL", "pending_xid = cursors.pending_xid")))
def test_an_observation_of_another_cluster_is_discarded():
    """Its id may be far from being reached here: nothing would prove it."""
    stream = a_stream()
    a_group()
    append_in_vain(stream)
    append(stream)
    execute("UPDATE pgbus_stream_cursors SET pending_head = 2, pending_xid = '1000000000000'")
    another_cluster("")
    groups.repair("ledger", "totals")
    assert polls_by_new_workers() == [2]


@fails_if(without("streams.REPAIR", ("settled_head = 0", "settled_head = cursors.settled_head")))
def test_what_was_settled_in_another_log_is_not_settled_here():
    stream = a_stream(entries=5)
    a_group()
    assert Claimer(limit=1).poll() == [1]
    execute("UPDATE pgbus_stream_cursors SET settled_head = 5")
    truncated(log_table(stream.id()))
    groups.repair("ledger", "totals")
    append(stream)
    with sessions() as producer:
        producer.open()
        assert producer.do(append, stream) == 2
        append(stream)
        early = polls_by_new_workers()
        producer.commit()
    assert early + polls_by_new_workers() == [2, 3]


@fails_if(without("streams.REPAIR", ("settled_head = 0", "settled_head = cursors.claimed")))
def test_a_cursor_beyond_the_log_says_to_rewind():
    stream = a_stream(entries=5)
    consumer = a_group()
    assert len(Claimer().poll()) == 5
    truncated(log_table(stream.id()))
    groups.repair("ledger", "totals")
    append(stream, 2)
    with followed(consumer) as worker:
        worker.steps(2)
        assert "claimed up to 5" in worker.lane.refused
        assert "Rewind it to 2 or less." in worker.lane.refused
        groups.rewind("ledger", "totals", 0)
        worker.steps(3)
        assert worker.lane.refused is None
        worker.until_handled(2)


# --- the log ---------------------------------------------------------------------------------------------------


def caches(log: str) -> str:
    execute(f"ALTER SEQUENCE {log}_position CACHE 10")
    return f"{log}_position has CACHE 10"


def cycles(log: str) -> str:
    execute(f"ALTER SEQUENCE {log}_position CYCLE")
    return f"{log}_position has CYCLE"


def skips(log: str) -> str:
    execute(f"ALTER SEQUENCE {log}_position INCREMENT 2")
    return f"{log}_position has INCREMENT 2"


def disabled(log: str) -> str:
    execute(f"ALTER TABLE ONLY {log} DISABLE TRIGGER pgbus_take_transaction_id")
    return f"The table {log} lacks the trigger"


def disabled_on_a_partition(log: str) -> str:
    execute(f"ALTER TABLE {log}_p1 DISABLE TRIGGER pgbus_take_transaction_id")
    return f"The table {log}_p1 lacks the trigger"


def disabled_for_replicas(log: str) -> str:
    execute(f"ALTER TABLE {log}_p0 ENABLE TRIGGER pgbus_take_transaction_id")
    return f"The table {log}_p0 lacks the trigger"


def dropped(log: str) -> str:
    execute(f"DROP TRIGGER pgbus_take_transaction_id ON {log}_p0")
    return f"The table {log}_p0 lacks the trigger"


@pytest.mark.parametrize(
    "damage", [caches, cycles, skips, disabled, disabled_on_a_partition, disabled_for_replicas, dropped]
)
def test_a_log_that_the_proof_does_not_hold_for_is_refused(damage: Callable[[str], str]):
    stream = a_stream(entries=2)
    consumer = a_group()
    expected = damage(log_table(stream.id()))
    assert any(expected in fault for fault in logs.faults(stream.id())["ledger"])
    groups.repair("ledger", "totals")  # ALTER SEQUENCE has begun another epoch, which comes first
    with followed(consumer) as worker:
        worker.steps(3)
        assert expected in worker.lane.refused
    assert cursor()[0] == 0


# --- the connection --------------------------------------------------------------------------------------------


def test_a_standby_is_refused(monkeypatch: pytest.MonkeyPatch):
    stub = Statement(sql=sql.SESSION.sql.replace("pg_is_in_recovery()", "true"))
    monkeypatch.setattr(sql, "SESSION", stub)
    with pytest.raises(ConsumeRefused, match="standby"):
        check_session()
    a_stream(entries=2)
    consumer = a_group()
    with followed(consumer) as worker, pytest.raises(ConsumeRefused, match="standby"):
        worker.steps(1)


def test_a_connection_in_a_transaction_is_refused():
    a_stream(entries=2)
    a_group()
    claimer = Claimer()
    with transaction.atomic(), pytest.raises(ConsumeRefused, match="atomic"):
        check_session()
    with transaction.atomic(), pytest.raises(ConsumeRefused, match="atomic"):
        claimer.claim()
    connection.set_autocommit(False)
    try:
        with pytest.raises(ConsumeRefused, match="autocommit"):
            check_session()
        with pytest.raises(ConsumeRefused):
            claimer.claim()
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    execute("BEGIN")
    try:
        take_id()
        with pytest.raises(ConsumeRefused, match="written"):
            check_session()
    finally:
        execute("ROLLBACK")
    assert cursor()[0] == 0
    assert claimer.poll() == [1, 2]


def test_a_token_is_claimed_with_once():
    a_stream(entries=2)
    a_group()
    claimer, token = Claimer(limit=1), uuid.uuid4()
    found: Any = claimer.claim(token).range
    assert leases.find(claimer.group, token).lease == found.lease
