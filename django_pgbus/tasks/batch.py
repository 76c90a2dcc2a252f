"""
`Batch`: many tasks with one end.

    with Batch("Orders of 30 November", properties={"file": name}, on_success=report) as batch:
        for row in rows:
            import_order.enqueue(row)

The block is a transaction: whatever raises in it leaves nothing, neither batch nor members. Asynchronous code has no
transactions in Django: there the members are kept until the end of the block, and stored in one.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import transaction

from django_pgbus.batches import counts, sql
from django_pgbus.conf import database
from django_pgbus.exceptions import BatchDoesNotExist, BatchError, BatchFinished, InvalidKey, JobNotUnique
from django_pgbus.postgres.keys import stored, why_unusable
from django_pgbus.tasks import batch_ends, lifecycle, outcomes, refusals, results
from django_pgbus.tasks.batch_ends import EVENTS, Callback, NewBatch
from django_pgbus.tasks.blocks import Block, Kept, current
from django_pgbus.tasks.compat import AnyTask, InvalidTask, Task, TaskResult, task_enqueued
from django_pgbus.tasks.lookup import checked_path
from django_pgbus.tasks.payload import encode_value
from django_pgbus.tasks.policy import checked_queue
from django_pgbus.tasks.results import parsed_id
from django_pgbus.tasks.task import PgbusTask
from django_pgbus.uniqueness.policy import ON_CONFLICT

P = ParamSpec("P")
R = TypeVar("R")

# The batch that the task that runs here is a member of.
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


class Batch:
    """
    Many tasks, one end.

    What is enqueued inside `with Batch(...):` is a member, in bulk too. Callbacks are tasks of their own with one argument,
    a dict of `id`, `description`, `properties`, `total`, `succeeded` and `failed`: `on_finish` is enqueued when the last
    member has ended, `on_success` if none failed, `on_failure` if any did, each once. Without members it ends at once.

    `key` holds a uniqueness key from here until the batch is finished; where another holds it, `on_conflict` decides:
    `reject` raises JobNotUnique, `discard` and `log` drop the batch and whatever is enqueued in its block.

    Raises InvalidPayload, InvalidTask, InvalidKey, TypeError or ValueError for what cannot be used, before any SQL. A
    block inside a block is a BatchError.
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
        if key is None and on_conflict != "reject":
            raise ValueError(
                f"on_conflict={on_conflict!r} says what becomes of a second batch of a key: it needs a key."
            )
        given = zip(EVENTS, (on_finish, on_success, on_failure), strict=True)
        encode_value(description, "description", "The description takes")
        text = _encoded(properties)
        self.id: int | None = None
        self.description = description
        self.properties: dict[str, Any] = json.loads(text)
        self.refused: JobNotUnique | None = None
        self._new: NewBatch | None = NewBatch(
            description=description,
            properties=text,
            callbacks={event: _callback(event, task) for event, task in given if task is not None},
            key=key,
        )
        self._key = None if key is None else stored(key)
        self._on_conflict = on_conflict
        self._committed = False
        self._opened_in: Any = None  # the outermost block of the transaction in which it was opened
        self._in_doubt = False  # whether the caller of the block was told how it ended
        self._block: Block | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Batch {self.id or 'new'} {self.description!r}>"

    # --- finding one ----------------------------------------------------------------------------------

    @classmethod
    def get(cls, id: int) -> Batch:
        """Return the batch of this id, to be asked how far it is or opened again; raises BatchDoesNotExist."""
        number = parsed_id(id)
        row = None if number is None else sql.FIND.row(id=number)
        if row is None:
            raise BatchDoesNotExist(f"There is no batch {id!r}.")
        batch = cls()
        batch.id, batch.description, batch.properties = row.id, row.description, json.loads(row.properties)
        batch._key = stored(row.key) if row.key else None
        batch._new = None
        return batch

    @classmethod
    async def aget(cls, id: int) -> Batch:
        """See get()."""
        return await sync_to_async(cls.get, thread_sensitive=True)(id)

    # --- the block ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Return whether its block has begun and not ended."""
        return self._block is not None

    def __enter__(self) -> Batch:
        block = self._begin(keeps=False)
        try:
            block.atomic = transaction.atomic(using=database())
            block.atomic.__enter__()
        except BaseException:
            self._block = None
            raise
        try:
            self._open(block)
            current.set(block)
        except BaseException as error:
            self._leave(block, error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._block
        assert block is not None
        block.check_connection()
        self._leave(block, error)

    def _begin(self, *, keeps: bool) -> Block:
        block = Block(self, key=self._key, keeps=keeps)
        with self._lock:
            if self._block is not None:
                raise BatchError("This batch is open already.")
            if (outer := current.get()) is not None and not outer.ended:
                raise BatchError("A batch is open already: its block has to end before another one begins.")
            self._block = block
        self.refused = None
        return block

    def _open(self, block: Block) -> None:
        if self.id is not None and self._opened_again(self.id, block):
            block.id = self.id
            return
        assert self._new is not None
        self.id = None
        opened = batch_ends.open_batch(self._new)
        if isinstance(opened, int):
            self.id = block.id = opened
            self._committed, self._in_doubt, self._opened_in = False, False, block.outermost
            transaction.on_commit(self._note_committed, using=database(), robust=True)
            return
        self.refused = block.refused = refusals.not_unique("The batch is not opened", opened)
        if self._on_conflict == "reject":
            raise self.refused
        refusals.announce(f"The batch {self.description[:100]!r}", opened, self._on_conflict)

    def _opened_again(self, id: int, block: Block) -> bool:
        """
        Return False for one that was never there, since the transaction around its block was rolled back.

        One whose caller was not told that it is stored, the reply to its COMMIT was lost, say, or the end of an asynchronous
        block was cancelled, is tried once more by whoever calls this: its members would be there twice.
        """
        if self._new is not None and (self._in_doubt or not (self._committed or self._opened_in is block.outermost)):
            if sql.FIND.row(id=id) is None:
                return False
            raise BatchError(
                f"The batch {id} of the first try was stored, though its block did not end well. Batch.get({id}) tells how "
                "far it is, and opens it again."
            )
        if batch_ends.open_again(id):
            return True
        if sql.FIND.row(id=id) is not None:
            raise BatchFinished(f"The batch {id} has ended: nothing can be added to it.")
        if self._new is None or self._committed:
            raise BatchDoesNotExist(f"There is no batch {id} any more.")
        return False

    def _note_committed(self) -> None:
        self._committed = True

    def _leave(self, block: Block, error: BaseException | None) -> None:
        block.end()
        self._block = None
        remains = error is None and not block.is_broken
        if block.id is not None and not remains and self._new is not None and not self._committed:
            self.id = None  # Nothing of it remains.
        late: BaseException | None = None  # what did not come out of the block, and rolls it back all the same
        try:
            if error is None and block.has_failed:
                raise BatchError(
                    "Nothing of the batch is stored: an error of the database was caught in its block, or its connection "
                    "was closed. Put `with atomic():` around what may fail."
                )
            if block.id is not None and remains:
                lifecycle.let_in_after_commit((), (), [block.id])  # One without members has ended.
        except BaseException as raised:
            late = raised
        end = late or error
        block.atomic.__exit__(type(end) if end else None, end, end.__traceback__ if end else None)
        if late is not None:
            raise late

    async def __aenter__(self) -> Batch:
        current.set(self._begin(keeps=True))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._block
        assert block is not None
        kept = block.end()
        self._block = None
        if error is None:
            try:
                await sync_to_async(self._store, thread_sensitive=True)(kept)
            except BaseException:
                self._in_doubt = True
                raise

    def _store(self, kept: Sequence[Kept]) -> None:
        """Store what an asynchronous block has kept, all of it or nothing."""
        with self:
            if self.refused is not None:
                for one in kept:
                    results.drop(one.result, self.refused)
                return
            for _, group in groupby(kept, key=lambda one: one.work.due):
                mine = list(group)
                entered = lifecycle.enter([replace(one.work, batch=self.id) for one in mine])
                for one, outcome in zip(mine, entered, strict=True):
                    if isinstance(outcome, outcomes.Enqueued):
                        task_enqueued.send(one.sender, task_result=one.result)
                    else:
                        _refuse(one, outcome)

    # --- members --------------------------------------------------------------------------------------

    def add(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """
        Enqueue one more member, from inside the block; raises BatchError after its end, and what enqueue() raises.

        A task of another backend is enqueued there, and is no member.
        """
        block, before = self._joined_by(task), current.get()
        current.set(block)
        try:
            return task.enqueue(*args, **kwargs)
        finally:
            current.set(before)

    async def aadd(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]:
        """See add()."""
        block, before = self._joined_by(task), current.get()
        current.set(block)
        try:
            return await task.aenqueue(*args, **kwargs)
        finally:
            current.set(before)

    def _joined_by(self, task: Any) -> Block:
        if not isinstance(task, Task):
            raise TypeError(f"A member of a batch is a task, as in batch.add(import_order, 42), not {task!r:.100}.")
        block = self._block
        if block is None:
            again = ""
            if self.id is not None:
                again = f" Unless it is finished it can be opened again, also as Batch.get({self.id})."
            raise BatchError(
                f"The batch is not open: add its members inside its block, `with batch:` or `async with batch:`.{again}"
            )
        return block

    # --- how far it is --------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """Return how far it is, in one cheap read; raises BatchDoesNotExist for one that is not stored."""
        found = counts.standing([self.id]) if self.id is not None else []
        if not found:
            why = f" {self.refused}" if self.refused else ""
            raise BatchDoesNotExist(f"There is no batch {self.id}." if self.id else f"The batch is not stored.{why}")
        one = found[0]
        return Progress(total=one.total, succeeded=one.succeeded, failed=one.failed, finished_at=one.finished_at)

    async def aprogress(self) -> Progress:
        """See progress()."""
        return await sync_to_async(self.progress, thread_sensitive=True)()


def current_batch() -> Batch | None:
    """Return the batch whose block this is, else the one that the running task is a member of, else None."""
    block = current.get()
    if block is not None and not block.ended:
        return block.batch
    id = running.get()
    return None if id is None else Batch.get(id)


async def acurrent_batch() -> Batch | None:
    """See current_batch()."""
    return await sync_to_async(current_batch, thread_sensitive=True)()


def _refuse(one: Kept, outcome: outcomes.Entered) -> None:
    error = refusals.error_of(one.work.task, outcome)
    policy = refusals.policy_of(one.work.constraints, outcome)
    if policy in {"reject", "raise"}:
        raise error
    refusals.announce(one.work.task, outcome, policy)
    results.drop(one.result, error)


def _encoded(properties: Mapping[str, Any] | None) -> str:
    if properties is not None and not isinstance(properties, Mapping):
        raise TypeError(f"The properties of a batch are a dict, not a {type(properties).__name__}.")
    return encode_value(dict(properties or {}), "properties", "The properties take")


def _callback(event: str, task: Any) -> Callback:
    if not isinstance(task, PgbusTask):
        kind = "a task of another backend" if isinstance(task, Task) else f"a {type(task).__name__}"
        raise InvalidTask(f"{event} takes a task of PgbusBackend, as in {event}=report, not {kind}.")
    backend = task.get_backend()
    if not issubclass(backend.task_class, PgbusTask):
        raise InvalidTask(
            f"{event}: {task.module_path} belongs to another backend, which enqueues it elsewhere. Where tests use another "
            "backend, give the callbacks' tasks one of PgbusBackend by their `backend`."
        )
    _check_signature(event, task)
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


def _check_signature(event: str, task: PgbusTask) -> None:
    """Raise InvalidTask for a callback that cannot be called with its one argument: at the end it would be too late."""
    given: list[Any] = [None, {}] if task.takes_context else [{}]
    try:
        inspect.signature(task.func).bind(*given)
    except TypeError as error:
        raise InvalidTask(
            f"{event}: {task.module_path} cannot be called with one dict ({error}). Write it as "
            f"def {task.func.__name__}({'context, ' if task.takes_context else ''}batch)."
        ) from None
