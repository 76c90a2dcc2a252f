"""
A group never passes a position that can still appear.

What docs/architecture/streams.md proves, rule by rule; each test is run once more with its rule broken, when an entry is
lost.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from django.db import connection, models
from django.test.utils import isolate_apps

from django_pgbus import Stream
from django_pgbus.exceptions import ConsumeRefused
from django_pgbus.queues.models import JsonDocument
from django_pgbus.streams import leases, logs, partitions
from django_pgbus.streams.log_statement import log_table
from tests.line import COMMITTED
from tests.races.guards import fails_if, without
from tests.sessions import execute, sessions
from tests.streams.following import Claimer, a_group, a_stream, nothing_declared
from tests.streams.producing import (
    TRIES,
    append,
    cursor,
    log_of,
    polls,
    polls_by_new_workers,
    take_id,
    two_producers,
    undisturbed,
)

pytestmark = [COMMITTED, pytest.mark.races]

XMAX = "pg_current_xact_id()", "pg_snapshot_xmax(pg_current_snapshot())"


@pytest.fixture(autouse=True)
def _only_these() -> Iterator[None]:
    with nothing_declared():
        yield


# --- the two messages -----------------------------------------------------------------------------------


@pytest.mark.proves("a-stream-skips-nothing")
@pytest.mark.parametrize("fresh", [False, True], ids=["one worker", "new workers"])
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
@fails_if(without("streams.CLAIM", XMAX))
def test_the_older_one_commits_first(commits, fresh):
    for _ in range(TRIES):  # What others of the cluster complete meanwhile may hide it.
        with sessions(2) as (older, newer):
            stream, id = two_producers(older, newer)
            claimer = Claimer(stream.name)
            poll = functools.partial(polls_by_new_workers, stream.name) if fresh else functools.partial(polls, claimer)
            early = poll(times=1)
            shows = undisturbed(id)
            early += poll()
            newer.commit() if commits else newer.roll_back()
            later = poll()
        assert early + later == log_of(stream)
        assert early == []
        if shows:
            break


def test_what_is_stored_of_it():
    with sessions(2) as (older, newer):
        stream, _ = two_producers(older, newer)
        claimer = Claimer(stream.name)
        polls(claimer)
        assert cursor(stream.name) == (0, 0, 0, 2, True)
        newer.commit()
        polls(claimer)
        assert cursor(stream.name) == (2, 0, 2, 2, False)


# --- the id of an observation is younger than its head ----------------------------------------------------


def the_head_of_the_same_statement(monkeypatch):
    """if the head is read by the statement that takes the id"""
    live = "coalesce(pg_sequence_last_value('pgbus_stream_0_position'), 0)"
    without("streams.CLAIM", ("%(head)s::bigint", live))(monkeypatch)


@fails_if(the_head_of_the_same_statement)
def test_a_claim_that_pauses_after_it_has_locked_the_cursor():
    """It owns its id, and while it waits for the range that it frees another takes a younger one and a position."""
    stream = a_stream()
    a_group()
    append(stream)
    claimer = Claimer()
    assert claimer.poll() == [1]
    with sessions(3) as (holder, worker, producer):
        claimer.look()
        holder.open()
        holder.sql("SELECT FROM pgbus_stream_leases FOR UPDATE")
        claiming = worker.begin(claimer.claim)
        worker.wait_until_blocked()
        producer.open()
        assert producer.do(append, stream) == 2
        append(stream)
        holder.commit()
        assert claiming.result().range is None
        early = polls_by_new_workers()
        producer.commit()
        assert early + polls_by_new_workers() == [2, 3]
    assert early == []


def inside_any_transaction(monkeypatch):
    """if a claim may be made inside atomic()"""
    monkeypatch.setattr(leases, "claim", functools.partial(leases.claim, is_first=True))


@fails_if(inside_any_transaction)
def test_a_claim_in_a_transaction_that_has_written_before():
    stream = a_stream()
    a_group()
    claimer = Claimer()
    with sessions(2) as (caller, producer):
        caller.open()
        caller.do(take_id)
        producer.open()
        assert producer.do(append, stream) == 1
        assert append(stream) == 2
        claimer.look()
        refused = caller.begin(claimer.claim)
        claimed = isinstance(refused.exception(), ConsumeRefused)
        caller.commit()
        early = polls_by_new_workers()
        producer.commit()
        assert early + polls_by_new_workers() == [1, 2]
    assert claimed


def one_for_a_virgin_sequence(monkeypatch):
    """if a sequence that was never used counts as used"""
    without(
        "streams.PROBE", ("pg_sequence_last_value(log.sequence) END, 0", "pg_sequence_last_value(log.sequence) END, 1")
    )(monkeypatch)


@fails_if(one_for_a_virgin_sequence)
def test_an_empty_log_has_nothing_to_wait_for():
    stream = a_stream()
    a_group()
    claimer = Claimer()
    polls(claimer)
    with sessions() as producer:
        producer.open()
        assert producer.do(append, stream) == 1
        early = polls(claimer)
        producer.commit()
    assert early + polls(claimer) == [1]
    assert early == []


@fails_if(
    without(
        "streams.CLAIM",
        (
            "SELECT cursors.claimed, cursors.pending_head,",
            "SELECT cursors.claimed, cursors.settled_head, cursors.pending_head,",
        ),
        (
            "cursor.claimed, %(settled)s::bigint AS",
            "cursor.claimed, greatest(cursor.settled_head, %(settled)s::bigint) AS",
        ),
    )
)
def test_a_claim_believes_no_peer_that_it_has_waited_for():
    """What is proven meanwhile is visible later, and not in the snapshot of a claim that has begun before."""
    stream = a_stream(entries=3)
    a_group()
    claimer = Claimer()
    claimer.look()
    with sessions(3) as (peer, worker, producer):
        producer.open()
        assert producer.do(append, stream, 2) == 5
        peer.open()
        peer.sql("SELECT FROM pgbus_stream_cursors FOR NO KEY UPDATE")
        claiming = worker.begin(claimer.claim)
        worker.wait_until_blocked()
        producer.commit()
        peer.sql("UPDATE pgbus_stream_cursors SET settled_head = 5, claimed = 1")  # as a claim of one entry does
        peer.commit()
        got = [row[0] for row in claiming.result().range.rows]
    assert got + polls(claimer) == [2, 3, 4, 5]


# --- the id before the position, for every writer ------------------------------------------------------------


def unwatched(monkeypatch, *, parents, children):
    watched = partitions.watched

    def some(table):
        return () if (children if "_p" in table else parents) else watched(table)

    monkeypatch.setattr(partitions, "watched", some)


def no_trigger_on_the_log(monkeypatch):
    """if the log has no trigger"""
    unwatched(monkeypatch, parents=True, children=False)


def no_trigger_on_partitions(monkeypatch):
    """if its partitions have no trigger"""
    unwatched(monkeypatch, parents=False, children=True)


def a_log_in_use() -> Stream:
    """Return a log of tiny partitions, from whose sequence the first position is taken, with which it took an id."""
    stream = a_stream(partition_size=3)
    a_group()
    append(stream)
    return stream


def created(model):
    return model.objects.create(payload="{}").position


def created_in_bulk(model):
    return model.objects.bulk_create([model(payload="{}")])[0].position


@pytest.mark.proves("a-stream-skips-nothing")
@pytest.mark.parametrize("write", [created, created_in_bulk])
@fails_if(no_trigger_on_the_log)
def test_a_model_of_the_log_that_waits_between_position_and_row(write):
    """The table of the partition is locked when its position is taken already."""
    stream = a_log_in_use()
    claimer = Claimer()
    assert claimer.poll() == [1]
    with isolate_apps("django_pgbus"), sessions(2) as (holder, producer):

        class Entry(models.Model):
            position = models.BigAutoField(primary_key=True)
            payload = JsonDocument()

            class Meta:
                managed = False
                db_table = log_table(stream.id())
                app_label = "django_pgbus"

            def __str__(self):
                return str(self.position)

        holder.open()
        holder.sql(f"LOCK TABLE {partitions.partition(stream.id(), 0)} IN SHARE MODE")
        writing = producer.begin(write, Entry)
        producer.wait_until_blocked()
        assert append(stream) == 3
        early = polls(claimer)
        holder.commit()
        assert writing.result() == 2
    assert early + polls(claimer) == [2, 3]
    assert early == []


@pytest.mark.proves("a-stream-skips-nothing")
@pytest.mark.parametrize("how", ["INSERT", "COPY"])
@fails_if(no_trigger_on_partitions)
def test_who_writes_into_a_partition_and_waits_between_position_and_row(how):
    stream = a_log_in_use()
    leaf = partitions.partition(stream.id(), 0)
    execute(
        "CREATE OR REPLACE FUNCTION pgbus_test_wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NEW; END'"
    )
    execute(f"CREATE TRIGGER waits BEFORE INSERT ON {leaf} FOR EACH ROW EXECUTE FUNCTION pgbus_test_wait()")
    claimer = Claimer()
    assert claimer.poll() == [1]
    with sessions(2) as (holder, producer):
        holder.open()
        holder.sql("SELECT pg_advisory_xact_lock(4711)")
        writing = producer.begin(append if how == "INSERT" else copied, leaf)
        producer.wait_until_blocked()
        assert append(stream) == 3
        early = polls(claimer)
        holder.commit()
        writing.result()
    assert early + polls(claimer) == [2, 3]
    assert early == []


def copied(table):
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} (payload) FROM STDIN") as copy:
        copy.write("{}\n")


def sessions_keep_positions(monkeypatch):
    """if sessions keep ten positions each"""
    create = logs._create

    def create_so(stream, name, size):
        create(stream, name, size)
        execute(f"ALTER SEQUENCE {log_table(stream)}_position CACHE 10")

    monkeypatch.setattr(logs, "_create", create_so)


@pytest.mark.needs_session("a sequence's cache is of a session")
@fails_if(sessions_keep_positions)
def test_two_sessions_that_append_in_turn():
    stream = a_stream()
    a_group()
    claimer = Claimer()
    got = []
    with sessions(2) as producers:
        for turn in range(4):
            producers[turn % 2].do(append, stream)
            got += polls(claimer)
    assert got == log_of(stream)
