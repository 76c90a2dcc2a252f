"""
What waits for a hole waits for the transactions that ran when it was seen, and for nothing that began later.

Each test is run once more with its rule broken, when a group starves or passes what can still appear.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, connections

from django_pgbus.postgres.own_connection import PIN_PLANS, own_connection
from django_pgbus.streams import partitions
from django_pgbus.streams.fence import Fence
from tests.line import COMMITTED
from tests.races.guards import at_the_same_time, fails_if, without
from tests.sessions import PATIENCE, execute, sessions, until
from tests.streams.following import Claimer, a_group, a_stream, nothing_declared, positions
from tests.streams.producing import append, append_in_vain, cursor, log_of, polls, polls_by_new_workers, take_id

pytestmark = [COMMITTED, pytest.mark.races]


WAITING_FOR = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid)))"


@pytest.fixture(autouse=True)
def _only_these() -> Iterator[None]:
    with nothing_declared():
        yield


# --- nothing starves --------------------------------------------------------------------------------------


def newest_replaces(monkeypatch):
    """if the newest observation of a worker replaces those before"""

    def observe(self, head, xid):
        self.observations = [(head, xid)]

    monkeypatch.setattr(Fence, "observe", observe)


newest_is_stored = without("streams.CLAIM", "leap.is_free AND ")


@pytest.mark.proves("a-hole-is-proven-in-the-end")
@pytest.mark.parametrize("fresh", [False, True], ids=["one worker", "new workers"])
@fails_if(at_the_same_time(newest_replaces, newest_is_stored))
def test_transactions_that_overlap(fresh):
    """One of them runs at any moment; none of them has anything to do with the log."""
    stream = a_stream()
    a_group()
    one = Claimer()
    got = []
    with sessions(2) as others:
        others[0].open()
        others[0].do(take_id)
        append_in_vain(stream)
        append(stream)
        for turn in range(6):
            got += (Claimer() if fresh else one).poll()
            before, after = others[turn % 2], others[(turn + 1) % 2]
            after.open()
            after.do(take_id)
            got += (Claimer() if fresh else one).poll()
            before.commit()
    assert got == [2]


@pytest.mark.proves("a-hole-is-proven-in-the-end")
@fails_if(newest_is_stored)
def test_an_observation_is_stored_until_it_is_proven():
    """It was made by a worker that is gone, and those that ran then have ended; another transaction runs."""
    stream = a_stream()
    a_group()
    append_in_vain(stream)
    append(stream)
    with sessions(2) as (before, after):
        before.open()
        before.do(take_id)
        assert Claimer().poll() == []
        stored = cursor()
        assert stored == (0, 0, 0, 2, True)
        after.open()
        after.do(take_id)
        assert Claimer().poll() == []
        before.commit()
        assert Claimer().poll() == [2]
    assert cursor() == (2, 0, 2, 2, False)


@fails_if(newest_replaces)
def test_a_worker_keeps_what_it_has_observed():
    """The newest that is old enough counts, with a transaction of each age behind it."""
    fence = Fence()
    for head in range(1, 11):
        fence.head = head
        fence.observe(head, 100 + head)
        fence.prove(95 + head)
    assert fence.settled == 5


def test_the_ring_is_full():
    """What it holds gets older, and is proven first."""
    fence = Fence()
    for head in range(1, 101):
        fence.head = head
        fence.observe(head, 100 + head)
    assert not fence.wants_more
    fence.prove(101)
    assert (fence.settled, fence.wants_more) == (1, True)
    fence.prove(1000)
    assert (fence.settled, fence.observations) == (64, [])


# --- holes ------------------------------------------------------------------------------------------------


@fails_if(
    without(
        "streams.CLAIM",
        (
            "CASE WHEN seen.entries = %(limit)s::int THEN seen.last ELSE %(upper)s::bigint END",
            "proof.claimed + %(limit)s::int",
        ),
    )
)
def test_twenty_thousand_positions_that_were_rolled_back_are_one_step():
    stream = a_stream()
    a_group()
    append_in_vain(stream, 20_000)
    append(stream, 3)
    claimer = Claimer()
    assert claimer.poll() == []
    claims = []

    def count(run, text, *rest):
        if "pgbus_stream" in text:
            claims.append("INTO pgbus_stream_leases" in text)
        return run(text, *rest)

    with connection.execute_wrapper(count):
        assert claimer.poll() == [20_001, 20_002, 20_003]
    assert claims == [False, False, True]  # looked, looked whether a partition is attached, claimed
    assert execute("SELECT low, high FROM pgbus_stream_leases") == [(0, 20_003)]


def passes_unchecked(monkeypatch):
    """if nobody asks whether a partition is attached"""
    without("streams.IS_REPARTITIONED", ("AND granted", "AND NOT granted"))(monkeypatch)


@fails_if(passes_unchecked)
def test_no_hole_is_passed_while_a_partition_is_attached():
    """
    Its commit is visible before other sessions hear of the new partition: until then their plans do not read it.

    So an entry in it could be taken for a hole. Whoever attaches holds a lock until they have heard.
    """
    stream = a_stream(partition_size=100)
    a_group()
    append_in_vain(stream, 1)
    append(stream, 1)
    claimer = Claimer()
    assert claimer.poll() == []
    with sessions(1) as attaching:
        attaching.open()
        attaching.do(partitions.attach, stream.id(), 100, 7)
        assert claimer.poll() == []
        attaching.commit()
    assert claimer.poll() == [2]


@pytest.mark.parametrize(
    "is_broken",
    [False, pytest.param(True, marks=pytest.mark.needs_session("only a plan for all parameters decides so late"))],
)
def test_a_claim_that_has_waited_reads_all_partitions(is_broken, monkeypatch):
    """
    PostgreSQL 18 takes a partition for one that can be left out, if a row that the statement waited for was changed.

    Only where it decides so while the statement runs; then the entries that are there were passed as holes.
    """
    if is_broken:
        if connection.pg_version < 180000:
            pytest.skip("only PostgreSQL 18 prunes what it needs")
        without(
            "streams.CLAIM", ("position - (SELECT claimed FROM proof) > 0", "position > (SELECT claimed FROM proof)")
        )(monkeypatch)
    stream = a_stream(partition_size=10)
    a_group()
    append(stream, 25)
    claimer = Claimer(limit=23)
    assert len(claimer.poll()) == 23
    claimer.look()
    with sessions(2) as (other, worker):
        worker.do(_as_a_worker)
        other.open()
        other.sql("UPDATE pgbus_stream_cursors SET committed = committed RETURNING 1")
        waiting = worker.begin(claimer.claim)
        until(lambda: execute(WAITING_FOR, [other.pid])[0][0])
        other.commit()
        found = positions(waiting.result(PATIENCE).range)
        worker.do(lambda: connections["default"].close())
    assert (found == [24, 25]) is not is_broken


def _as_a_worker():
    """Take a connection such as workers have, with plans made once for all parameters."""
    connections["default"].close()
    own_connection("test").connect()
    PIN_PLANS.hold()


def passes_holes(monkeypatch):
    """if a hole counts as settled once it is seen"""
    without("streams.CLAIM", ("cursor.claimed, %(settled)s::bigint AS", "cursor.claimed, %(head)s::bigint AS"))(
        monkeypatch
    )


@fails_if(passes_holes)
def test_savepoints():
    """A position of a savepoint that was rolled back is a hole for as long as its transaction runs."""
    stream = a_stream()
    a_group()
    claimer = Claimer()
    with sessions() as producer:
        producer.open()
        producer.sql("SAVEPOINT tried")
        assert producer.do(append, stream) == 1
        producer.sql("ROLLBACK TO SAVEPOINT tried")
        producer.sql("SAVEPOINT again")
        assert producer.do(append, stream) == 2
        producer.sql("RELEASE SAVEPOINT again")
        append(stream)
        early = polls(claimer)
        producer.commit()
    assert early + polls(claimer) == [2, 3]
    assert early == []


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
@fails_if(passes_holes)
def test_prepared_transactions(how):
    if execute("SHOW max_prepared_transactions")[0][0] == "0":
        pytest.skip("this server has no prepared transactions")
    stream = a_stream()
    a_group()
    claimer = Claimer()
    with sessions() as producer:
        producer.sql("BEGIN")
        assert producer.do(append, stream) == 1
        producer.sql("PREPARE TRANSACTION 'pgbus_test_fence'")
    append(stream)
    try:
        early = polls(claimer) + polls_by_new_workers()
    finally:
        execute(f"{how} PREPARED 'pgbus_test_fence'")
    assert early + polls(claimer) == log_of(stream)
    assert early == []


WAITS_ALWAYS = without("streams.CLAIM", ("unbroken.last,\n", "proof.claimed,\n"))


@pytest.mark.proves("a-hole-is-proven-in-the-end")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this database", "in another database"])
@fails_if(WAITS_ALWAYS)
def test_a_long_transaction_holds_back_no_entry_without_a_hole_before_it(elsewhere):
    stream = a_stream()
    a_group()
    claimer = Claimer()
    with sessions() as long:
        if elsewhere:
            long.do(connect_to_another_database)
        long.sql("BEGIN")
        long.do(take_id)
        append(stream, 2)
        assert claimer.poll() == [1, 2]
        append_in_vain(stream)
        append(stream)
        assert polls(claimer) == []
        long.sql("ROLLBACK")
        assert polls(claimer) == [4]


def connect_to_another_database():
    connection.close()
    connections["default"].settings_dict = {**connection.settings_dict, "NAME": "postgres"}
    connection.connect()
