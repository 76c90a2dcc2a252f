"""Running what was enqueued: in the test's thread, on its connections and in its transaction."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from psycopg.pq import TransactionStatus

from django_pgbus.batches import counts
from django_pgbus.concurrency import sql as limits_sql
from django_pgbus.conf import ANY_QUEUE, EVENT_QUEUE, database, get_settings
from django_pgbus.queues import sql as queues_sql
from django_pgbus.queues.line import Line
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks import lifecycle, outcomes, results
from django_pgbus.tasks.compat import DEFAULT_TASK_BACKEND_ALIAS, AnyTaskResult
from django_pgbus.tasks.executor import Executor, Outcome, Run
from django_pgbus.tasks.watch import Watch
from django_pgbus.testing import sql
from django_pgbus.worker.plan import Capsule

T = TypeVar("T")
MOST_BATCHES: Final = 1000


def run_enqueued(
    queues: str | Sequence[str] | None = None,
    *,
    include_delayed: bool = False,
    limit: int = 1000,
    raise_failures: bool = True,
) -> list[AnyTaskResult]:
    """
    Run what was enqueued, and what that enqueues in turn; return one result per task, in the order they ran.

    `queues` names queues or patterns of `runworker` (None: all), in the order a worker would look. Paused queues are
    left alone. `include_delayed` runs what is not due yet too, the next due first, retries among it. A failed attempt is
    stored as a worker would store it; then its exception is raised, the rest stays in the line. With
    `raise_failures=False` everything runs and the results tell. More than `limit` runs are an AssertionError.
    """
    ran: dict[int, None] = {}
    for delivery, _ in run_all(
        _wanted(queues),
        f"run_enqueued() has run {limit} tasks",
        include_delayed=include_delayed,
        limit=limit,
        raise_failures=raise_failures,
    ):
        ran[delivery.id] = None
    return [
        results.stored(found, DEFAULT_TASK_BACKEND_ALIAS) for id in ran if (found := lifecycle.find(id)) is not None
    ]


async def arun_enqueued(
    queues: str | Sequence[str] | None = None,
    *,
    include_delayed: bool = False,
    limit: int = 1000,
    raise_failures: bool = True,
) -> list[AnyTaskResult]:
    """See run_enqueued()."""
    return await sync_to_async(run_enqueued, thread_sensitive=True)(
        queues, include_delayed=include_delayed, limit=limit, raise_failures=raise_failures
    )


# --- claiming -----------------------------------------------------------------------------------------


def run_all(
    wanted: Capsule, caller: str, *, include_delayed: bool, limit: int, raise_failures: bool
) -> Iterator[tuple[Delivery, BaseException | None]]:
    """Run what waits in these queues until nothing is left, and yield each delivery with what made it fail."""
    executor = _Inline()
    for count in itertools.count():
        delivery = _claim_next(wanted, executor.worker)
        if delivery is None and _move(wanted, include_delayed=include_delayed):
            delivery = _claim_next(wanted, executor.worker)
        if delivery is None:
            break
        if count >= limit:
            lifecycle.hand_back([(delivery.id, delivery.delivery)])
            raise AssertionError(
                f"{caller} and {delivery.task} waits still. Does it bring itself about? Else pass a higher limit."
            )
        if delivery.constraints is not None and not lifecycle.pick_up([delivery]).taken:
            continue  # parked once more, or dropped since another holds its key, or skipped
        error = executor.run_and_settle(delivery)
        if error is not None and (raise_failures or isinstance(error, KeyboardInterrupt)):
            raise error
        yield delivery, error


def _wanted(queues: str | Sequence[str] | None) -> Capsule:
    names = (queues,) if isinstance(queues, str) else (ANY_QUEUE,) if queues is None else tuple(queues)
    if events := [name for name in names if name.startswith(EVENT_QUEUE)]:
        raise ValueError(f"{events[0]!r} holds events: deliver_published() runs their handlers.")
    return Capsule(queues=names, threads=1)


def _claim_next(wanted: Capsule, worker: uuid.UUID) -> Delivery | None:
    """
    Claim what a worker with one thread would run next, or return None.

    Who there is room for is let in before, and the line is looked at afresh each time, from its beginning: both are
    otherwise done after a commit, and in a TestCase there is none.
    """
    _let_in()
    paused = {row.queue for row in sql.PAUSED.rows()}
    used = [Level(*row) for row in queues_sql.FIND_LEVELS.rows()]
    order = {queue: place for place, queue in enumerate(wanted.choose(level.queue for level in used))}
    levels = sorted(
        (level for level in used if level.queue in order and level.queue not in paused),
        key=lambda level: (level.suspect, order[level.queue], -level.priority),
    )
    if not levels:
        return None
    claimed = lifecycle.claim(Line(), levels, 1, worker, get_settings().VISIBILITY_TIMEOUT)
    return claimed[0] if claimed else None


def _move(wanted: Capsule, *, include_delayed: bool) -> bool:
    """Move what is due into the line, or what would be due next; return whether there was anything to look at."""
    paused = {row.queue for row in sql.PAUSED.rows()}
    waiting = {
        row.queue for find in (queues_sql.FIND_DELAYED_QUEUES, limits_sql.FIND_DUE_QUEUES) for row in find.rows()
    }
    queues = [queue for queue in wanted.choose(sorted(waiting)) if queue not in paused]
    if not queues:
        return False
    if include_delayed and (next_due := sql.NEXT_DUE.row(queues=queues)):
        (sql.MAKE_DELAYED_DUE if next_due.place == "delayed" else sql.MAKE_PARKED_DUE).count(id=next_due.id)
    lifecycle.move_due(queues)
    return True


def _let_in() -> None:
    """Promote whoever is parked and has room, and finish the batches whose members have ended."""
    if batches := counts.unfinished(0, MOST_BATCHES):
        lifecycle.finish_batches(batches)
    if waited_for := sql.WAITED_FOR.rows():
        semaphores, keys = ([row.key for row in waited_for if row.waits_for == kind] for kind in ("semaphore", "key"))
        lifecycle.let_in(semaphores, keys)


# --- running ------------------------------------------------------------------------------------------


class _Inline(Executor):
    """The worker's executor, for a thread that may be in a transaction which has to live on."""

    def __init__(self) -> None:
        self.worker = uuid.uuid4()
        super().__init__(worker=str(self.worker), watch=Watch())
        self._raised: BaseException | None = None

    def run_and_settle(self, delivery: Delivery) -> BaseException | None:
        """Run one delivery and store what it came to; return what made the attempt fail, or None."""
        self._raised = None
        prepared: Any = self.prepare(delivery)
        outcome: Outcome = prepared.sync() if isinstance(prepared, Run) else prepared
        match outcome:
            case outcomes.Success():
                lifecycle.succeed([outcome], time.monotonic())
            case outcomes.PutOff():
                lifecycle.put_off([outcome], time.monotonic())
            case outcomes.GaveUp():
                lifecycle.give_up([outcome], time.monotonic())
        return self._raised

    def _call(self, run: Run) -> Any:
        function = run.runnable.func
        if run.runnable.is_async:
            # What async code does with the ORM comes back to this thread, and so to the connections of the test.
            function = async_to_sync(function)
        positional = run.runnable.positional(run.call)
        return kept_apart(lambda: function(*positional, **run.call.kwargs))

    def _failed(self, run: Run, error: BaseException, limit: int) -> Outcome:
        origin = error.__traceback__
        outcome = super()._failed(run, error, limit)
        self._raised = error.with_traceback(origin)
        return outcome

    @staticmethod
    def _settled_before(run: Run) -> bool:
        # Finding out takes a fresh connection, and the transaction of the test would go with the old one.
        return not connections[database()].in_atomic_block and Executor._settled_before(run)


def kept_apart(call: Callable[[], T]) -> T:
    """
    Return what `call` returns, keeping the damage it does from the transactions this thread is in.

    Each is given a savepoint. What `call` wrote stays, also when it raises, as it would in a worker; only where its SQL
    failed does PostgreSQL leave no choice but to go back.
    """
    inside = [connection for connection in connections.all(initialized_only=True) if connection.in_atomic_block]
    value: Any = None
    error: BaseException | None = None
    with ExitStack() as savepoints:
        for connection in inside:
            block: Any = transaction.atomic(using=connection.alias)
            block._from_testcase = True  # a worker has no transaction open: `atomic(durable=True)` is allowed in it
            savepoints.enter_context(block)
        try:
            value = call()
        except BaseException as raised:
            error = raised
        for connection in inside:
            if _is_broken(connection):
                connection.set_rollback(True)
                error = error or TransactionManagementError(
                    "The task caught an error of the database that ended the transaction of the test, so what it wrote "
                    "is gone. Wrap the statement that may fail in atomic(), or use a TransactionTestCase."
                )
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _is_broken(connection: Any) -> bool:
    if connection.needs_rollback:
        return True
    return (
        connection.vendor == "postgresql"
        and connection.connection is not None
        and connection.connection.info.transaction_status == TransactionStatus.INERROR
    )
