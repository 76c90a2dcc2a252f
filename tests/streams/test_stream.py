"""Declaring, making, appending to and reading streams."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.apps import apps
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgbus import Entry, InvalidPayload, InvalidStream, Stream, StreamDoesNotExist, signals
from django_pgbus.apps import _declare_streams
from django_pgbus.models import ConsumerGroup, Cursor, StreamLog
from django_pgbus.streams import logs, stream
from django_pgbus.streams.log_statement import log_table
from tests.events.test_publishing import heard
from tests.sessions import execute, sessions
from tests.streams.logs import declared, group, made, numbers, payloads, tables  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("declared")]


# --- declaring ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("a" * 101, "has 101"),
        ("a/b", "contains '/'"),
        ("a b", "contains ' '"),
        ("ä", "contains 'ä'"),
        ("a'b", 'contains "\'"'),
        (7, "is a text"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_the_rule(name, why):
    with pytest.raises(InvalidStream, match="1 to 100 letters") as caught:
        Stream(name)
    assert why in str(caught.value)
    assert not stream.streams


@pytest.mark.parametrize("retention", [-1, float("nan"), float("inf"), "1d", True, timedelta(-1)])
def test_a_retention_that_is_none_is_refused(retention):
    with pytest.raises(InvalidStream, match="retention is a number of seconds"):
        Stream("ledger", retention=retention)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "10", 1 << 41])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InvalidStream, match="partition_size is a whole number"):
        Stream("ledger", partition_size=size)


def test_what_is_said_once_holds_for_all_and_two_different_things_are_refused():
    Stream("ledger", retention=60)
    Stream("ledger", partition_size=100)
    Stream("ledger")
    Stream("ledger", retention=timedelta(minutes=1))
    assert stream.streams["ledger"] == stream.Declared(
        name="ledger", retention=timedelta(seconds=60), partition_size=100
    )
    with pytest.raises(InvalidStream, match="retention=60 seconds and with retention=None"):
        Stream("ledger", retention=None)
    with pytest.raises(InvalidStream, match="partition_size=100 and with partition_size=7"):
        Stream("ledger", partition_size=7)


def test_what_is_only_read_is_told_from_what_is_declared():
    stream.mention("ledger")
    assert not stream.streams["ledger"].by_hand
    Stream("ledger", retention=60)
    stream.mention("ledger")
    assert stream.streams["ledger"].by_hand
    assert stream.streams["ledger"].retention == timedelta(seconds=60)


def test_an_entry_for_a_test_is_made_by_hand_and_shows_no_payload():
    entry = Entry(payload={"secret": 1})
    assert (entry.stream, entry.position, entry.attempt) == ("", 0, 1)
    assert entry.appended_at == datetime(1970, 1, 1, tzinfo=UTC)
    assert "secret" not in repr(entry)


# --- making ---------------------------------------------------------------------------------------------


def test_ensure_makes_row_log_and_partitions_once():
    told, _keep = heard(signals.stream_created)
    ledger = Stream("ledger", retention=60, partition_size=50)
    assert ledger.ensure() is True
    assert ledger.ensure() is False
    row = StreamLog.objects.get()
    assert (row.name, row.retention, row.partition_size) == ("ledger", timedelta(seconds=60), 50)
    assert numbers(ledger) == [0, 1, 2]
    assert logs.faults() == {}
    assert [call["stream"] for call in told] == ["ledger"]
    assert execute("SELECT obj_description(%s::regclass)", [log_table(row.id)]) == [
        ("Stream ledger, partitions of 50",)
    ]


def test_a_new_retention_is_written_and_one_that_is_not_said_stays():
    made(retention=60)
    stream.streams.clear()
    made(retention=None)
    assert StreamLog.objects.get().retention is None
    StreamLog.objects.update(retention=timedelta(seconds=5))
    stream.streams.clear()
    made()
    assert StreamLog.objects.get().retention == timedelta(seconds=5)


def test_made_in_a_transaction_that_is_rolled_back_it_was_never_there():
    ledger = Stream("ledger")
    with transaction.atomic():
        assert ledger.ensure()
        assert ledger.append(1) == 1
        transaction.set_rollback(True)
    assert tables() == []
    with pytest.raises(StreamDoesNotExist):
        ledger.append(1)
    with transaction.atomic():
        with pytest.raises(StreamDoesNotExist):
            ledger.append(1)
        assert StreamLog.objects.count() == 0, "the transaction goes on"


def test_of_two_that_make_it_at_once_one_waits_for_the_other():
    ledger = Stream("ledger")
    with sessions() as other:
        other.open()
        assert other.do(ledger.ensure)
        with sessions() as third:
            waits = third.begin(ledger.ensure)
            third.wait_until_blocked()
            other.commit()
            assert waits.result(20) is False
            with sessions() as fourth:
                fourth.open()
                assert fourth.do(Stream("second").ensure)
                waits = third.begin(Stream("second").ensure)
                third.wait_until_blocked()
                fourth.roll_back()
                assert waits.result(20) is True
    assert numbers(ledger) == [0, 1, 2]


def test_a_log_that_is_missing_is_made_again():
    ledger = made()
    execute(f"DROP TABLE {log_table(ledger.id())}")
    with pytest.raises(StreamDoesNotExist, match="ensure()"):
        ledger.append(1)
    assert ledger.ensure() is True
    assert ledger.append(1) == 1


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("ALTER SEQUENCE {log}_position CACHE 5", "has CACHE 5"),
        ("ALTER SEQUENCE {log}_position INCREMENT 2", "has INCREMENT 2"),
        ("ALTER SEQUENCE {log}_position CYCLE", "has CYCLE"),
        ("ALTER TABLE {log} DISABLE TRIGGER ALL", "{log} lacks the trigger"),
        ("ALTER TABLE {log}_p1 ENABLE TRIGGER pgbus_take_transaction_id", "{log}_p1 lacks the trigger"),
        ("DROP TRIGGER pgbus_take_transaction_id ON {log}_p2", "{log}_p2 lacks the trigger"),
        ("DROP TABLE {log}", "{log} of the stream ledger is missing"),
    ],
)
def test_what_the_proof_rests_on_is_checked(harm, says):
    ledger, sound = made(), made("sound")
    id = ledger.id()
    execute(harm.format(log=log_table(id)))
    found = logs.faults(id)["ledger"]
    assert any(says.format(log=log_table(id)) in sentence for sentence in found)
    assert logs.faults() == {"ledger": found}
    assert logs.faults(sound.id()) == {}


def test_drop_takes_everything_also_what_is_detached():
    ledger = made(partition_size=10)
    ledger.append(1)
    execute(f"ALTER TABLE {log_table(ledger.id())} DETACH PARTITION {log_table(ledger.id())}_p0")
    logs.drop(ledger.id())
    assert tables() == []
    assert execute("SELECT 1 FROM pg_class WHERE relname LIKE 'pgbus_stream_%%_position'") == []


def test_a_stream_is_removed_with_all_that_belongs_to_it():
    ledger, other = made(), made("other")
    ledger.append(1)
    group(ledger)
    group(other)
    with transaction.atomic():
        row = StreamLog.objects.get(name="ledger")
        id = row.id
        row.delete()
        logs.drop(id)
    assert tables() == tables(other)
    assert list(ConsumerGroup.objects.values_list("stream__name", flat=True)) == ["other"]
    assert Cursor.objects.count() == 1
    with pytest.raises(StreamDoesNotExist):
        ledger.append(1)
    assert ledger.ensure()
    assert ledger.id() > id
    assert ledger.read() == []


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "10000-01-01", "0001-01-01 BC"])
def test_a_time_that_no_datetime_can_hold_is_refused(moment):
    """It would stop each group that comes to it: nobody could read that entry."""
    ledger = made()
    insert = f"INSERT INTO {log_table(ledger.id())} (appended_at, payload) VALUES (%s::text::timestamptz, '1')"
    with pytest.raises(DatabaseError, match=logs.READABLE):
        execute(insert, [moment])
    for readable in ("0001-01-02 00:00+00", "9999-12-30 00:00+00"):
        execute(insert, [readable])
    assert len(payloads(ledger)) == 2


def flush():
    call_command("flush", interactive=False, verbosity=0)


def test_migrate_makes_them_and_so_does_flush():
    ledger = Stream("ledger", retention=60)
    call_command("migrate", "pgbus", verbosity=0)
    before = ledger.id()
    assert ledger.append(1) == 1
    flush()
    assert ledger.id() > before, "an id that somebody remembers is not given to another log"
    assert tables() == tables(ledger)
    assert ledger.read() == []
    assert ledger.append(1) == 1


def test_a_log_that_was_not_used_survives_a_flush():
    ledger, gone = made(retention=60), made("gone")
    before = ledger.id()
    del stream.streams["gone"]
    flush()
    assert ledger.id() == before
    assert StreamLog.objects.get().retention == timedelta(seconds=60)
    assert tables() == tables(ledger)
    assert made("new").id() > before
    assert ledger.append(1) == 1
    with pytest.raises(StreamDoesNotExist):
        gone.append(1)


def test_a_log_of_other_partitions_does_not():
    made(partition_size=10)
    stream.streams.clear()
    ledger = Stream("ledger", partition_size=20)
    flush()
    assert StreamLog.objects.get().partition_size == 20
    assert tables() == tables(ledger)


def test_another_database_or_a_state_before_streams_makes_nothing():
    class Before:
        @staticmethod
        def get_model(label, name):
            raise LookupError

    Stream("ledger")
    with CaptureQueriesContext(connection) as queries:
        _declare_streams(using="other", apps=apps)
        _declare_streams(using="default", apps=Before)
    assert not queries.captured_queries


def test_without_streams_a_flush_costs_one_statement():
    with CaptureQueriesContext(connection) as queries:
        _declare_streams(using="default", apps=apps)
    assert len(queries.captured_queries) == 1


def test_the_log_of_a_process_that_remembers_one_that_is_gone():
    ledger = made()
    ledger.append(1)
    with sessions() as elsewhere:
        elsewhere.do(logs.drop, ledger.id())
        elsewhere.sql("DELETE FROM pgbus_streams")
        elsewhere.do(logs.ensure, "ledger")
    assert ledger.append(2) == 1
    with transaction.atomic():
        assert ledger.append(3) == 2


def test_a_row_that_is_gone_is_noticed_though_the_table_is_there(monkeypatch):
    ledger = made()
    ledger.append(1)
    StreamLog.objects.all().delete()
    monkeypatch.setattr(logs, "_known", {key: (log, 0.0) for key, (log, _) in logs._known.items()})
    with pytest.raises(StreamDoesNotExist):
        ledger.append(1)


# --- appending ------------------------------------------------------------------------------------------


def test_positions_begin_with_one_and_ascend():
    ledger = made()
    assert ledger.head() == 0
    assert [ledger.append({"n": n}) for n in range(3)] == [1, 2, 3]
    assert ledger.head() == 3
    first = ledger.read(limit=1)[0]
    assert (first.stream, first.position, first.payload, first.attempt) == ("ledger", 1, {"n": 0}, 1)
    assert abs((first.appended_at - datetime.now(UTC)).total_seconds()) < 60
    assert payloads(ledger, after=1) == [{"n": 1}, {"n": 2}]


@pytest.mark.proves("append-in-the-callers-transaction")
def test_it_is_in_the_callers_transaction():
    ledger = made()
    with sessions() as producer:
        producer.open()
        assert producer.do(ledger.append, "a") == 1
        assert ledger.append("b") == 2, "it waits for nobody"
        assert payloads(ledger) == ["b"]
        producer.roll_back()
    assert ledger.head() == 2
    assert payloads(ledger) == ["b"]


@pytest.mark.parametrize("how_many", [1, 7, 1000, 1001, 3500])
def test_many_are_appended_in_their_order(how_many):
    ledger = made()
    texts = [f'{n} "\\ \n\t ü \\N' for n in range(how_many)]
    assert ledger.append_many(texts) == how_many
    assert payloads(ledger) == texts
    with transaction.atomic():
        assert ledger.append_many(iter(texts)) == how_many
        transaction.set_rollback(True)
    assert len(payloads(ledger)) == how_many
    assert ledger.append_many([]) == 0


@pytest.mark.parametrize("bad", ["a\x00b", "\ud800", float("nan"), object(), {1, 2}])
def test_what_cannot_be_stored_is_refused_before_any_sql(bad):
    ledger = made()
    ledger.head()
    with CaptureQueriesContext(connection) as queries:
        with pytest.raises(InvalidPayload) as caught:
            ledger.append({"a": [bad]})
        assert caught.value.path == "payload['a'][0]"
        with pytest.raises(InvalidPayload) as caught:
            ledger.append_many([1, 2, 3, {"a": bad}])
        assert caught.value.path == "payloads[3]['a']"
    assert not queries.captured_queries


@pytest.mark.parametrize("given", [{"account": 7}, "text", b"text"])
def test_one_payload_is_no_list_of_them(given):
    ledger = made()
    text = f"takes a list of payloads, not a {type(given).__name__}; for one entry write append"
    with pytest.raises(InvalidPayload, match=text) as caught:
        ledger.append_many(given)
    assert isinstance(caught.value, TypeError)
    assert ledger.head() == 0
    assert ledger.append_many(n for n in range(3)) == 3


def test_too_large_is_refused_with_its_place():
    ledger = made()
    with (
        override_settings(PGBUS={"MAX_PAYLOAD_BYTES": 10}),
        pytest.raises(InvalidPayload, match=r"payloads\[1\] takes"),
    ):
        ledger.append_many([1, "x" * 20])


def test_nobody_knows_this_stream():
    ledger = Stream("my-ledger")
    for call in (ledger.head, ledger.read, ledger.id, lambda: ledger.append(1), lambda: ledger.append_many([1])):
        with pytest.raises(StreamDoesNotExist, match=r'`my_ledger = Stream\("my-ledger"\)`'):
            call()
    with pytest.raises(StreamDoesNotExist):
        ledger.lag("g")


@pytest.mark.parametrize(("after", "limit"), [(-1, 1), ("0", 1), (0, 0), (0, 10_001), (True, 1)])
def test_read_says_what_it_takes(after, limit):
    with pytest.raises(ValueError, match="is a whole number from"):
        made().read(after, limit)


@pytest.mark.parametrize("into", ["{log}", "{log}_p0"])
@pytest.mark.parametrize("watched", [True, False])
def test_a_writer_that_waits_with_a_position_has_its_transaction_id(into, watched):
    """Whoever writes, the ORM and psql too; without the trigger 31 of 32 take the position first."""
    ledger = made()
    log = log_table(ledger.id())
    if not watched:
        execute(f"ALTER TABLE {log} DISABLE TRIGGER ALL")
        execute(f"ALTER TABLE {log}_p0 DISABLE TRIGGER ALL")
    ledger.append("so that the next position is not one that the sequence logs")
    with sessions(2) as (producer, locker):
        locker.open()
        locker.sql("SELECT pg_advisory_xact_lock(7)")
        # The position is taken, and then the payload waits.
        text = f"""
            INSERT INTO {into.format(log=log)} (position, payload)
            SELECT taken.position, json_build_object('waited', pg_advisory_xact_lock(7) IS NULL)
            FROM (SELECT nextval('{log}_position') AS position OFFSET 0) AS taken
        """
        waits = producer.begin(execute, text)
        producer.wait_until_blocked()
        assert ledger.head() == 2
        ((xid,),) = execute("SELECT backend_xid IS NOT NULL FROM pg_stat_activity WHERE pid = %s", [producer.pid])
        assert xid is watched
        locker.commit()
        waits.result(20)


# --- lag ------------------------------------------------------------------------------------------------


def test_lag_counts_positions_and_the_age_of_the_oldest():
    ledger = made()
    ledger.append_many([1] * 5)
    group(ledger, committed=2)
    execute(f"UPDATE {log_table(ledger.id())} SET appended_at = now() - interval '100 s' WHERE position = 3")
    lag = ledger.lag("readers")
    assert lag.entries == 3
    assert 99 < lag.seconds < 160
    group(ledger, "done", committed=5)
    assert ledger.lag("done") == stream.Lag(entries=0, seconds=0.0)
    group(ledger, "new", committed=None)
    assert ledger.lag("new").entries == 5
    with pytest.raises(LookupError, match="has no group 'nobody'"):
        ledger.lag("nobody")


# --- waking ---------------------------------------------------------------------------------------------


@pytest.fixture
def notes(monkeypatch):
    sent = []
    monkeypatch.setattr("django_pgbus.queues.wake.notify", lambda notes: sent.extend(notes))
    monkeypatch.setattr("django_pgbus.queues.wake._sent.woken", {})
    return sent


def test_workers_are_woken_after_the_commit_and_once(notes):
    ledger = made()
    with transaction.atomic():
        ledger.append(1)
        ledger.append_many([2, 3])
        assert notes == []
    assert notes == [["stream", ledger.id()]]
    ledger.append(4)
    assert len(notes) == 1, "coalesced"


def test_nobody_is_woken_for_what_was_rolled_back(notes):
    ledger = made()
    with transaction.atomic():
        ledger.append(1)
        transaction.set_rollback(True)
    assert notes == []


def test_a_wake_that_fails_costs_nothing(monkeypatch):
    def fails(notes):
        raise DatabaseError("no")

    monkeypatch.setattr("django_pgbus.queues.wake.notify", fails)
    monkeypatch.setattr("django_pgbus.queues.wake._sent.woken", {})
    told, _keep = heard(signals.wake_failed)
    ledger = made()
    assert ledger.append(1) == 1
    assert len(told) == 1
    with transaction.atomic():
        ledger.append(2)
    assert payloads(ledger) == [1, 2]


# --- async ----------------------------------------------------------------------------------------------


def test_the_twins_do_the_same():
    async def all_of_them():
        ledger = Stream("ledger")
        assert await ledger.aensure()
        assert await ledger.aappend(1) == 1
        assert await ledger.aappend_many([2, 3]) == 2
        assert await ledger.ahead() == 3
        assert [entry.payload for entry in await ledger.aread(after=1, limit=1)] == [2]
        await sync_to_async(group)(ledger)
        assert (await ledger.alag("readers")).entries == 3

    async_to_sync(all_of_them)()
