"""
A follower, round by round: what is idle only reads, and what is lost with a connection is found again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_pgbus import Stream
from django_pgbus.streams import keys, leases, partitions
from django_pgbus.streams.log_statement import log_table
from django_pgbus.worker.follower import Follower
from tests.line import COMMITTED
from tests.races.guards import fails_if
from tests.sessions import execute, sessions, until
from tests.streams.following import Claimer, a_group, a_stream, nothing_declared
from tests.streams.producing import TRIES, append, append_in_vain, cursor, followed, polls, take_id

pytestmark = [COMMITTED, pytest.mark.races]

seen: list[int] = []


@pytest.fixture(autouse=True)
def _only_these() -> Iterator[None]:
    seen.clear()
    with nothing_declared():
        yield


def takes(entry: Any) -> None:
    seen.append(entry.position)


# --- idle -------------------------------------------------------------------------------------------------


def ids_taken(idle: Callable[[], Any]) -> int:
    """
    Return how many transaction ids ten idle polls take.

    The least of some tries: others of the cluster, autovacuum for one, may take some meanwhile.
    """
    fewest = 1 << 60
    with sessions() as side:
        for turn in range(10 * TRIES):
            before = side.do(take_id)
            for _ in range(10):
                idle()
            fewest = min(fewest, side.do(take_id) - before - 1)
            if fewest == 0 or (turn >= TRIES and fewest >= 10):
                break
    return fewest


def empty(stream: Stream) -> None:
    pass


def caught_up(stream: Stream) -> None:
    append(stream, 3)


def with_a_tail_that_was_rolled_back(stream: Stream) -> None:
    append(stream, 3)
    append_in_vain(stream, 5)


def with_nothing_but_what_was_rolled_back(stream: Stream) -> None:
    append_in_vain(stream, 5)


def dropped_by_retention(stream: Stream) -> None:
    append(stream, 5)
    polls(Claimer())
    for number in (0, 1, 2):
        execute(f"DROP TABLE {partitions.partition(stream.id(), number)}")
    assert not execute(f"SELECT 1 FROM {log_table(stream.id())}")


LOGS = [
    empty,
    caught_up,
    with_a_tail_that_was_rolled_back,
    with_nothing_but_what_was_rolled_back,
    dropped_by_retention,
]


@pytest.mark.parametrize("log", LOGS)
def test_a_look_takes_no_transaction_id(log: Callable[[Stream], None]):
    stream = a_stream(partition_size=3)
    a_group()
    log(stream)
    claimer = Claimer()
    polls(claimer)
    assert cursor()[0] == stream.head()
    assert ids_taken(claimer.look) == 0


def claims_whatever_it_sees(monkeypatch):
    """if a group claims without having seen that there is something"""
    note = Follower._note

    def noted(self, lane, row, now):
        note(self, lane, row, now)
        lane.hungry = True

    monkeypatch.setattr(Follower, "_note", noted)


@pytest.mark.parametrize("options", [{}, {"route_to": "mail"}], ids=["", "routes"])
@pytest.mark.parametrize("log", LOGS)
@fails_if(claims_whatever_it_sees)
def test_an_idle_follower_takes_no_transaction_id(log, options):
    stream = a_stream(partition_size=3)
    consumer = a_group(takes, **options)
    if options:  # what was claimed by hand was not routed
        append(stream) if log is dropped_by_retention else log(stream)
    else:
        log(stream)
    with followed(consumer) as worker:
        worker.until_handled(stream.head())
        worker.steps(3)
        worker.follower._next_roll = float("inf")
        assert ids_taken(worker.steps) == 0
    assert cursor()[0] == stream.head()


@fails_if(claims_whatever_it_sees)
def test_a_follower_that_waits_for_a_hole_takes_no_more_ids():
    """What it has observed is stored; nothing newer is to be seen."""
    stream = a_stream()
    consumer = a_group(takes)
    with sessions() as producer, followed(consumer) as worker:
        producer.open()
        producer.do(append, stream)
        append(stream)
        worker.steps(3)
        assert ids_taken(worker.steps) == 0
        assert seen == []
        producer.commit()
        worker.until_handled(2)
    assert seen == [1, 2]


# --- a restart ------------------------------------------------------------------------------------------------


def test_a_follower_that_begins_goes_on_with_what_another_has_observed():
    """It may prove what the other one has seen before it was gone, also while transactions overlap."""
    stream = a_stream()
    consumer = a_group(takes)
    append_in_vain(stream)
    append(stream)
    with sessions(2) as (before, after):
        before.open()
        before.do(take_id)
        with followed(consumer) as worker:
            worker.steps(3)
        after.open()
        after.do(take_id)
        before.commit()
        with followed(consumer) as worker:
            worker.until_handled(2)
    assert seen == [2]


# --- answers that are lost --------------------------------------------------------------------------------------


class Lost:
    """Loses the connection at the first call of a function: before it, after it, or with the commit after it."""

    def __init__(self, real: Callable[..., Any], *, at: str = "after") -> None:
        self.real, self.at, self.calls = real, at, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            return self.real(*args, **kwargs)
        if self.at != "before":
            answer = self.real(*args, **kwargs)
        if self.at == "commit":
            transaction.on_commit(self.break_off)
            return answer
        return self.break_off()

    def break_off(self) -> None:
        connection.connection.close()
        raise OperationalError("the connection was lost")


def looks_for_no_claim(monkeypatch):
    """if nobody looks for the range of a claim that was not answered"""
    monkeypatch.setattr(Follower, "_find_lost_claim", lambda self, lane: None)


@pytest.mark.parametrize("keyed", [False, True], ids=["", "with a key"])
@fails_if(looks_for_no_claim)
def test_a_claim_whose_answer_was_lost(keyed):
    a_stream(entries=5)
    consumer = a_group(takes, **({"key": the_same} if keyed else {}))
    with pytest.MonkeyPatch.context() as patch, followed(consumer) as worker:
        if keyed:
            patch.setattr(keys, "hold", Lost(keys.hold, at="commit"))
        else:
            patch.setattr(leases, "claim", Lost(leases.claim))
        worker.fails()
        assert open_ranges() == [(0, 5)]
        worker.steps(1)
        assert worker.lane.held() or not open_ranges()  # it may be done by now
        worker.until_handled(5)
    assert seen == [1, 2, 3, 4, 5]


def the_same(entry: Any) -> int:
    return 1


def open_ranges() -> list[Any]:
    return execute("SELECT low, high FROM pgbus_stream_leases ORDER BY low")


@pytest.mark.parametrize("keyed", [False, True], ids=["", "with a key"])
def test_a_claim_that_was_lost_before_it_was_made(keyed):
    a_stream(entries=5)
    consumer = a_group(takes, **({"key": the_same} if keyed else {}))
    with pytest.MonkeyPatch.context() as patch, followed(consumer) as worker:
        if keyed:  # claimed, but not committed
            patch.setattr(keys, "hold", Lost(keys.hold))
        else:
            patch.setattr(leases, "claim", Lost(leases.claim, at="before"))
        worker.fails()
        assert open_ranges() == []
        worker.until_handled(5)
    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_commit_whose_answer_was_lost(at):
    """The entry that fails is entered once, and the rest is not handled again."""
    a_stream(entries=5)
    consumer = a_group(fails_at_three)
    lost = []
    with pytest.MonkeyPatch.context() as patch, followed(consumer) as worker:
        patch.setattr(leases, "commit", Lost(leases.commit, at=at))
        patch.setattr("django_pgbus.signals.range_lost.send_robust", lambda **kwargs: lost.append(kwargs))
        worker.steps(1)
        until(lambda: worker.lane.ended)
        worker.fails()
        worker.until_handled(5)
    assert seen == [1, 2, 3, 4, 5]
    assert execute("SELECT position, attempts FROM pgbus_stream_exceptions") == [(3, 1)]
    assert lost == []


def fails_at_three(entry: Any) -> None:
    seen.append(entry.position)
    if entry.position == 3:
        raise ValueError


def test_a_range_that_is_freed_by_a_claim_whose_answer_was_lost():
    stream = a_stream(entries=5)
    consumer = a_group(takes)
    lost = []
    with pytest.MonkeyPatch.context() as patch, followed(consumer) as worker:
        patch.setattr("django_pgbus.signals.range_lost.send_robust", lambda **kwargs: lost.append(kwargs))
        worker.steps(1)
        until(lambda: worker.lane.ended)
        stream.append({})
        patch.setattr(leases, "claim", Lost(leases.claim))
        worker.fails()
        worker.until_handled(6)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert lost == []


# --- leases that are lost ---------------------------------------------------------------------------------------


def test_a_range_that_another_has_taken_over_is_not_committed_by_the_first():
    a_stream(entries=5)
    consumer = a_group(takes)
    lost = []
    with pytest.MonkeyPatch.context() as patch, followed(consumer) as worker:
        patch.setattr("django_pgbus.signals.range_lost.send_robust", lambda **kwargs: lost.append(kwargs["high"]))
        worker.steps(1)
        until(lambda: worker.lane.ended)
        execute("UPDATE pgbus_stream_leases SET until = statement_timestamp() - interval '1 s'")
        group = worker.lane.group
        assert group is not None
        mine = leases.reclaim(group, worker=uuid.uuid4(), lease=30.0, token=uuid.uuid4())
        worker.steps(2)
        assert lost == [5]
        assert execute("SELECT token FROM pgbus_stream_leases") == [(mine.token,)]
        assert worker.lane.held() == []


def test_a_beat_stops_what_was_taken_over():
    a_stream(entries=5)
    consumer = a_group(takes)
    with followed(consumer) as worker:
        worker.steps(1)
        (held,) = worker.lane.held()
        until(lambda: worker.lane.ended)
        execute("UPDATE pgbus_stream_leases SET token = gen_random_uuid()")
        worker.session.do(worker.follower.renew)
        assert held.superseded
