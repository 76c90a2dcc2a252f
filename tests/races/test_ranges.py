"""
Ranges of a group: disjoint, each with one owner at a time, and never passed by `committed`.

Whoever has lost a range writes nothing with it; a claim whose answer is lost is found again.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from django_pgbus.models import EntryException, KeyLease, RangeLease
from django_pgbus.postgres import Statement
from django_pgbus.streams import groups, handling, leases, sql
from django_pgbus.streams.leases import Failure
from tests.line import COMMITTED
from tests.races.guards import at_once, fails_if, waits, without
from tests.sessions import execute, sessions
from tests.streams.following import Claimer, a_group, a_stream, nothing_declared, positions
from tests.streams.producing import append_in_vain, cursor, lapse_ranges, log_of, polls

pytestmark = [COMMITTED, pytest.mark.races]


@pytest.fixture(autouse=True)
def _only_these() -> Iterator[None]:
    with nothing_declared():
        yield


def open_ranges() -> list[tuple[int, int]]:
    return list(RangeLease.objects.order_by("low", "high").values_list("low", "high"))


def failed() -> list[int]:
    return list(EntryException.objects.order_by("position").values_list("position", flat=True))


def a_failure(position: int, key: str | None = None) -> Failure:
    return Failure(position=position, attempts=1, delay=0.0, key=key, exception="builtins.ValueError")


def claimed_first(claimer: Claimer) -> Any:
    """Claim as the first statement of a transaction that stays open."""
    found = leases.claim(
        claimer.group,
        claimer.fence,
        claimer.claimed,
        system=claimer.system,
        limit=claimer.limit,
        worker=claimer.worker,
        lease=30.0,
        token=uuid.uuid4(),
        is_first=True,
    )
    return found.range


# --- two workers ------------------------------------------------------------------------------------------


@pytest.mark.proves("ranges-are-disjoint-and-fenced")
@fails_if(without("streams.CLAIM", ("FOR NO KEY UPDATE", "")))
def test_two_workers_claim_at_the_same_time():
    stream = a_stream(entries=10)
    a_group()
    one, other = Claimer(limit=5), Claimer(limit=5)
    one.look()
    other.look()
    with sessions(2) as (a, b):
        a.open()
        first = a.do(claimed_first, one)
        second = b.begin(other.claim)
        assert waits(b, second)
        a.commit()
        both = positions(first) + positions(second.result().range)
    assert both == log_of(stream)
    assert open_ranges() == [(0, 5), (5, 10)]


def test_one_that_had_looked_before_the_other_had_claimed_goes_on_after_it():
    a_stream(entries=10)
    a_group()
    one, other = Claimer(limit=3), Claimer(limit=5)
    one.look()
    other.look()
    assert positions(other.claim().range) == [1, 2, 3, 4, 5]
    assert positions(one.claim().range) == [6, 7, 8]


# --- an answer that is lost ---------------------------------------------------------------------------------


def test_a_claim_whose_answer_was_lost_is_found_by_its_token():
    a_stream(entries=10)
    a_group()
    claimer, token = Claimer(limit=4), uuid.uuid4()
    claimer.claim(token)
    found = leases.find(claimer.group, token)
    assert found is not None
    assert (positions(found), found.low, found.high, found.reclaims) == ([1, 2, 3, 4], 0, 4, 0)
    assert claimer.poll() == [5, 6, 7, 8]
    assert leases.find(claimer.group, uuid.uuid4()) is None


def test_a_claim_that_was_not_made_is_not_found():
    a_stream(entries=10)
    a_group()
    claimer, token = Claimer(limit=4), uuid.uuid4()
    with sessions() as worker:
        with contextlib.suppress(RuntimeError), transaction.atomic():
            claimed_first(claimer)
            raise RuntimeError
        assert worker.do(leases.find, claimer.group, token) is None
    assert claimer.poll() == [1, 2, 3, 4]


# --- a lease that is lost -----------------------------------------------------------------------------------

WHOEVER = "WHERE token = %(token)s::uuid", "WHERE true"


@pytest.mark.proves("ranges-are-disjoint-and-fenced")
@fails_if(without("streams.COMMIT", WHOEVER))
def test_who_has_lost_a_range_commits_nothing():
    a_stream(entries=5)
    a_group()
    old, new = Claimer(), Claimer()
    lost = old.claim().range
    lapse_ranges()
    mine = leases.reclaim(new.group, worker=new.worker, lease=30.0, token=uuid.uuid4())
    assert mine is not None
    assert (positions(mine), mine.reclaims) == ([1, 2, 3, 4, 5], 1)
    wrote = leases.commit(lost.token, [a_failure(2)])
    assert (wrote, failed(), open_ranges()) == (False, [], [(0, 5)])
    assert leases.commit(mine.token, [a_failure(3)])
    assert (failed(), open_ranges()) == ([3], [])
    assert not leases.commit(mine.token, [a_failure(3)])


@fails_if(without("streams.CLAIM", ("WHERE token = %(done)s::uuid", "WHERE true")))
def test_who_has_lost_a_range_frees_none_with_its_next_claim():
    stream = a_stream(entries=5)
    a_group()
    old, new = Claimer(limit=5), Claimer()
    lost = old.claim().range
    lapse_ranges()
    leases.reclaim(new.group, worker=new.worker, lease=30.0, token=uuid.uuid4())
    stream.append({})
    old.look()
    old.done = lost.token
    assert not old.claim().freed
    assert open_ranges() == [(0, 5), (5, 6)]


@fails_if(without("streams.HAND_BACK", WHOEVER))
def test_who_has_lost_a_range_hands_nothing_back():
    a_stream(entries=5)
    a_group()
    old, new = Claimer(), Claimer()
    lost = old.claim().range
    lapse_ranges()
    leases.reclaim(new.group, worker=new.worker, lease=30.0, token=uuid.uuid4())
    wrote = leases.hand_back(lost.token, 3, [a_failure(2)])
    assert (wrote, failed(), open_ranges()) == (False, [], [(0, 5)])


@fails_if(without("streams.TAKE_APART", WHOEVER))
def test_who_has_lost_a_range_does_not_take_it_apart():
    a_stream(entries=5)
    a_group()
    old, new = Claimer(), Claimer()
    lost = old.claim().range
    lapse_ranges()
    leases.reclaim(new.group, worker=new.worker, lease=30.0, token=uuid.uuid4())
    assert (leases.take_apart(lost, {}, ""), failed(), open_ranges()) == (0, [], [(0, 5)])


@pytest.mark.proves("ranges-are-disjoint-and-fenced")
@fails_if(without("streams.RECLAIM", "AND lease.until < statement_timestamp()"))
def test_a_range_under_its_lease_is_not_taken_over():
    a_stream(entries=5)
    a_group()
    holder, other = Claimer(), Claimer()
    held = holder.claim().range
    assert leases.reclaim(other.group, worker=other.worker, lease=30.0, token=uuid.uuid4()) is None
    assert leases.commit(held.token, [])


@fails_if(without("streams.RECLAIM", "FOR UPDATE SKIP LOCKED"))
def test_two_take_over_at_the_same_time():
    a_stream(entries=10)
    a_group()
    dead = Claimer(limit=5)
    dead.claim()
    dead.claim()
    lapse_ranges()
    with sessions(2) as (a, b):
        group, worker = dead.group, uuid.uuid4()
        a.open()
        one = a.do(leases.reclaim, group, worker=worker, lease=30.0, token=uuid.uuid4())
        other = at_once(b, lambda: leases.reclaim(group, worker=worker, lease=30.0, token=uuid.uuid4()))
        a.commit()
    assert (positions(one), positions(other)) == ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])


class Calm:
    """Surroundings of a run in which nothing happens, but for what is to happen while it waits."""

    def __init__(self, meanwhile: Any = None) -> None:
        self.meanwhile = meanwhile

    def stopping(self) -> bool:
        return False

    def wait(self) -> bool:
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        return True

    @contextlib.contextmanager
    def limited(self, held: Any, timeout: float | None) -> Iterator[None]:
        yield


def takes_note(entries):
    """Handle a batch by writing into this database."""
    execute(
        "INSERT INTO pgbus_stream_routed (group_id, position)"
        " SELECT (SELECT id FROM pgbus_stream_groups), position FROM unnest(%s::bigint[]) AS noted (position)",
        [[entry.position for entry in entries]],
    )


def noted() -> list[int]:
    return [position for (position,) in execute("SELECT position FROM pgbus_stream_routed ORDER BY position")]


@pytest.mark.parametrize("how", ["claimed again", "rewound"])
@fails_if(without("streams.COMMIT", WHOEVER, ("SELECT group_id FROM lease", "SELECT 1")))
def test_what_a_transactional_handler_wrote_goes_with_its_lease(how):
    a_stream(entries=5)
    consumer = a_group(takes_note, batch_size=10, transactional=True)
    old = Claimer()
    lost = old.claim().range

    def loses_it():
        if how == "rewound":
            groups.rewind("ledger", "totals", 0)
        else:
            lapse_ranges()
            leases.reclaim(old.group, worker=uuid.uuid4(), lease=30.0, token=uuid.uuid4())

    loses_it()
    handled = handling.handle(consumer, lost, Calm())
    assert (handled.lost, handled.ended, noted()) == (True, False, [])
    if how == "rewound":
        again = Claimer()
        again.look()
        held = again.claim().range
        assert handling.handle(consumer, held, Calm()).ended
        assert noted() == [1, 2, 3, 4, 5]


# --- how far a group is done ----------------------------------------------------------------------------------

AT_ONCE = Statement(
    sql="""
    UPDATE pgbus_stream_cursors AS cursors
    SET committed = greatest(cursors.committed, least(
        cursors.claimed,
        (SELECT min(lease.low) FROM pgbus_stream_leases AS lease WHERE lease.group_id = cursors.group_id)
    ))
    """
)


def computed_and_raised_at_once(monkeypatch):
    """if it is computed and written by one statement"""
    monkeypatch.setattr(groups, "roll_forward", lambda: AT_ONCE.count())


@pytest.mark.proves("committed-passes-nothing-open")
@fails_if(computed_and_raised_at_once)
def test_committed_does_not_pass_a_range_that_is_being_claimed():
    a_stream(entries=10)
    a_group()
    claimer = Claimer()
    claimer.look()
    with sessions(2) as (worker, roller):
        worker.open()
        worker.do(claimed_first, claimer)
        rolling = roller.begin(lambda: groups.roll_forward())
        waits(roller, rolling)
        worker.commit()
        rolling.result()
    assert cursor()[:2] == (10, 0)
    groups.roll_forward()
    assert cursor()[:2] == (10, 0)


@pytest.mark.proves("committed-passes-nothing-open")
def test_committed_stands_below_what_is_not_done():
    a_stream(entries=10)
    a_group()
    claimer = Claimer(limit=4)
    held = [claimer.claim().range for _ in range(3)]
    groups.roll_forward()
    assert cursor()[:2] == (10, 0)
    leases.commit(held[0].token, [a_failure(3)])
    leases.commit(held[2].token)
    groups.roll_forward()
    assert cursor()[:2] == (10, 2)
    execute("DELETE FROM pgbus_stream_exceptions")
    groups.roll_forward()
    assert cursor()[:2] == (10, 4)
    leases.commit(held[1].token)
    groups.roll_forward()
    assert cursor()[:2] == (10, 10)


class _Then:
    """A statement after which something else comes first."""

    def __init__(self, statement: Statement, then: Any) -> None:
        self._statement, self._then = statement, then

    def rows(self, **params: Any) -> list[Any]:
        found = self._statement.rows(**params)
        self._then()
        return found


@pytest.mark.proves("a-rewind-fences-what-was-claimed")
@fails_if(without("streams.RAISE_COMMITTED", "AND computed.rewinds = cursors.rewinds"))
def test_what_was_computed_before_a_rewind_is_not_written_after_it():
    a_stream(entries=10)
    a_group()
    claimer = Claimer()
    assert claimer.poll() == list(range(1, 11))
    execute("DELETE FROM pgbus_stream_leases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sql, "COMPUTE_COMMITTED", _Then(sql.COMPUTE_COMMITTED, lambda: groups.rewind("ledger", "totals", 2))
        )
        groups.roll_forward()
    assert cursor()[:2] == (2, 0)


# --- rewinding ------------------------------------------------------------------------------------------------


def forgets_no_lease(monkeypatch):
    """if leases outlive it"""
    monkeypatch.setattr(sql, "DROP_LEASES", Statement(sql="SELECT 1"))


@pytest.mark.proves("a-rewind-fences-what-was-claimed")
@fails_if(forgets_no_lease)
def test_a_range_that_is_handled_while_its_group_is_rewound_is_committed_by_nobody():
    a_stream(entries=10)
    a_group()
    held = Claimer().claim().range
    assert groups.rewind("ledger", "totals", 0) == 10
    wrote = leases.commit(held.token, [a_failure(4)])
    assert (wrote, failed()) == (False, [])
    assert Claimer().poll() == list(range(1, 11))


@fails_if(without("streams.DROP_EXCEPTIONS", "AND exception.position > %(position)s::bigint"))
def test_what_failed_below_is_kept_and_above_it_comes_again():
    a_stream(entries=10)
    a_group()
    held = Claimer().claim().range
    leases.commit(held.token, [a_failure(2), a_failure(5), a_failure(6)])
    assert groups.rewind("ledger", "totals", 5) == 5
    assert failed() == [2, 5]
    groups.roll_forward()
    assert cursor()[:2] == (5, 1)
    assert Claimer().poll() == [6, 7, 8, 9, 10]


@fails_if(without("streams.DROP_LEASES", "AND lease.high > %(position)s::bigint"), forgets_no_lease)
def test_a_range_below_goes_on_when_its_group_is_rewound():
    """And of one that lies on both sides the part below is anybody's: what is in it is not done."""
    a_stream(entries=12)
    a_group()
    claimer = Claimer(limit=4)
    below, across, above = (claimer.claim().range for _ in range(3))
    assert groups.rewind("ledger", "totals", 6) == 6
    assert open_ranges() == [(0, 4), (4, 6)]
    groups.roll_forward()
    assert cursor()[:2] == (6, 0)
    assert leases.commit(below.token, [a_failure(2)])
    assert not leases.commit(across.token, [a_failure(5)])
    assert not leases.commit(above.token, [a_failure(9)])
    assert failed() == [2]
    rest = leases.reclaim(claimer.group, worker=claimer.worker, lease=30.0, token=uuid.uuid4())
    assert positions(rest) == [5, 6]
    assert polls(Claimer()) == [7, 8, 9, 10, 11, 12]


def test_keys_of_ranges_go_with_them():
    a_stream(entries=8)
    a_group(key=lambda entry: "k")
    claimer = Claimer(limit=4)
    for held in (claimer.claim().range, claimer.claim().range):
        execute(
            "INSERT INTO pgbus_stream_keys (lease_id, group_id, key) VALUES (%s, %s, %s)",
            [held.lease, claimer.group.id, f"of {held.low}"],
        )
    groups.rewind("ledger", "totals", 4)
    assert list(KeyLease.objects.values_list("key", flat=True)) == ["of 0"]
    groups.rewind("ledger", "totals", 0)
    assert not KeyLease.objects.exists()


@fails_if(without("streams.LOCK_CURSOR", "FOR NO KEY UPDATE"))
def test_a_rewind_waits_for_a_claim_and_takes_its_range():
    a_stream(entries=10)
    a_group()
    claimer = Claimer()
    claimer.look()
    with sessions(2) as (worker, person):
        worker.open()
        worker.do(claimed_first, claimer)
        rewinding = person.begin(groups.rewind, "ledger", "totals", 0)
        waiting = waits(person, rewinding)
        worker.commit()
        assert rewinding.result() == (10 if waiting else 0)
        assert waiting
    assert open_ranges() == []
    assert Claimer().poll() == list(range(1, 11))


# --- partitions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 10, 100])
def test_ranges_across_partitions(limit):
    stream = a_stream(partition_size=10)
    a_group()
    claimer, got = Claimer(limit=limit), []
    for vain, entries in ((0, 9), (1, 3), (35, 2), (3, 25), (100, 1)):
        if vain:
            append_in_vain(stream, vain)
        stream.append_many([{}] * entries)
    while found := [position for _ in range(12) for position in claimer.poll()]:
        got += found
    assert got == log_of(stream)
    assert cursor()[0] == stream.head()


def test_a_log_whose_first_partitions_are_gone():
    stream = a_stream(entries=35, partition_size=10)
    a_group()
    execute(f"DROP TABLE pgbus_stream_{stream.id()}_p0, pgbus_stream_{stream.id()}_p1")
    assert polls(Claimer(limit=7), 6) == list(range(20, 36))
    assert cursor()[0] == 35


def test_a_log_of_which_nothing_is_left():
    stream = a_stream(entries=35, partition_size=10)
    a_group()
    execute(f"TRUNCATE pgbus_stream_{stream.id()}")
    assert polls(Claimer(), 6) == []
    assert cursor()[0] == 35
    stream.append({})
    assert polls(Claimer(), 1) == [36]
