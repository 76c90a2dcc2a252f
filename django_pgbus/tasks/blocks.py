"""
The block of a batch: what enqueues join while it is open.

It ends once. What goes on in its context after that, an asyncio task that nobody awaited say, enqueues tasks of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.db import connections
from psycopg.pq import TransactionStatus

from django_pgbus.conf import database
from django_pgbus.exceptions import BatchError, JobNotUnique
from django_pgbus.tasks import outcomes, results
from django_pgbus.tasks.compat import AnyTask, AnyTaskResult
from django_pgbus.tasks.payload import Payload
from django_pgbus.tasks.sql import GIVE_IDS

if TYPE_CHECKING:
    from django_pgbus.tasks.batch import Batch

current: ContextVar[Block | None] = ContextVar("pgbus_block", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A member of an asynchronous block, until it is stored."""

    work: outcomes.NewWork
    result: AnyTaskResult
    sender: type


class Block:
    """
    One block, from its beginning to its end.

    `id` is that of the batch once it is there, `key` its uniqueness key as it is stored, `refused` why there is none.
    Members are stored on the connection of the block, or where it `keeps` them, at its end.
    """

    def __init__(self, batch: Batch, *, key: str | None, keeps: bool) -> None:
        self.batch = batch
        self.id: int | None = None
        self.key = key
        self.keeps = keeps
        self.refused: JobNotUnique | None = None
        self.ended = False
        self.atomic: Any = None
        self._connection = None if keeps else connections[database()]
        self._kept: list[Kept] = []
        self._lock = threading.Lock()

    def end(self) -> list[Kept]:
        """Let nothing join any more, and return what was kept."""
        with self._lock:
            self.ended = True
            kept, self._kept = self._kept, []  # Its context may hold the block for long.
            return kept

    def check_connection(self) -> None:
        """Raise BatchError on another connection than that of the block's transaction: another thread's, say."""
        if not self.keeps and connections[database()] is not self._connection:
            raise BatchError(
                "This is another connection than that of the batch's block, in another thread perhaps: what is done here "
                "would not be part of the batch's transaction."
            )

    @property
    def outermost(self) -> Any:
        """Return what tells one transaction from another: the outermost `atomic` of this one."""
        connection: Any = self._connection
        return connection.atomic_blocks[0]

    @property
    def has_failed(self) -> bool:
        """Return whether PostgreSQL has given the transaction up, though nothing was raised to the end of the block."""
        connection: Any = self._connection
        session = connection.connection
        return session is None or session.info.transaction_status in {
            TransactionStatus.INERROR,
            TransactionStatus.UNKNOWN,
        }

    @property
    def is_broken(self) -> bool:
        """Return whether its transaction can only be rolled back."""
        connection: Any = self._connection
        return bool(connection.needs_rollback) or self.has_failed

    def check(self, works: Sequence[outcomes.NewWork]) -> None:
        """Raise BatchError for a member that would wait for its own batch."""
        for work in works:
            key = work.constraints.unique
            if key is not None and key.key == self.key:
                raise BatchError(
                    f"{work.task} needs the key {(key.name or key.key)[:200]!r}, which its own batch holds until all "
                    "members have ended: it would never run. Give one of the two another key."
                )

    def keep(
        self, task: AnyTask, works: Sequence[outcomes.NewWork], arguments: Sequence[Payload], alias: str, sender: type
    ) -> list[AnyTaskResult] | None:
        """Keep members until the end and return their results, which have their ids already; None if it has ended."""
        made = []
        for work, given, (id, at) in zip(works, arguments, GIVE_IDS.tuples(count=len(works)), strict=True):
            result = results.fresh(task, outcomes.Enqueued(id, at), given, alias)
            made.append(Kept(work=replace(work, id=id), result=result, sender=sender))
        with self._lock:
            if self.ended:
                return None
            self._kept += made
        return [one.result for one in made]


def joined() -> Block | None:
    """Return the block that an enqueue joins here, if any; raises BatchError on another connection than the block's."""
    block = current.get()
    if block is None or block.ended:
        return None
    block.check_connection()
    return block
