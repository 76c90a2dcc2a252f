"""Partitions: made ahead or by an append that finds none, and two processes that do it at once."""

from __future__ import annotations

from unittest import mock

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_pgbus import signals
from django_pgbus.models import StreamLog
from django_pgbus.streams import appending, logs, partitions, room, sweeps
from django_pgbus.streams.log_statement import log_table
from tests.events.test_publishing import heard
from tests.sessions import execute, sessions
from tests.streams.logs import declared, made, numbers, payloads, tables  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("declared")]


def without(log, *which):
    """Take partitions away, as if nobody had made them."""
    for number in which:
        execute(f"DROP TABLE {partitions.partition(log.id(), number)}")


# --- ahead ----------------------------------------------------------------------------------------------


def test_a_sweep_makes_the_partition_of_the_head_and_the_next_two():
    told, _keep = heard(signals.partitions_made)
    log, other = made(partition_size=10), made("other")
    assert sweeps.make_partitions_ahead() == 0
    for n in range(25):
        log.append(n)
    told.clear()
    assert sweeps.make_partitions_ahead() == 2
    assert numbers(log) == [0, 1, 2, 3, 4]
    assert numbers(other) == [0, 1, 2]
    assert [(call["stream"], call["count"]) for call in told] == [("ledger", 2)]
    assert logs.faults() == {}


def test_a_new_partition_is_like_the_first():
    log = made(partition_size=10)
    log.append_many(range(35))
    described = {
        number: execute(
            """
            SELECT pg_get_expr(relpartbound, oid),
                   ARRAY(SELECT attname || ' ' || attnotnull || ' ' || coalesce(pg_get_expr(adbin, adrelid), '')
                         FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
                         WHERE attrelid = pg_class.oid AND attnum > 0 ORDER BY attnum),
                   (SELECT count(*) FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary),
                   ARRAY(SELECT contype FROM pg_constraint WHERE conrelid = pg_class.oid AND contype <> 'n')
            FROM pg_class WHERE oid = %s::regclass
            """,
            [partitions.partition(log.id(), number)],
        )[0]
        for number in (0, 3)
    }
    assert described[0][1:] == described[3][1:]
    assert described[3][0] == "FOR VALUES FROM ('30') TO ('40')"


def test_making_them_waits_for_nobody_who_appends_or_reads():
    log = made(partition_size=10)
    with sessions() as producer:
        producer.open()
        producer.do(log.append_many, range(9))
        producer.do(log.read)
        without_head = log.head()
        assert partitions.make_room(log.id(), 10, 40) == 4
        producer.do(log.append, 9)
        producer.commit()
    assert without_head == 9
    assert payloads(log) == list(range(10))


def test_a_log_that_somebody_works_on_is_left_to_them():
    log = made(partition_size=10)
    without(log, 2)
    with sessions() as other:
        other.open()
        other.do(partitions.make_room, log.id(), 10)
        assert partitions.make_ahead(log.id(), 10) == 0
        other.commit()
    assert numbers(log) == [0, 1, 2]


def test_a_log_that_is_locked_does_not_keep_others_from_their_partitions(monkeypatch):
    monkeypatch.setattr(partitions, "PATIENCE", "50ms")
    locked, free = made(partition_size=10), made("free", partition_size=10)
    without(locked, 2)
    without(free, 2)
    with sessions() as other:
        other.open()
        other.sql(f"LOCK TABLE {log_table(locked.id())} IN ACCESS EXCLUSIVE MODE")
        assert sweeps.make_partitions_ahead() == 1
        other.commit()
    assert (numbers(locked), numbers(free)) == ([0, 1], [0, 1, 2])
    assert sweeps.make_partitions_ahead() == 1


def test_in_a_callers_transaction_the_lock_timeout_stays_as_it_was():
    log = made(partition_size=10)
    without(log, 2)
    before = execute("SHOW lock_timeout")
    with transaction.atomic():
        assert partitions.make_ahead(log.id(), 10) == 1
        assert execute("SHOW lock_timeout") == before
    without(log, 2)
    assert partitions.make_ahead(log.id(), 10) == 1
    assert execute("SHOW lock_timeout") == before


# --- by an append ---------------------------------------------------------------------------------------


def test_an_append_that_finds_none_makes_it():
    log = made(partition_size=10)
    without(log, 0, 1, 2)
    log.append("a")
    assert numbers(log) == [0, 1, 2]
    assert payloads(log) == ["a"]


def test_inside_a_transaction_which_goes_on():
    log = made(partition_size=10)
    without(log, 0, 1, 2)
    with transaction.atomic():
        StreamLog.objects.update(drops_unhandled=True)
        log.append("a")
        log.append("b")
    assert payloads(log) == ["a", "b"]
    assert StreamLog.objects.get().drops_unhandled
    assert logs.faults() == {}


def test_what_a_rolled_back_transaction_made_is_gone_and_made_again():
    log = made(partition_size=10)
    without(log, 0, 1, 2)
    with transaction.atomic():
        log.append("a")
        transaction.set_rollback(True)
    assert numbers(log) == []
    with transaction.atomic():
        log.append("b")
    assert payloads(log) == ["b"]


@pytest.mark.parametrize("how_many", [35, 1000, 2500])
@pytest.mark.parametrize("inside", [False, True])
def test_many_across_partitions_make_all_of_them_first(how_many, inside):
    log = made(partition_size=10)
    with CaptureQueriesContext(connection) as queries:
        if inside:
            with transaction.atomic():
                log.append_many(range(how_many))
        else:
            log.append_many(range(how_many))
    assert log.head() == how_many, "no position was lost"
    assert payloads(log) == list(range(how_many))
    assert sum("INSERT INTO" in query["sql"] for query in queries.captured_queries) <= 1


def test_two_that_find_none_at_once_do_not_fail():
    log = made(partition_size=10)
    without(log, 0, 1, 2)
    with sessions(2) as (one, two):
        one.open()
        two.open()
        one.do(log.append, "one")
        waits = two.begin(log.append, "two")
        two.wait_until_blocked()
        one.commit()
        assert waits.result(20)
        two.commit()
    assert sorted(payloads(log)) == ["one", "two"]
    assert numbers(log) == [0, 1, 2]


def test_of_two_that_find_none_the_second_goes_on_when_the_first_is_rolled_back():
    log = made(partition_size=10)
    without(log, 0, 1, 2)
    with sessions(2) as (one, two):
        one.open()
        two.open()
        one.do(log.append, "one")
        waits = two.begin(log.append, "two")
        two.wait_until_blocked()
        one.roll_back()
        assert waits.result(20)
        two.commit()
    assert payloads(log) == ["two"]


def test_a_repeatable_read_transaction_finds_what_was_made_since_it_began():
    log = made(partition_size=10)
    without(log, 0, 1, 2)
    with sessions() as other:
        other.open()
        other.sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.sql("SELECT count(*) FROM pgbus_streams")
        partitions.make_ahead(log.id(), 10)
        assert other.do(log.append, "a") == 1
        other.commit()


def test_a_detached_partition_is_attached_again_with_what_it_holds():
    log = made(partition_size=10)
    log.append_many(["a", "b"])
    name = partitions.partition(log.id(), 0)
    execute(f"ALTER TABLE {log_table(log.id())} DETACH PARTITION {name}")
    execute(f"DROP TRIGGER pgbus_take_transaction_id ON {name}")
    assert payloads(log) == []
    log.append("c")
    assert payloads(log)[:2] == ["a", "b"]
    assert logs.faults() == {}


def test_a_constraint_of_somebody_else_is_no_missing_partition():
    log = made()
    execute(f"ALTER TABLE {log_table(log.id())} ADD CONSTRAINT short CHECK (length(payload::text) < 5)")
    with mock.patch.object(partitions, "make_room") as never, pytest.raises(IntegrityError, match="short"):
        log.append("much too long")
    assert not never.called


# --- room -----------------------------------------------------------------------------------------------


def savepoints(call):
    with CaptureQueriesContext(connection) as queries:
        call()
    return sum(query["sql"].startswith("SAVEPOINT") for query in queries.captured_queries)


def test_where_there_is_room_the_second_append_of_a_transaction_takes_no_savepoint(monkeypatch):
    monkeypatch.setattr(room, "FRESH", 60)
    log = made()
    with transaction.atomic():
        assert savepoints(lambda: log.append(1)) == 1
        assert savepoints(lambda: log.append(2)) == 0
        assert savepoints(lambda: log.append_many(range(100))) == 0
        assert savepoints(lambda: log.append_many(range(1001))) == 0
    assert len(payloads(log)) == 1103


def test_what_was_seen_too_long_ago_does_not_count(monkeypatch):
    log = made()
    with transaction.atomic():
        log.append(1)
        monkeypatch.setattr(room, "FRESH", -1)
        assert savepoints(lambda: log.append(2)) == 1


def test_without_a_million_positions_it_takes_one(monkeypatch):
    monkeypatch.setattr(room, "FRESH", 60)
    log = made(partition_size=300_000)
    with transaction.atomic():
        log.append(1)
        assert savepoints(lambda: log.append(2)) == 1
    assert partitions.make_room(log.id(), 300_000, 1_000_000)
    log.append(3)
    monkeypatch.setattr(room, "LEARN", -1)
    with transaction.atomic():
        assert savepoints(lambda: log.append(4)) == 0


def test_partitions_that_may_be_rolled_back_are_no_room(monkeypatch):
    monkeypatch.setattr(room, "FRESH", 60)
    monkeypatch.setattr(room, "LEARN", -1)
    log = made(partition_size=10_000_000)
    without(log, 0, 1, 2)
    with transaction.atomic():
        log.append(1)
        assert savepoints(lambda: log.append(2)) == 1
        transaction.set_rollback(True)
    with transaction.atomic():
        log.append(3)
    assert payloads(log) == [3]


def test_it_gives_up_when_the_partition_is_never_there(monkeypatch):
    log = made(partition_size=10)
    without(log, 0, 1, 2)
    monkeypatch.setattr(partitions, "make_room", lambda *args: 0)
    with pytest.raises(IntegrityError, match="no partition"):
        log.append(1)
    assert log.head() == appending.ATTEMPTS
    assert tables(log) == [log_table(log.id())]
