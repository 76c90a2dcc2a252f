"""
Which positions of a log are settled: nothing at or below can still appear. The proof: docs/architecture/streams.md.

An observation is the head of the log, and a transaction id taken by a later statement. Any snapshot whose `xmin` has
reached that id proves it. Observations are kept until they are proven: one that a newer one replaces with each poll
never gets old enough while transactions overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connections

from django_pgbus.conf import database
from django_pgbus.exceptions import ConsumeRefused
from django_pgbus.streams import sql

FENCE: Final = 1  # the version of this rule; cursors left by another are refused
RING: Final = 64  # observations that wait for their proof


@dataclass(slots=True)
class Fence:
    """What one worker knows about one log; forgotten with the connection it was learnt on."""

    head: int = 0  # the highest that any statement has seen
    settled: int = 0  # proven
    passable: int = 0  # proven, and since then nobody was seen to attach a partition: holes up to here may be passed
    observations: list[tuple[int, int]] = field(default_factory=list)  # (head, xid), both ascending

    def observe(self, head: int, xid: int) -> None:
        """
        Note a head, and the id that a later statement took.

        When the ring is full the newest observation is not kept: those that are there get older, and are proven first.
        """
        newest = self.observations[-1][0] if self.observations else self.settled
        if head > newest and len(self.observations) < RING:
            self.observations.append((head, xid))

    def prove(self, xmin: int, *stored: tuple[int, int | None]) -> None:
        """Take what a snapshot with this xmin proves of the ring, and of (head, xid) pairs that others have made."""
        for head, xid in (*self.observations, *stored):
            if xid is not None and xid <= xmin and head > self.settled:
                self.settled = head
        self.observations = [(head, xid) for head, xid in self.observations if head > self.settled]

    @property
    def wants_more(self) -> bool:
        """Return whether the head is beyond all that is being waited for."""
        newest = self.observations[-1][0] if self.observations else self.settled
        return self.head > newest and len(self.observations) < RING

    def forget(self) -> None:
        """Know nothing: the log, or the connection, is another."""
        self.head = self.settled = self.passable = 0
        self.observations.clear()


def check_session() -> str:
    """
    Return the system identifier of this server, or raise ConsumeRefused saying why nothing is consumed on this connection.

    Positions are settled on the primary only, and by an id that is younger than what was observed: never inside a
    transaction that began before.
    """
    connection = connections[database()]
    if connection.in_atomic_block or not connection.get_autocommit():
        raise ConsumeRefused(
            "A stream cannot be consumed inside atomic() or with autocommit off: what is settled is proven by a transaction "
            "that begins with the claim. In tests use django_pgbus.testing.consume_stream()."
        )
    session: Any = sql.SESSION.row()
    if session.standby:
        raise ConsumeRefused(
            "A stream is consumed on the primary: this connection leads to a standby, where nothing can be claimed."
        )
    if session.wrote:
        raise ConsumeRefused("A stream cannot be consumed in a transaction that has written before.")
    return str(session.system)
