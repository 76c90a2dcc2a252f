"""
Entries that are routed into queues: each once, at once, and the mark never passes a position that can still appear.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_pgbus.exceptions import ConsumeRefused
from django_pgbus.streams import groups, routing, sql
from django_pgbus.streams.consumers import Consumer, consumers
from tests.line import COMMITTED
from tests.races.guards import fails_if, waits, without
from tests.sessions import execute, sessions
from tests.streams.following import Claimer, a_group, a_stream, let_others_end, nothing_declared
from tests.streams.producing import TRIES, append, append_in_vain, cursor, log_of, take_id, two_producers, undisturbed

pytestmark = [COMMITTED, pytest.mark.races]

XMAX = "pg_current_xact_id()", "pg_snapshot_xmax(pg_current_snapshot())"


@pytest.fixture(autouse=True)
def _only_these() -> Iterator[None]:
    with nothing_declared():
        yield


class Router(Claimer):
    """What a worker does to route."""

    def __init__(self, stream: str = "ledger") -> None:
        super().__init__(stream)
        self.consumer: Consumer = consumers[stream, "totals"]

    def route(self) -> tuple[int, bool] | None:
        """Route without a look before."""
        return routing.route(self.consumer, self.group, self.fence, self.claimed, system=self.system)

    def rounds(self, times: int = 3) -> None:
        for _ in range(times):
            let_others_end()
            self.look()
            self.route()


def sent() -> list[int]:
    """Return the positions of the entries that are in queues, in the order of the queue."""
    return [
        position
        for (position,) in execute(
            "SELECT (payload->>'position')::bigint FROM pgbus_messages ORDER BY pgbus_messages.position"
        )
    ]


def remembered() -> list[int]:
    return [position for (position,) in execute("SELECT position FROM pgbus_stream_routed ORDER BY position")]


@pytest.mark.parametrize("fresh", [False, True], ids=["one worker", "new workers"])
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
@fails_if(without("streams.UNROUTED", XMAX))
def test_the_older_one_commits_first(commits, fresh):
    everything: list[int] = []
    for _ in range(TRIES):  # What others of the cluster complete meanwhile may hide it.
        with sessions(2) as (older, newer):
            stream, id = two_producers(older, newer, route_to="mail")
            router = Router(stream.name)
            router.rounds(1)
            shows = undisturbed(id)
            for _ in range(3):
                (Router(stream.name) if fresh else router).rounds(1)
            early = sent()[len(everything) :], cursor(stream.name)[:2], remembered()
            newer.commit() if commits else newer.roll_back()
            for _ in range(3):
                (Router(stream.name) if fresh else router).rounds(1)
        everything += [2, 1] if commits else [2]
        assert sent() == everything
        assert early == ([2], (0, 0), [2])
        assert (cursor(stream.name)[:2], remembered()) == ((2, 2), [])
        if shows:
            break


def does_not_remember(monkeypatch):
    """if nobody remembers what was routed above the mark"""
    without("streams.NOTE_ROUTED", ("FROM unnest", "FROM (SELECT WHERE false) AS none, unnest"))(monkeypatch)


@pytest.mark.proves("routed-once")
@fails_if(does_not_remember)
def test_what_was_routed_above_a_hole_is_not_routed_again():
    stream = a_stream()
    a_group(route_to="mail")
    with sessions() as producer:
        producer.open()
        producer.do(append, stream)
        append(stream, 3)
        Router().rounds(3)
        append(stream, 2)
        Router().rounds(3)
        assert sent() == [2, 3, 4, 5, 6]
        producer.commit()
    Router().rounds(3)
    assert sent() == [2, 3, 4, 5, 6, 1]
    assert (cursor()[:2], remembered()) == ((6, 6), [])


@pytest.mark.proves("routed-once")
@fails_if(without("streams.LOCK_TO_ROUTE", "FOR NO KEY UPDATE OF cursors"))
def test_two_workers_route_at_the_same_time():
    a_stream(entries=5)
    a_group(route_to="mail")
    one, other = Router(), Router()
    one.look()
    other.look()
    with sessions(3) as (holder, a, b):
        # Both are stopped at the first row they write.
        holder.open()
        holder.sql("LOCK TABLE pgbus_messages IN SHARE MODE")
        first = a.begin(one.route)
        a.wait_until_blocked()
        second = b.begin(other.route)
        assert waits(b, second)
        holder.commit()
        first.result()
        second.exception()
    assert sent() == [1, 2, 3, 4, 5]


# If the newest observation is stored in place of one that is not proven.
newest_replaces = without("streams.LOCK_TO_ROUTE", ("cursors.pending_xid::text::bigint AS", "NULL::bigint AS"))


@fails_if(newest_replaces)
def test_transactions_that_overlap():
    stream = a_stream()
    a_group(route_to="mail")
    append_in_vain(stream)
    with sessions(2) as others:
        others[0].open()
        others[0].do(take_id)
        append(stream)
        for turn in range(6):
            Router().rounds(1)
            before, after = others[turn % 2], others[(turn + 1) % 2]
            after.open()
            after.do(take_id)
            Router().rounds(1)
            before.commit()
        assert (sent(), cursor()[0]) == ([2], 2)


def test_a_rewind_routes_again_what_comes_after():
    a_stream(entries=5)
    a_group(route_to="mail")
    router = Router()
    router.rounds(1)
    assert groups.rewind("ledger", "totals", 3) == 2
    router.rounds(1)
    assert sent() == [1, 2, 3, 4, 5, 4, 5]
    assert cursor()[:2] == (5, 5)


def test_a_rewind_forgets_what_was_routed_above_it():
    stream = a_stream()
    a_group(route_to="mail")
    router = Router()
    append(stream)
    with sessions() as producer:
        producer.open()
        producer.do(append, stream)
        append(stream)
        router.rounds(1)
        assert (sent(), remembered()) == ([1, 3], [3])
        assert groups.rewind("ledger", "totals", 0) == 1
        router.rounds(1)
        producer.commit()
    router.rounds(3)
    assert sent() == [1, 3, 1, 3, 2]


def test_what_is_rolled_back_was_not_routed():
    """Messages, mark and memory are one transaction."""
    a_stream(entries=3)
    a_group(route_to="mail")
    router = Router()
    router.look()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql.MOVE_MARK.__class__, "count", None)
        with pytest.raises(TypeError):
            router.route()
    assert (sent(), cursor()[:2]) == ([], (0, 0))
    router.rounds(1)
    assert (sent(), cursor()[:2]) == ([1, 2, 3], (3, 3))


def test_it_is_refused_in_a_transaction():
    a_stream(entries=3)
    a_group(route_to="mail")
    router = Router()
    with sessions() as caller:
        caller.open()
        refused = caller.begin(router.route).exception()
        caller.roll_back()
    assert isinstance(refused, ConsumeRefused)
    assert sent() == []


def test_more_than_one_transaction_routes():
    stream = a_stream(partition_size=10)
    a_group(route_to="mail")
    stream.append_many([{}] * 25)
    append_in_vain(stream, 40)
    stream.append_many([{}] * 1500)
    router = Router()
    while cursor()[0] < stream.head():
        router.rounds(1)
    assert sent() == log_of(stream)
    assert remembered() == []
