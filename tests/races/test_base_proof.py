"""
The base of a level never passes a position whose transaction is still open.

What stands between base and floor is looked at every second; what stands below the base never again. So the base
moves only by proof: no transaction is open that is older than a transaction id taken after the floor was reached.
"""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
from django.db import connection

from django_pgbus.queues import sql
from django_pgbus.queues.line import Line
from tests.line import COMMITTED, DEFAULT, LEASE, changed, claim, claim_one, put, succeed
from tests.sessions import execute, sessions, until

pytestmark = [COMMITTED, pytest.mark.races]


def look(line):
    line.look_soon()
    return line.poll([DEFAULT], ["default"], LEASE)


def looks(line, number=4):
    for _ in range(number):
        look(line)


def base(line):
    return line.floors[DEFAULT].base


def look_until(line, reached):
    """Look until the base is there; transactions of other tests on this server may hold it up for a moment."""
    until(lambda: look(line) and base(line) >= reached)


def last_position():
    return execute("SELECT last_value FROM pgbus_position")[0][0]


def work_off(line, number=1):
    """Claim and finish what is there."""
    claimed = claim(line)
    assert len(claimed) == number
    succeed(*claimed)
    return max(delivery.position for delivery in claimed)


@pytest.fixture
def line():
    line = Line()
    line.floors.clear()
    look(line)
    return line


def test_the_base_follows_once_nothing_older_is_open(line):
    put(5)
    look_until(line, work_off(line, 5))


@pytest.mark.parametrize("ending", ["commit", "roll_back"])
def test_the_older_transaction_takes_the_lower_position(line, ending):
    with sessions() as a:
        a.open()
        (id,) = a.do(put)
        below = last_position() - 1
        put()
        work_off(line)
        looks(line)
        assert base(line) <= below
        getattr(a, ending)()
    looks(line, 1)
    found = [delivery.id for delivery in claim(line)]
    assert found == ([id] if ending == "commit" else [])


@pytest.mark.proves("found-without-a-wake-up")
@pytest.mark.parametrize("first", ["older", "newer"])
def test_two_overlapping_transactions_and_the_newer_one_takes_the_lower_position(line, first):
    """A has the older transaction id and B the newer; B takes 1 and A takes 2."""
    with sessions(2) as (a, b):
        a.open()
        a.sql("SELECT pg_current_xact_id()")
        b.open()
        (lower,) = b.do(put)
        below = last_position() - 1
        (higher,) = a.do(put)
        ids = {"older": higher, "newer": lower}
        sides = {"older": a, "newer": b}
        looks(line)
        sides[first].commit()
        looks(line)
        assert claim_one(line=line).id == ids[first]
        looks(line)
        assert base(line) <= below + (first == "newer")
        (second,) = set(sides) - {first}
        sides[second].commit()
        looks(line, 1)
        assert claim_one(line=line).id == ids[second]


@pytest.mark.proves("found-without-a-wake-up")
def test_a_proof_is_kept_while_newer_transactions_overlap(line):
    """A mark that a newer one replaced would never be proven while each look meets an open transaction."""
    put()
    reached = work_off(line)
    with sessions(2) as pair:
        turns = itertools.cycle(pair)
        current = next(turns)
        current.open()
        current.do(put)

        def overlapped():
            nonlocal current
            following = next(turns)
            following.open()
            following.do(put)
            look(line)
            current.commit()
            current = following
            return base(line) >= reached

        until(overlapped)
        current.commit()


def test_a_transaction_that_only_reads_holds_nobody_back(line):
    with sessions() as reader:
        reader.open()
        reader.sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.sql("SELECT count(*) FROM pgbus_messages")
        put()
        look_until(line, work_off(line))


def test_a_prepared_transaction_is_still_open(line):
    if execute("SHOW max_prepared_transactions")[0][0] == "0":
        pytest.skip("this server has no prepared transactions")
    with sessions() as a:
        a.sql("BEGIN")
        with mock.patch("django_pgbus.queues.wake.notify"):  # which a transaction that is prepared must not say
            (id,) = a.do(put)
        below = last_position() - 1
        a.sql("PREPARE TRANSACTION 'pgbus_test'")
        put()
        work_off(line)
        looks(line)
        assert base(line) <= below
        a.sql("COMMIT PREPARED 'pgbus_test'")
    looks(line, 1)
    assert claim_one(line=line).id == id


def test_an_idle_worker_takes_no_transaction_ids(line):
    put()
    work_off(line)
    looks(line)
    marks = []

    def note(run, text, params, *rest):
        marks.append(params.get("mark"))
        return run(text, params, *rest)

    with connection.execute_wrapper(note):
        looks(line)
    assert marks == [False] * 4
    put()
    work_off(line)
    with connection.execute_wrapper(note):
        looks(line)
    assert True in marks[4:]


def test_a_bound_by_the_snapshots_xmax_would_lose_a_message(line, monkeypatch):
    """What the transaction id is for: a producer that runs can sit at or above xmax, and would be passed over."""
    monkeypatch.setattr(
        sql, "POLL", changed("POLL", "pg_current_xact_id()::text", "pg_snapshot_xmax(pg_current_snapshot())::text")
    )

    def loses_it():
        with sessions() as a:
            a.open()
            (id,) = a.do(put)  # its transaction id is xmax of every snapshot until a newer one ends
            higher = execute("SELECT nextval('pgbus_position')")[0][0]
            line._last_position = higher
            looks(line)
            passed = base(line) >= higher
            a.commit()
        looks(line)
        return passed and id not in [delivery.id for delivery in claim(line)]

    if not any(loses_it() for _ in range(30)):
        pytest.skip("somebody else on this server ends transactions all the time")


@pytest.mark.proves("transaction-id-before-position")
def test_a_place_taken_before_the_transaction_id_would_be_lost(line):
    """Why the default of `position` asks for the transaction id first."""
    with sessions() as a:
        position = execute("SELECT nextval('pgbus_position')")[0][0]  # as a default without it would, in the gap
        line._last_position = position
        look_until(line, position)
        a.open()
        a.sql("INSERT INTO pgbus_messages (queue, task, payload, position) VALUES ('default', 't', '{}', %s)", position)
        a.commit()
    looks(line)
    assert claim(line) == []


@pytest.mark.proves("transaction-id-before-position")
def test_every_way_into_the_line_takes_its_transaction_id_before_its_position():
    """`pg_current_xact_id_if_assigned()` evaluated beside the position: it is there already, whoever inserts."""
    default = execute(
        "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum "
        "WHERE adrelid = 'pgbus_messages'::regclass AND attname = 'position'"
    )[0][0]
    assert default.index("pg_current_xact_id()") < default.index("pgbus_position")
    for name in ("SEND", "SEND_MANY", "SEND_LATER", "MOVE_DUE", "REDRIVE"):
        text = getattr(sql, name).sql
        (columns,) = [part.split(")")[0] for part in text.split("INSERT INTO pgbus_messages (")[1:]]
        assert "position" not in columns, name
    for name in ("RETURN_TO_LINE", "RELEASE_LAPSED"):
        text = getattr(sql, name).sql
        assert text.index("FOR UPDATE OF message") < text.index("nextval('pgbus_position')"), name
