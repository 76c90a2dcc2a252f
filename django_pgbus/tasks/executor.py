"""
Running one delivery, as a list of steps.

    attempts left? -> importable? -> decodable? -> started -> call -> outcome

Every step that fails is a failed attempt with a readable reason, never a stop for other messages. What a run came
to is a value (`Success`, `PutOff`, `GaveUp`, `Done`); a completer writes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import time
import traceback
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, cast

from asgiref.sync import sync_to_async
from django.core.signals import setting_changed
from django.db import OperationalError, transaction
from django.dispatch import Signal
from django.utils import timezone

from django_pgbus import signals
from django_pgbus.conf import database, get_settings
from django_pgbus.exceptions import Snooze, TaskSuperseded, TaskTimeout
from django_pgbus.postgres.retrying import is_conflict, is_connection_loss
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import backoff, batch, constraints, lifecycle, payload, running
from django_pgbus.tasks.compat import (
    AnyTask,
    AnyTaskResult,
    TaskContext,
    TaskError,
    TaskResultStatus,
    task_finished,
    task_started,
)
from django_pgbus.tasks.lookup import find_task
from django_pgbus.tasks.masking import loggable, scrubbed
from django_pgbus.tasks.outcomes import GaveUp, PutOff, Success
from django_pgbus.tasks.policy import policy_of
from django_pgbus.tasks.watch import Watch

TRACEBACK_BYTES: Final = 16 * 1024
CONFLICT_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A transactional run, whose settlement was part of its own transaction."""

    delivery: Delivery
    ran_for: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """A run whose delivery is no longer the newest: there is nothing to write."""

    delivery: Delivery
    ran_for: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBack:
    """A run that was cancelled because its process stops: no attempt."""

    delivery: Delivery
    ran_for: float


Outcome = HandBack | Success | PutOff | GaveUp | Done | Superseded


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """What the code says of a task."""

    task: AnyTask
    is_async: bool
    transactional: bool
    max_attempts: int
    timeout: float | None
    sender: type


_loaded: dict[str, Runnable] = {}


def known(path: str) -> Runnable | None:
    """Return the task of this path if it has been loaded here before."""
    return _loaded.get(path)


def load(path: str) -> Runnable:
    """Return the task of this path; raises what importing it raises, anew each time."""
    if (runnable := _loaded.get(path)) is not None:
        return runnable
    task = find_task(path)
    policy = policy_of(task)
    runnable = _loaded[path] = Runnable(
        task=task,
        is_async=inspect.iscoroutinefunction(task.func),
        transactional=policy.transactional,
        max_attempts=policy.max_attempts,
        timeout=policy.timeout,
        sender=type(task.get_backend()),
    )
    return runnable


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in {"TASKS", "PGBUS"}:
        _loaded.clear()


setting_changed.connect(_forget, dispatch_uid="pgbus.executor")


class Executor:
    """Runs deliveries for one worker; holds nothing of a run."""

    def __init__(self, *, worker: str, watch: Watch, armed: Callable[[], None] = lambda: None) -> None:
        self._worker = worker
        self._watch = watch
        self._armed = armed  # called when a run with a timeout begins

    # --- the steps ------------------------------------------------------------------------------------

    def prepare(self, delivery: Delivery) -> Run | Outcome:
        """Return a run ready to be called, or the outcome of a delivery that cannot run."""
        limit = get_settings().MAX_ATTEMPTS
        try:
            runnable = load(delivery.task)
        except BaseException as error:
            if (spent := self._spent(delivery, limit)) is not None:
                return spent
            return self._failed(Run(self, delivery, None, (), {}, None, time.monotonic()), error, limit)
        limit = runnable.max_attempts
        if (spent := self._spent(delivery, limit)) is not None:
            return spent
        run = Run(self, delivery, runnable, (), {}, None, time.monotonic())
        try:
            if delivery.not_picked_up is not None:
                raise delivery.not_picked_up
            run.args, run.kwargs = payload.decode(delivery.payload)
            constraints.of(delivery.constraints)  # What cannot be read cannot have been kept: a failed attempt.
            run.result = self._running(run)
        except BaseException as error:
            return self._failed(run, error, limit)
        delivery.started_at = run.began
        delivery.started = True
        return run

    def run(self, run: Run) -> Outcome:
        """Call a sync task and return what it came to."""
        if (instead := _not_started(run.delivery)) is not None:
            return instead
        if run.delivery.batch is not None:
            batch.running.set(run.delivery.batch)
        task_started.send_robust(run.backend, task_result=run.result)
        run.began = time.monotonic()
        try:
            if run.runnable.transactional:
                return self._run_transactional(run)
            value = self._call(run)
            encoded = payload.encode_result(value)
        except BaseException as error:
            return self._after(run, error)
        return self._succeeded(run, value, encoded)

    async def arun(self, run: Run) -> Outcome:
        """Await an async task and return what it came to; being cancelled once it has ended changes nothing."""
        if (instead := _not_started(run.delivery)) is not None:
            return instead
        if run.delivery.batch is not None:
            batch.running.set(run.delivery.batch)
        try:
            await _asend(task_started, run)
            value = await self._acall(run)
            encoded = payload.encode_result(value)
        except BaseException as error:
            # Cancelled, whatever it raises then: a clean-up may fail, a library raise an error of its own instead.
            if run.delivery.superseded:
                return Superseded(delivery=run.delivery, ran_for=time.monotonic() - run.began)
            if run.delivery.hand_back or run.delivery.discard:
                return HandBack(delivery=run.delivery, ran_for=time.monotonic() - run.began)
            return await _in_peace(sync_to_async(self._after)(run, error))
        ended = time.monotonic()
        _mark(run, TaskResultStatus.SUCCESSFUL, value)
        with contextlib.suppress(asyncio.CancelledError):
            await _asend(task_finished, run)
        return Success(delivery=run.delivery, result=encoded, ran_for=ended - run.began, ended=ended)

    # --- calling --------------------------------------------------------------------------------------

    def _call(self, run: Run) -> Any:
        func = run.runnable.task.func
        if run.runnable.timeout is None and run.delivery.constraints is None:
            return func(*run.positional, **run.kwargs)
        self._watch.arm(run.delivery, run.runnable.timeout)
        try:
            self._armed()
            return func(*run.positional, **run.kwargs)
        finally:
            try:
                self._watch.disarm()
            except (TaskTimeout, TaskSuperseded):  # At the last moment, perhaps before anything was disarmed.
                self._watch.disarm()  # It is raised once at most.
                raise

    async def _acall(self, run: Run) -> Any:
        run.began = time.monotonic()
        timeout = run.runnable.timeout
        if timeout is None:
            return await run.runnable.task.func(*run.positional, **run.kwargs)
        self._watch.await_end(run.delivery, timeout)
        self._armed()
        try:
            async with asyncio.timeout(timeout) as scope:
                return await run.runnable.task.func(*run.positional, **run.kwargs)
        except TimeoutError as error:
            if scope.expired():
                raise _timed_out(timeout) from error
            raise
        finally:
            self._watch.ended(run.delivery)

    def _run_transactional(self, run: Run) -> Outcome:
        """
        Call the function and settle its message in one transaction: its effects happen exactly once, or not at all.

        A conflict rolls back and runs again without costing an attempt. After a lost connection the outcome is
        looked up and the function never run blindly again.
        """
        for tries in range(1, CONFLICT_TRIES + 1):
            try:
                with transaction.atomic(using=database()):
                    value = self._call(run)
                    encoded = payload.encode_result(value)
                    ended = time.monotonic()
                    success = Success(delivery=run.delivery, result=encoded, ran_for=ended - run.began, ended=ended)
                    if not lifecycle.succeed([success], ended):
                        raise TaskSuperseded("Another delivery took over; this transaction is rolled back.")
                    run.delivery.ended = True  # A beat that finds it gone has not lost it.
            except OperationalError as error:
                if is_conflict(error) and tries < CONFLICT_TRIES:
                    continue
                if is_connection_loss(error) and self._settled_before(run):
                    break
                raise
            break
        self._finish(run, TaskResultStatus.SUCCESSFUL, value=value)
        return Done(delivery=run.delivery, ran_for=time.monotonic() - run.began)

    @staticmethod
    def _settled_before(run: Run) -> bool:
        from django.db import connections

        for _ in range(10):
            connections[database()].close()
            try:
                return bool(lifecycle.settled_before([run.delivery]))
            except OperationalError:
                time.sleep(1.0)  # Unknown until the database is back; the lease bounds how long this may matter.
        return False

    # --- outcomes -------------------------------------------------------------------------------------

    def _succeeded(self, run: Run, value: Any, encoded: str) -> Outcome:
        ended = time.monotonic()
        self._finish(run, TaskResultStatus.SUCCESSFUL, value=value)
        return Success(delivery=run.delivery, result=encoded, ran_for=ended - run.began, ended=ended)

    def _after(self, run: Run, error: BaseException) -> Outcome:
        """Return the outcome of a run that raised."""
        if isinstance(error, TaskSuperseded):
            return Superseded(delivery=run.delivery, ran_for=time.monotonic() - run.began)
        if isinstance(error, Snooze):
            ended = time.monotonic()
            signals.task_snoozed.send_robust(sender=type(self), delivery=run.delivery, delay=error.seconds)
            return PutOff(
                delivery=run.delivery,
                delay=error.seconds,
                reason="snoozed",
                error=None,
                ran_for=ended - run.began,
                ended=ended,
            )
        if isinstance(error, TaskTimeout):
            signals.task_timed_out.send_robust(sender=type(self), delivery=run.delivery, hard=False)
        return self._failed(run, error, run.runnable.max_attempts)

    def _failed(self, run: Run, error: BaseException, limit: int) -> Outcome:
        """Return what a failed attempt leads to: another one, or a dead letter."""
        ended = time.monotonic()
        delivery = run.delivery
        entry = self._entry(run, error)
        if run.result is not None:
            run.result.errors.append(TaskError(exception_class_path=entry["exception"], traceback=entry["traceback"]))
        delay: float | None = None
        reason = "exhausted"
        if delivery.attempts < limit:
            delay = backoff.delay(
                getattr(run.task, "backoff", None), error, run.result, delivery.attempts, path=delivery.task
            )
            reason = "retry" if delay is not None else "gave_up"
        if delay is None:
            try:
                raise loggable(error, run.task, run.args, run.kwargs) if run.task else error
            except BaseException:  # Django's log line for a failed task reads sys.exc_info().
                self._finish(run, TaskResultStatus.FAILED)
            signals.task_dead_lettered.send_robust(sender=type(self), delivery=delivery, exception=error, reason=reason)
            return GaveUp(
                delivery=delivery, reason=reason, error=json.dumps(entry), ran_for=ended - run.began, ended=ended
            )
        signals.attempt_failed.send_robust(sender=type(self), delivery=delivery, exception=error, delay=delay)
        return PutOff(
            delivery=delivery,
            delay=delay,
            reason=reason,
            error=json.dumps(entry),
            ran_for=ended - run.began,
            ended=ended,
        )

    def _spent(self, delivery: Delivery, limit: int) -> GaveUp | None:
        """Return the outcome of a message that has no attempt left: it is not run once more."""
        if delivery.attempts <= limit:
            return None
        signals.task_dead_lettered.send_robust(sender=type(self), delivery=delivery, exception=None, reason="exhausted")
        return GaveUp(
            delivery=delivery, reason="exhausted", error=None, ran_for=0.0, ended=time.monotonic(), not_run=True
        )

    def _finish(self, run: Run, status: Any, value: Any = None) -> None:
        if run.result is not None:
            _mark(run, status, value)
            task_finished.send_robust(run.backend, task_result=run.result)

    # --- what is said of a run ------------------------------------------------------------------------

    def _running(self, run: Run) -> AnyTaskResult:
        delivery = run.delivery
        return running.running(
            task=run.runnable.task,
            id=delivery.id,
            backend=delivery.backend,
            enqueued_at=delivery.enqueued_at,
            now=timezone.now(),
            args=run.args,
            kwargs=run.kwargs,
            errors=delivery.errors,
            attempts=delivery.attempts,
            worker=self._worker,
        )

    def _entry(self, run: Run, error: BaseException) -> dict[str, Any]:
        kind = type(error)
        text = _readable(error)
        return {
            "exception": f"{kind.__module__}.{kind.__qualname__}",
            "traceback": scrubbed(text, run.task, run.args, run.kwargs) if run.task else text,
            "worker": self._worker,
            "attempt": run.delivery.attempts,
        }


@dataclass(slots=True)
class Run:
    """One delivery on its way through the steps."""

    executor: Executor
    delivery: Delivery
    loaded: Runnable | None
    args: Any
    kwargs: Any
    result: AnyTaskResult | None
    began: float

    @property
    def runnable(self) -> Runnable:
        """Return what the code says of the task; only once it is loaded."""
        assert self.loaded is not None
        return self.loaded

    @property
    def task(self) -> AnyTask | None:
        """Return the task, or None if it could not be loaded."""
        return self.loaded.task if self.loaded else None

    @property
    def backend(self) -> type:
        """Return the sender of Django's task signals."""
        return self.loaded.sender if self.loaded else object

    @property
    def positional(self) -> tuple[Any, ...]:
        """Return the positional arguments, with the context if the task takes one."""
        if self.runnable.task.takes_context:
            return (TaskContext(task_result=cast(AnyTaskResult, self.result)), *self.args)
        return tuple(self.args)

    def sync(self) -> Outcome:
        """Run it in this thread, with nothing left over from another run in its context."""
        try:
            return Context().run(self.executor.run, self)
        except (
            BaseException
        ) as error:  # A receiver that exits, an interrupt at the last moment: never the thread's end.
            return self.executor._after(self, error)


def _not_started(delivery: Delivery) -> Superseded | HandBack | None:
    """Return the outcome of a delivery that must not start: it waited in the buffer while something happened to it."""
    if delivery.may_be_taken_over(time.monotonic()):  # This process may have stood still for longer than a lease.
        return Superseded(delivery=delivery, ran_for=0.0)
    if delivery.discard:  # Given back, it is settled.
        return HandBack(delivery=delivery, ran_for=0.0)
    return None


def _mark(run: Run, status: Any, value: Any) -> None:
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(run.result, "_return_value", value)
    object.__setattr__(run.result, "status", status)
    object.__setattr__(run.result, "finished_at", timezone.now())


async def _in_peace(call: Awaitable[Outcome]) -> Outcome:
    """Await to the end, however often this is cancelled."""
    pending = asyncio.ensure_future(call)
    while True:
        try:
            return await asyncio.shield(pending)
        except asyncio.CancelledError:
            if pending.cancelled():
                raise


async def _asend(signal: Signal, run: Run) -> None:
    """Send from the event loop; receivers that may use the database get a thread, Django's log line needs none."""
    receivers = signal._live_receivers(run.backend)
    if (
        all(receiver.__module__.partition(".")[0] in {"django", "django_tasks"} for receiver in receivers[0])
        and not (receivers[1])
    ):
        signal.send_robust(run.backend, task_result=run.result)
    else:
        await signal.asend_robust(run.backend, task_result=run.result)


def _timed_out(timeout: float | None) -> TaskTimeout:
    return TaskTimeout(f"The task ran longer than its timeout of {timeout:g} s.")


def _readable(error: BaseException) -> str:
    """Return the traceback without our own frames, storable, and its end if it is long."""
    try:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_globals.get("__name__") == __name__:
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames))
    except BaseException as worse:  # An exception may fail while it is described.
        text = f"{type(error).__name__} (its description failed with {type(worse).__name__})"
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(text) > TRACEBACK_BYTES:
        text = "... (cut)\n" + text[-TRACEBACK_BYTES:]
    return text
