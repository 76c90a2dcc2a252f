"""Producers whose transactions end in the order that a test decides."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from django_pgbus import Stream
from django_pgbus.streams.consumers import Consumer
from django_pgbus.streams.log_statement import log_table
from django_pgbus.streams.stream import streams
from django_pgbus.tasks.watch import Watch
from django_pgbus.worker.follower import Follower
from django_pgbus.worker.lane import Lane
from tests.running import a_plan
from tests.sessions import Session, execute, sessions, until
from tests.streams.following import Claimer, a_group, a_stream

TRIES = 20


def append(stream: Stream | str, number: int = 1) -> int:
    """Append by plain SQL, without a savepoint, and return the last position; to a partition, if it is named."""
    table = stream if isinstance(stream, str) else log_table(stream.id())
    rows = execute(f"INSERT INTO {table} (payload) SELECT '{{}}' FROM generate_series(1, {number}) RETURNING position")
    return int(rows[-1][0])


def append_in_vain(stream: Stream, number: int = 1) -> None:
    """Take positions that stay empty, as those of a transaction do that is rolled back."""
    execute(f"SELECT nextval('{log_table(stream.id())}_position') FROM generate_series(1, {number})")


def take_id() -> int:
    """Take the transaction id of this transaction and return it."""
    return int(execute("SELECT pg_current_xact_id()::text")[0][0])


def xmax() -> int:
    """Return one above the last transaction that has completed."""
    return int(execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")[0][0])


def undisturbed(id: int) -> bool:
    """Return whether nobody but the first claim has taken an id since this one was; takes one itself."""
    return take_id() == id + 2


def log_of(stream: Stream) -> list[int]:
    """Return the positions of all entries."""
    return [position for (position,) in execute(f"SELECT position FROM {log_table(stream.id())} ORDER BY position")]


def cursor(stream: str = "ledger", group: str = "totals") -> Any:
    """Return (claimed, committed, settled_head, pending_head, whether an id is stored with it)."""
    ((*found,),) = execute(
        "SELECT claimed, committed, settled_head, pending_head, pending_xid IS NOT NULL FROM pgbus_stream_cursors"
        " WHERE group_id = (SELECT groups.id FROM pgbus_stream_groups AS groups JOIN pgbus_streams AS streams"
        " ON streams.id = groups.stream_id WHERE streams.name = %s AND groups.name = %s)",
        [stream, group],
    )
    return tuple(found)


def two_producers(older: Session, newer: Session, **group: Any) -> tuple[Stream, int]:
    """
    Return a stream in which the newer transaction holds position 1 and runs, and the older one has committed 2; and its id.

    It shows something only while the newer one is at or above `xmax`: any other transaction of the cluster that completes
    meanwhile, autovacuum's too, would hide what a snapshot's `xmax` fails to tell. Then it is done again.
    """
    for _ in range(TRIES):
        stream = a_stream(f"ledger{len(streams)}")
        a_group(stream=stream.name, **group)
        older.open()
        newer.open()
        older.do(take_id)
        id = newer.do(take_id)
        assert newer.do(append, stream) == 1
        assert older.do(append, stream) == 2
        older.commit()
        if id >= newer.do(xmax):
            return stream, id
        newer.roll_back()
    raise AssertionError("others of this cluster do not stop to write")


def polls(claimer: Claimer, times: int = 3) -> list[int]:
    """Return what so many polls deliver: one makes an observation, the next proves it."""
    return [position for _ in range(times) for position in claimer.poll()]


def polls_by_new_workers(stream: str = "ledger", times: int = 3) -> list[int]:
    """Return the same, each poll by a worker that has just begun."""
    return [position for _ in range(times) for position in Claimer(stream).poll()]


def lapse_ranges() -> None:
    """Let everybody have been silent for long."""
    execute("UPDATE pgbus_stream_leases SET until = statement_timestamp() - interval '1 second'")


class Followed:
    """A follower of one group, which does a round when it is told to; what was handled stands in `handled`."""

    def __init__(self, session: Session, follower: Follower) -> None:
        self.session, self.follower = session, follower

    @property
    def lane(self) -> Lane:
        return self.follower._lanes[0]

    def steps(self, times: int = 1) -> None:
        """Do so many rounds, each of which looks around."""
        for _ in range(times):
            self.follower.catch_up()
            self.session.do(self.follower.step)

    def fails(self) -> BaseException:
        """Do a round that is expected to fail, and what a loop does then."""
        self.follower.catch_up()
        error = self.session.begin(self.follower.step).exception()
        assert error is not None
        self.session.do(self.follower.on_error, error)
        return error

    def until_handled(self, upto: int) -> None:
        """Do rounds until all up to a position is handled and committed."""

        def done() -> bool:
            self.steps()
            rows = execute("SELECT 1 FROM pgbus_stream_leases")
            return self.lane.claimed >= upto and not rows and not self.lane.busy

        until(done)


@contextmanager
def followed(consumer: Consumer, **plan: Any) -> Iterator[Followed]:
    """Yield a follower that somebody steps by hand."""
    with sessions() as session:
        follower = Follower(
            plan=a_plan(poll=60.0, **plan),
            worker=uuid.uuid4(),
            consumers=[consumer],
            watch=Watch(),
            armed=lambda: None,
            told=lambda: None,
            lost=lambda: None,
        )
        session.do(connections.close_all)  # it opens one of its own
        followed = Followed(session, follower)
        try:
            yield followed
        finally:
            follower.drain()
            followed.lane.end()
            session.do(follower.disconnect)
