"""
`Batch`: many tasks with one end.

    with Batch("Orders of 30 November", properties={"file": name}, on_success=report) as batch:
        for row in rows:
            import_order.enqueue(row)

The block is a transaction: whatever raises in it leaves nothing, neither batch nor members. Asynchronous code has no
transactions in Django: there the members are kept until the end of the block, and stored in one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from django_pgbus import signals
from django_pgbus.batches import counts, sql
from django_pgbus.conf import database
from django_pgbus.exceptions import BatchDoesNotExist, BatchError, BatchFinished, InvalidKey, JobNotUnique
from django_pgbus.postgres.keys import why_unusable
from django_pgbus.tasks import batch_ends, lifecycle, outcomes, refusals, results
from django_pgbus.tasks.batch_ends import EVENTS, Callback, NewBatch
from django_pgbus.tasks.compat import AnyTask, AnyTaskResult, InvalidTask, Task, TaskResult, task_enqueued
from django_pgbus.tasks.lookup import checked_path
from django_pgbus.tasks.payload import Payload, encode_value
from django_pgbus.tasks.policy import checked_queue
from django_pgbus.tasks.sql import GIVE_IDS
from django_pgbus.tasks.task import PgbusTask
from django_pgbus.uniqueness.policy import ON_CONFLICT

P = ParamSpec("P")
R = TypeVar("R")

# The block that enqueues join, and the batch of the task that runs here.
_block: ContextVar[Batch | None] = ContextVar("pgbus_open_batch", default=None)
running: ContextVar[int | None] = ContextVar("pgbus_batch_of_running_task", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a batch is, as one snapshot saw it: `total = outstanding + succeeded + failed`."""

    total: int
    succeeded: int
    failed: int
    finished_at: datetime | None

    @property
    def done(self) -> int:
        """Return how many members have ended, one way or the other."""
        return self.succeeded + self.failed

    @property
    def outstanding(self) -> int:
        """Return how many members have not ended; one that is parked has not."""
        return max(0, self.total - self.done)

    @property
    def percent(self) -> int:
        """Return how much is done, rounded down; an empty batch is done."""
        return 100 * self.done // self.total if self.total else 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A member of an asynchronous block, until it is stored."""

    work: outcomes.NewWork
    result: AnyTaskResult
    sender: type


class Batch:
    """
    Many tasks, one end.

    What is enqueued inside `with Batch(...):` is a member, in bulk too. Callbacks are tasks of their own with one argument,
    a dict of `id`, `description`, `properties`, `total`, `succeeded` and `failed`: `on_finish` is enqueued when the last
    member has ended, `on_success` if none failed, `on_failure` if any did, each once. Without members it ends at once.

    `key` holds a uniqueness key from here until the batch is finished; where another holds it, `on_conflict` decides:
    `reject` raises JobNotUnique, `discard` and `log` drop the batch and whatever is enqueued in its block.

    Raises InvalidPayload, InvalidTask, InvalidKey or ValueError for what cannot be used, before any SQL. A block inside a
    block is a BatchError.
    """

    def __init__(
        self,
        description: str = "",
        *,
        properties: Mapping[str, Any] | None = None,
        on_finish: AnyTask | None = None,
        on_success: AnyTask | None = None,
        on_failure: AnyTask | None = None,
        key: str | None = None,
        on_conflict: str = "reject",
    ) -> None:
        if not isinstance(description, str):
            raise TypeError(f"The description of a batch is a text, not a {type(description).__name__}.")
        if key is not None and (problem := why_unusable(key)):
            raise InvalidKey(f"The key of the batch {problem}.")
        if on_conflict not in ON_CONFLICT:
            raise ValueError(f"on_conflict is one of {', '.join(map(repr, ON_CONFLICT))}, not {on_conflict!r}.")
        given = zip(EVENTS, (on_finish, on_success, on_failure), strict=True)
        self.id: int | None = None
        self.description = json.loads(encode_value(description, "description", "The description takes"))
        self.properties: dict[str, Any] = _properties(properties)
        self.refused: JobNotUnique | None = None
        self._new = NewBatch(
            description=self.description,
            properties=json.dumps(self.properties),
            callbacks={event: _callback(event, task) for event, task in given if task is not None},
            key=key,
        )
        self._on_conflict = on_conflict
        self._token: Token[Batch | None] | None = None
        self._atomic: Any = None
        self._connection: Any = None
        self._kept: list[_Kept] | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Batch {self.id or 'new'} {self.description!r}>"

    # --- finding one ----------------------------------------------------------------------------------

    @classmethod
    def get(cls, id: int) -> Batch:
        """Return the batch of this id, to be asked how far it is or opened again; raises BatchDoesNotExist."""
        row = sql.FIND.row(id=id)
        if row is None:
            raise BatchDoesNotExist(f"There is no batch {id}.")
        batch = cls()
        batch.id, batch.description, batch.properties = row.id, row.description, json.loads(row.properties)
        return batch

    @classmethod
    async def aget(cls, id: int) -> Batch:
        """See get()."""
        return await sync_to_async(cls.get, thread_sensitive=True)(id)

    # --- the block ------------------------------------------------------------------------------------

    def __enter__(self) -> Batch:
        self._check_alone()
        self._connection = connections[database()]
        self._atomic = transaction.atomic(using=database())
        self._atomic.__enter__()
        try:
            self._open()
        except BaseException as error:
            self._leave(error)
            raise
        self._token = _block.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            _block.reset(self._token)
        self._token = None
        self._leave(error)

    def _open(self) -> None:
        self.refused = None
        if self.id is not None:
            if not batch_ends.open_again(self.id):
                raise BatchFinished(f"The batch {self.id} has ended: nothing can be added to it.")
            self._is_new = False
            return
        opened = batch_ends.open_batch(self._new)
        self._is_new = True
        if isinstance(opened, int):
            self.id = opened
            return
        holder = "" if opened.holder is None else str(opened.holder)
        self.refused = JobNotUnique(
            f"The batch is not opened: {holder or 'another one'} holds the key {opened.key[:200]!r}.",
            key=opened.key,
            holder=holder,
        )
        if self._on_conflict == "reject":
            raise self.refused
        signals.job_not_unique.send_robust(
            sender=None, task="Batch", key=opened.key, holder=opened.holder, policy=self._on_conflict
        )

    _is_new = True

    def _leave(self, error: BaseException | None) -> None:
        atomic, connection = self._atomic, self._connection
        self._atomic = self._connection = None
        id, rolled_back = self.id, error is not None or connection.needs_rollback
        if self._is_new:
            self.id = None  # Until it is known that something of it remains.
        if id is not None and not rolled_back:
            lifecycle.let_in_after_commit((), (), [id])  # One without members has ended.
        atomic.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        if not rolled_back:
            self.id = id

    async def __aenter__(self) -> Batch:
        self._check_alone()
        self._kept = []
        self._token = _block.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            kept, self._kept = self._kept, None
        if self._token is not None:
            _block.reset(self._token)
        self._token = None
        if error is None:
            await sync_to_async(self._store, thread_sensitive=True)(kept or [])

    def _store(self, kept: Sequence[_Kept]) -> None:
        """Store what an asynchronous block has kept, all of it or nothing."""
        with self:
            if self.refused is not None:
                for one in kept:
                    results.drop(one.result, self.refused)
                return
            entered: list[tuple[_Kept, outcomes.Entered]] = []
            for _, group in groupby(kept, key=lambda one: one.work.due):
                mine = list(group)
                works = [replace(one.work, batch=self.id) for one in mine]
                entered += zip(mine, lifecycle.enter(works), strict=True)
            for one, outcome in entered:
                if not isinstance(outcome, outcomes.Enqueued):
                    _refuse(one, outcome)
        for one, outcome in entered:
            if isinstance(outcome, outcomes.Enqueued):
                task_enqueued.send(one.sender, task_result=one.result)

    def _check_alone(self) -> None:
        if (outer := _block.get()) is not None and outer.is_open:
            raise BatchError("A batch is open already: its block has to end before another one begins.")
        if self.is_open:
            raise BatchError("This batch is open already.")

    # --- members --------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Return whether its block has begun and not ended."""
        return self._token is not None

    def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """Enqueue one more member, from inside the block; raises BatchError after its end, and what enqueue() raises."""
        self._check_open()
        token = _block.set(self)
        try:
            return task.enqueue(*args, **kwargs)
        finally:
            _block.reset(token)

    async def aadd(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """See add()."""
        self._check_open()
        token = _block.set(self)
        try:
            return await task.aenqueue(*args, **kwargs)
        finally:
            _block.reset(token)

    def _check_open(self) -> None:
        if not self.is_open:
            again = f"`with Batch.get({self.id}) as batch:`" if self.id else "`with batch:`"
            raise BatchError(f"The batch is not open: add its members inside its block; {again} opens it again.")

    @property
    def keeps(self) -> bool:
        """Return whether members are kept until the end of the block."""
        return self._kept is not None

    def check_connection(self) -> None:
        """Raise BatchError on another connection than that of the block's transaction: another thread's, say."""
        if not self.keeps and connections[database()] is not self._connection:
            raise BatchError(
                "A member was enqueued on another connection than its batch, in another thread perhaps: it would not "
                "be part of the batch's transaction."
            )

    def keep(
        self, task: AnyTask, works: Sequence[outcomes.NewWork], arguments: Sequence[Payload], alias: str, sender: type
    ) -> list[AnyTaskResult]:
        """Keep members until the end of the block and return their results, which have their ids already."""
        made = []
        for work, given, (id, at) in zip(works, arguments, GIVE_IDS.tuples(count=len(works)), strict=True):
            result = results.fresh(task, outcomes.Enqueued(id, at), given, alias)
            made.append(_Kept(work=replace(work, id=id), result=result, sender=sender))
        with self._lock:
            if self._kept is None:
                raise BatchError("The block of this batch has ended while a task was enqueued in it: await it inside.")
            self._kept += made
        return [one.result for one in made]

    # --- how far it is --------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """Return how far it is, in one cheap read; raises BatchDoesNotExist for one that is not stored."""
        found = counts.standing([self.id]) if self.id is not None else []
        if not found:
            raise BatchDoesNotExist(f"There is no batch {self.id}." if self.id else "The batch is not stored.")
        one = found[0]
        return Progress(total=one.total, succeeded=one.succeeded, failed=one.failed, finished_at=one.finished_at)

    async def aprogress(self) -> Progress:
        """See progress()."""
        return await sync_to_async(self.progress, thread_sensitive=True)()


def open_block() -> Batch | None:
    """
    Return the batch whose block this is; raises BatchError in what outlived a block.

    An asyncio task that was made in a block and goes on after it would else enqueue what its author took for members.
    """
    block = _block.get()
    if block is None:
        return None
    if not block.is_open:
        raise BatchError("The block of this batch has ended; await what enqueues its members inside the block.")
    block.check_connection()
    return block


def current_batch() -> Batch | None:
    """Return the batch whose block this is, else the one that the running task is a member of, else None."""
    if (block := _block.get()) is not None and block.is_open:
        return block
    id = running.get()
    return None if id is None else Batch.get(id)


async def acurrent_batch() -> Batch | None:
    """See current_batch()."""
    return await sync_to_async(current_batch, thread_sensitive=True)()


def _refuse(one: _Kept, outcome: outcomes.Entered) -> None:
    error = refusals.error_of(one.work.task, outcome)
    policy = refusals.policy_of(one.work.constraints, outcome)
    if policy in {"reject", "raise"}:
        raise error
    refusals.announce(one.work.task, outcome, policy)
    results.drop(one.result, error)


def _properties(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"The properties of a batch are a dict, not a {type(given).__name__}.")
    text = encode_value(dict(given or {}), "properties", "The properties take")
    return cast("dict[str, Any]", json.loads(text))


def _callback(event: str, task: Any) -> Callback:
    if not isinstance(task, PgbusTask):
        kind = "a task of another backend" if isinstance(task, Task) else f"a {type(task).__name__}"
        raise InvalidTask(f"{event} takes a task of PgbusBackend, as in {event}=report, not {kind}.")
    backend = task.get_backend()
    if not issubclass(backend.task_class, PgbusTask):
        raise InvalidTask(f"{event}: {task.module_path} belongs to another backend, which enqueues it elsewhere.")
    if task.unique is not None or task.limit is not None:
        raise InvalidTask(
            f"{event}: {task.module_path} is unique or limited, so it could be refused when the batch ends. Take a task "
            "that enqueues it."
        )
    run_after: Any = task.run_after  # Django's annotation knows moments only
    if not (run_after is None or isinstance(run_after, timedelta)):
        raise InvalidTask(f"{event}: run_after is a timedelta from the end of the batch, not a moment.")
    checked_queue(task.queue_name)
    return Callback(
        task=checked_path(task),
        queue=task.queue_name,
        priority=int(task.priority),
        backend=task.backend,
        due_in=run_after.total_seconds() if run_after else 0.0,
    )
