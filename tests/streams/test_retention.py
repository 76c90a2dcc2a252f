"""Retention: what is dropped, what stays, and who waits for whom."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.utils import timezone

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.models import ConsumerGroup, Cursor, EntryException, StreamLog
from django_pgbus.postgres.own_connection import close, own_connection
from django_pgbus.streams import partitions, sweeps
from django_pgbus.streams.log_statement import log_table
from tests.events.test_publishing import heard
from tests.sessions import execute, sessions
from tests.streams.logs import age, declared, group, made, numbers, payloads, tables  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("declared")]

DAY = 86_400


def filled(how_many=35, **options):
    """Return a log of partitions of ten, whose entries are two days old and kept for one."""
    log = made(partition_size=10, **{"retention": DAY, **options})
    log.append_many(range(1, how_many + 1))
    age(log, 2 * DAY)
    return log


# --- whole partitions -----------------------------------------------------------------------------------


def test_partitions_past_retention_are_dropped_but_never_that_of_the_head():
    told, _keep = heard(signals.partitions_dropped)
    log = filled()
    assert sweeps.drop_old_partitions() == 3
    assert payloads(log) == list(range(30, 36))
    assert numbers(log)[0] == 3
    assert tables(log)[:2] == [log_table(log.id()), partitions.partition(log.id(), 3)]
    assert [(call["stream"], call["count"]) for call in told] == [("ledger", 3)]
    assert sweeps.drop_old_partitions() == 0
    assert log.append("next") == 36


def test_without_retention_everything_stays():
    log = filled(retention=None)
    assert sweeps.drop_old_partitions() == sweeps.trim_tail() == 0
    assert len(payloads(log)) == 35


def test_what_is_young_stays():
    log = filled()
    age(log, -2 * DAY)
    assert sweeps.drop_old_partitions() == 0
    age(log, 2 * DAY, upto=18)
    assert sweeps.drop_old_partitions() == 1, "the last entry of the second one is young"
    assert payloads(log)[0] == 10


@pytest.mark.proves("committed-passes-nothing-open")
def test_what_a_group_has_not_done_with_stays():
    log = filled()
    group(log, committed=29)
    slow = group(log, "slow", committed=18)
    assert sweeps.drop_old_partitions() == 1
    Cursor.objects.filter(group=slow).update(committed=19)
    assert sweeps.drop_old_partitions() == 1
    Cursor.objects.filter(group=slow).update(committed=35)
    assert sweeps.drop_old_partitions() == 1
    assert payloads(log)[0] == 30


def test_a_group_that_has_no_cursor_yet_has_not_begun():
    log = filled()
    group(log, committed=35)
    group(log, "new", committed=None)
    assert sweeps.drop_old_partitions() == sweeps.trim_tail() == 0


def test_a_person_may_let_it_drop_what_is_not_handled():
    log = filled()
    group(log, committed=0)
    assert sweeps.drop_old_partitions() == 0
    StreamLog.objects.update(drops_unhandled=True)
    assert sweeps.drop_old_partitions() == 3
    assert payloads(log)[0] == 30


def test_a_dead_entry_keeps_nothing():
    log = filled()
    readers = group(log, committed=35)
    EntryException.objects.create(group=readers, position=3, status="dead", payload='{"a": 1}')
    assert sweeps.drop_old_partitions() == 3


def test_an_empty_partition_is_as_old_as_what_comes_after_it():
    log = filled()
    execute(f"DELETE FROM {log_table(log.id())} WHERE position BETWEEN 10 AND 19")
    assert sweeps.drop_old_partitions() == 3
    other = filled(name="other")
    execute(f"DELETE FROM {log_table(other.id())}")
    assert sweeps.drop_old_partitions() == 0, "nobody knows how old it is"


def test_twenty_at_once():
    log = filled(255)
    assert sweeps.drop_old_partitions() == 20
    assert sweeps.drop_old_partitions() == 5
    assert payloads(log)[0] == 250


def test_on_the_connection_of_a_dispatcher():
    log = filled()
    before = connections[database()]
    own = own_connection("test")
    try:
        assert sweeps.drop_old_partitions() == 3
        assert execute("SHOW lock_timeout") == [("0",)]
    finally:
        close(own)
        connections[database()] = before
    assert numbers(log)[0] == 3


def test_inside_a_transaction_they_are_dropped_with_it():
    log = filled()
    with transaction.atomic():
        assert sweeps.drop_old_partitions() == 3
        transaction.set_rollback(True)
    assert len(payloads(log)) == 35


def test_nothing_is_dropped_where_appends_may_be_making_partitions():
    log = filled()
    execute(f"DROP TABLE {', '.join(partitions.partition(log.id(), number) for number in numbers(log)[4:])}")
    assert sweeps.drop_old_partitions() == 0
    sweeps.make_partitions_ahead()
    assert sweeps.drop_old_partitions() == 3


# --- with others ----------------------------------------------------------------------------------------


@pytest.mark.needs_session("what is begun beside appends needs its lock timeout from statement to statement")
def test_appends_go_on_while_it_waits_for_a_transaction_that_used_the_log(monkeypatch):
    monkeypatch.setattr(partitions, "PATIENCE", "300ms")
    log = filled()
    with sessions(2) as (reader, sweeper):
        reader.open()
        reader.do(log.append, "open")
        dropping = sweeper.begin(sweeps.drop_old_partitions)
        sweeper.wait_until_blocked()
        assert log.append("meanwhile") == 37
        assert dropping.result(20) == 0
        pending = [found.number for found in partitions.attached(log.id()) if found.is_pending]
        assert pending == [0]
        assert sweeps.drop_old_partitions() == 1, "what had waited is finished, and the next one waits"
        assert log.append("again") == 38
        reader.commit()
    assert sweeps.drop_old_partitions() == 2
    assert payloads(log)[0] == 30
    assert numbers(log)[0] == 3


@pytest.mark.needs_session("it sets up a session of its own")
def test_what_is_finished_later_waits_for_old_snapshots_but_not_long_enough_to_be_in_the_way():
    log = filled()
    with sessions(3) as (user, reader, sweeper):
        user.open()
        user.do(log.append, "open")
        sweeper.sql("SET lock_timeout = '50ms'")
        with pytest.raises(OperationalError):
            sweeper.sql(
                f"ALTER TABLE {log_table(log.id())} DETACH PARTITION {partitions.partition(log.id(), 0)} CONCURRENTLY"
            )
        user.commit()
        reader.open()
        reader.sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.sql("SELECT 1")
        finishing = sweeper.begin(sweeps.drop_old_partitions)
        sweeper.wait_until_blocked()
        assert partitions.make_room(log.id(), 10, 100) > 0, "it waits for a tenth of a second, and then goes on"
        assert finishing.result(20) == 0
        reader.commit()
    assert sweeps.drop_old_partitions() == 3


@pytest.mark.needs_session("it sets up a session of its own")
def test_the_lock_timeout_is_what_it_was():
    log = filled()
    with sessions() as sweeper:
        sweeper.sql("SET lock_timeout = '7s'")
        assert sweeper.do(sweeps.drop_old_partitions) == 3
        assert sweeper.sql("SHOW lock_timeout") == [("7s",)]
    assert log.append("a") == 36


def test_what_a_crash_left_detached_is_dropped_later_unless_it_is_kept():
    log = filled()
    for number in (0, 2):
        execute(
            f"ALTER TABLE {log_table(log.id())} DETACH PARTITION {partitions.partition(log.id(), number)} CONCURRENTLY"
        )
    group(log, committed=19)
    assert sweeps.drop_old_partitions() == 2
    assert partitions.partition(log.id(), 2) in tables(log)
    Cursor.objects.update(committed=35)
    assert sweeps.drop_old_partitions() == 1
    assert partitions.partition(log.id(), 2) not in tables(log)


def test_two_at_once_do_not_fail():
    log = filled(255)
    with sessions(3) as them:
        counts = [one.begin(sweeps.drop_old_partitions) for one in them]
        assert sum(count.result(60) for count in counts) <= 25
    while sweeps.drop_old_partitions():
        pass
    assert payloads(log)[0] == 250


def test_while_somebody_holds_the_stream_nothing_is_dropped_and_nothing_waits():
    log = filled()
    with sessions() as other:
        other.open()
        other.sql("SELECT 1 FROM pgbus_streams FOR NO KEY UPDATE")
        assert sweeps.drop_old_partitions() == 0
        other.commit()
    assert sweeps.drop_old_partitions() == 3
    assert payloads(log)[0] == 30


# --- the tail -------------------------------------------------------------------------------------------


def short(how_many=9, **options):
    log = made(partition_size=10_000, **{"retention": DAY, **options})
    log.append_many(range(1, how_many + 1))
    return log


def test_a_short_log_is_trimmed_by_age_and_by_what_is_handled():
    log = short()
    age(log, 2 * DAY, upto=7)
    readers = group(log, committed=4)
    assert sweeps.trim_tail() == 4
    assert payloads(log) == [5, 6, 7, 8, 9]
    Cursor.objects.filter(group=readers).update(committed=9)
    assert sweeps.trim_tail() == 3
    assert payloads(log) == [8, 9]
    assert log.head() == 9


def test_a_thousand_at_once_of_each():
    log, other = short(2500), short(5, name="other")
    age(log, 2 * DAY)
    age(other, 2 * DAY)
    assert [sweeps.trim_tail() for _ in range(4)] == [1005, 1000, 500, 0]
    assert log.append("next") == 2501


def test_a_log_that_fills_partitions_is_not_trimmed():
    log = filled()
    assert sweeps.trim_tail() == 0
    sweeps.drop_old_partitions()
    assert sweeps.trim_tail() == 6, "what is left is in the partition of the head"
    assert log.head() == 35


def test_an_old_entry_behind_a_young_one_goes_too():
    log = short()
    age(log, 2 * DAY)
    execute(f"UPDATE {log_table(log.id())} SET appended_at = %s WHERE position = 2", [timezone.now()])
    assert sweeps.trim_tail() == 8
    assert payloads(log) == [2]


def test_streams_without_a_log_disturb_nobody():
    log = filled()
    StreamLog.objects.create(name="broken", partition_size=10, retention=timedelta(0))
    assert sweeps.make_partitions_ahead() >= 0
    assert sweeps.drop_old_partitions() == 3
    assert sweeps.trim_tail() == 6
    assert log.head() == 35
    assert ConsumerGroup.objects.count() == 0
    assert connection.is_usable()
