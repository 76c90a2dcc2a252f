"""
Running one delivery, as a list of steps.

    attempts left? -> importable? -> decodable? -> started -> call -> outcome

Every step that fails is a failed attempt with a readable reason, never a stop for other messages. What a run came
to is a value (`Success`, `PutOff`, `GaveUp`, `Done`); a completer writes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import OperationalError, transaction

from django_pgbus import signals
from django_pgbus.conf import database, get_settings
from django_pgbus.exceptions import Snooze, TaskSuperseded, TaskTimeout
from django_pgbus.postgres.retrying import is_conflict, is_connection_loss
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import backoff, batch, constraints, lifecycle, tracing
from django_pgbus.tasks.failures import path_of, readable
from django_pgbus.tasks.outcomes import GaveUp, PutOff, Success
from django_pgbus.tasks.runnable import Call, Runnable, load
from django_pgbus.tasks.watch import Watch

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
            runnable = load(delivery)
        except BaseException as error:
            if (spent := self._spent(delivery, limit)) is not None:
                return spent
            return self._failed_before(Run(self, delivery, Call(delivery, None, time.monotonic())), error, limit)
        limit = runnable.policy.max_attempts
        if (spent := self._spent(delivery, limit)) is not None:
            return spent
        call = Call(delivery, runnable, time.monotonic())
        run = Run(self, delivery, call)
        try:
            if delivery.not_picked_up is not None:
                raise delivery.not_picked_up
            runnable.open(call, self._worker)
            constraints.of(delivery.constraints)  # What cannot be read cannot have been kept: a failed attempt.
        except BaseException as error:
            return self._failed_before(run, error, limit)
        delivery.started_at = call.began
        delivery.started = True
        return run

    def run(self, run: Run) -> Outcome:
        """Call a sync function and return what it came to."""
        if (instead := _not_started(run.delivery)) is not None:
            return instead
        if not tracing.hooks:
            return self._run(run)
        with tracing.running_delivery(run.delivery) as about:
            return _told(about, self._run(run))

    def _run(self, run: Run) -> Outcome:
        runnable, call = run.runnable, run.call
        if run.delivery.batch is not None:
            batch.running.set(run.delivery.batch)
        runnable.enter(call)
        _say(runnable.begins, call)
        call.began = time.monotonic()
        try:
            if runnable.policy.transactional:
                return self._run_transactional(run)
            value = self._call(run)
            encoded = runnable.encoded(value)
        except BaseException as error:
            return self._after(run, error)
        return self._succeeded(run, value, encoded)

    async def arun(self, run: Run) -> Outcome:
        """Await an async function and return what it came to; being cancelled once it has ended changes nothing."""
        if (instead := _not_started(run.delivery)) is not None:
            return instead
        if not tracing.hooks:
            return await self._arun(run)
        with tracing.running_delivery(run.delivery) as about:
            return _told(about, await self._arun(run))

    async def _arun(self, run: Run) -> Outcome:
        runnable, call = run.runnable, run.call
        if run.delivery.batch is not None:
            batch.running.set(run.delivery.batch)
        runnable.enter(call)
        try:
            await _asay(runnable.abegins(call))
            value = await self._acall(run)
            encoded = runnable.encoded(value)
        except BaseException as error:
            # Cancelled, whatever it raises then: a clean-up may fail, a library raise an error of its own instead.
            if (instead := _cancelled(run)) is not None:
                return instead
            return await _in_peace(sync_to_async(self._after)(run, error))
        ended = time.monotonic()
        with contextlib.suppress(asyncio.CancelledError):
            await _asay(runnable.asucceeds(call, value))
        return Success(delivery=run.delivery, result=encoded, ran_for=ended - run.began, ended=ended)

    # --- calling --------------------------------------------------------------------------------------

    def _call(self, run: Run) -> Any:
        runnable, call = run.runnable, run.call
        positional, timeout = runnable.positional(call), runnable.policy.timeout
        if timeout is None and run.delivery.constraints is None:
            return runnable.func(*positional, **call.kwargs)
        self._watch.arm(run.delivery, timeout)
        try:
            self._armed()
            return runnable.func(*positional, **call.kwargs)
        finally:
            try:
                self._watch.disarm()
            except (TaskTimeout, TaskSuperseded):  # At the last moment, perhaps before anything was disarmed.
                self._watch.disarm()  # It is raised once at most.
                raise

    async def _acall(self, run: Run) -> Any:
        runnable, call = run.runnable, run.call
        call.began = time.monotonic()
        positional, timeout = runnable.positional(call), runnable.policy.timeout
        if timeout is None:
            return await runnable.func(*positional, **call.kwargs)
        self._watch.await_end(run.delivery, timeout)
        self._armed()
        try:
            async with asyncio.timeout(timeout) as scope:
                return await runnable.func(*positional, **call.kwargs)
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
                    encoded = run.runnable.encoded(value)
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
        _say(run.runnable.succeeds, run.call, value)
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
        _say(run.runnable.succeeds, run.call, value)
        return Success(delivery=run.delivery, result=encoded, ran_for=ended - run.began, ended=ended)

    def _after(self, run: Run, error: BaseException) -> Outcome:
        """Return the outcome of a run that raised."""
        if isinstance(error, TaskSuperseded):
            return Superseded(delivery=run.delivery, ran_for=time.monotonic() - run.began)
        if isinstance(error, Snooze):
            ended = time.monotonic()
            _say(signals.task_snoozed.send_robust, sender=type(self), delivery=run.delivery, delay=error.seconds)
            return PutOff(
                delivery=run.delivery,
                delay=error.seconds,
                reason="snoozed",
                error=None,
                ran_for=ended - run.began,
                ended=ended,
            )
        if isinstance(error, TaskTimeout):
            _say(signals.task_timed_out.send_robust, sender=type(self), delivery=run.delivery, hard=False)
        return self._failed(run, error, run.runnable.policy.max_attempts)

    def _failed_before(self, run: Run, error: BaseException, limit: int) -> Outcome:
        """Return what an attempt leads to that failed before its function could be called."""
        if not tracing.hooks:
            return self._failed(run, error, limit)
        with tracing.running_delivery(run.delivery) as about:
            return _told(about, self._failed(run, error, limit))

    def _failed(self, run: Run, error: BaseException, limit: int) -> Outcome:
        """Return what a failed attempt leads to, whatever else fails meanwhile: another one, or a dead letter."""
        try:
            return self._judged(run, error, limit)
        except BaseException as worse:  # What an exception or an argument is to say of itself is the job's own code.
            announce("handling of a failed attempt", worse)
            return self._plainly_failed(run, error)

    def _judged(self, run: Run, error: BaseException, limit: int) -> Outcome:
        """Return what a failed attempt leads to, as the job's own code wants it, and say so."""
        ended = time.monotonic()
        delivery = run.delivery
        entry = self._entry(run, error)
        runnable, call = run.call.runnable, run.call
        if runnable is not None:
            runnable.remember(call, entry["exception"], entry["traceback"])
        delay: float | None = None
        reason = "exhausted"
        if delivery.attempts < limit:
            delay = self._delay(run, error)
            reason = "retry" if delay is not None else "gave_up"
        if delivery.topic is not None:
            _say(
                signals.event_failed.send_robust,
                sender=type(self),
                delivery=delivery,
                exception=error,
                delay=delay,
                traceback=entry["traceback"],
            )
        elif delay is not None:
            _say(signals.attempt_failed.send_robust, sender=type(self), delivery=delivery, exception=error, delay=delay)
        if delay is None:
            if runnable is not None:
                _say(runnable.gives_up, call, error)
            self._say_dead(delivery, error, reason)
        return _attempt_over(run, entry, delay, reason, ended)

    def _plainly_failed(self, run: Run, error: BaseException) -> Outcome:
        """Return what a failed attempt leads to by the defaults alone: nothing of the job's own code is called again."""
        delivery, runnable = run.delivery, run.call.runnable
        limit = runnable.policy.max_attempts if runnable is not None else get_settings().MAX_ATTEMPTS
        # Not its traceback: nobody can tell any more what in it is sensitive.
        entry = self._entry_with(run, error, f"{type(error).__name__} (what it led to could not be told)")
        delay = backoff.default_delay(delivery.attempts) if delivery.attempts < limit else None
        return _attempt_over(run, entry, delay, "exhausted" if delay is None else "retry", time.monotonic())

    def without_outcome(self, run: Run, error: BaseException) -> Outcome:
        """Return what a run comes to that was ended by `error` before anybody could say what it had come to."""
        announce("end of a run", error)
        if isinstance(error, TaskSuperseded):
            return Superseded(delivery=run.delivery, ran_for=time.monotonic() - run.began)
        return _cancelled(run) or self._plainly_failed(run, error)

    @staticmethod
    def _delay(run: Run, error: BaseException) -> float | None:
        runnable = run.call.runnable
        own = runnable.policy.backoff if runnable is not None else None
        failures = run.delivery.attempts
        try:
            subject = runnable.subject_of(run.call) if own is not None and runnable is not None else None
            return backoff.delay(own, error, subject, failures, path=run.delivery.task)
        except BaseException as left:  # Who heard that it is broken has exited.
            announce(signals.RECEIVER, left)
            return backoff.default_delay(failures)

    def _spent(self, delivery: Delivery, limit: int) -> GaveUp | None:
        """Return the outcome of a message that has no attempt left: it is not run once more."""
        if delivery.attempts <= limit:
            return None
        self._say_dead(delivery, None, "exhausted")
        return GaveUp(
            delivery=delivery, reason="exhausted", error=None, ran_for=0.0, ended=time.monotonic(), not_run=True
        )

    # --- what is said of a run ------------------------------------------------------------------------

    def _say_dead(self, delivery: Delivery, error: BaseException | None, reason: str) -> None:
        _say(
            signals.task_dead_lettered.send_robust,
            sender=type(self),
            delivery=delivery,
            exception=error,
            reason=reason,
        )

    def _entry(self, run: Run, error: BaseException) -> dict[str, Any]:
        text = readable(error, __name__)
        return self._entry_with(run, error, run.call.runnable.scrubbed(text, run.call) if run.call.runnable else text)

    def _entry_with(self, run: Run, error: BaseException, text: str) -> dict[str, Any]:
        return {
            "exception": path_of(error),
            "traceback": text,
            "worker": self._worker,
            "attempt": run.delivery.attempts,
        }


@dataclass(slots=True)
class Run:
    """One delivery on its way through the steps."""

    executor: Executor
    delivery: Delivery
    call: Call

    @property
    def runnable(self) -> Runnable:
        """Return what the code says of it; only once it is loaded."""
        assert self.call.runnable is not None
        return self.call.runnable

    @property
    def began(self) -> float:
        """Return the monotonic time at which it began."""
        return self.call.began

    def sync(self) -> Outcome:
        """Run it in this thread, with nothing left over from another run in its context."""
        try:
            return Context().run(self.executor.run, self)
        except BaseException as error:  # An interrupt at the last moment, or a mistake here: never the thread's end.
            return self.executor.without_outcome(self, error)


def _not_started(delivery: Delivery) -> Superseded | HandBack | None:
    """Return the outcome of a delivery that must not start: it waited in the buffer while something happened to it."""
    if delivery.may_be_taken_over(time.monotonic()):  # This process may have stood still for longer than a lease.
        return Superseded(delivery=delivery, ran_for=0.0)
    if delivery.discard:  # Given back, it is settled.
        return HandBack(delivery=delivery, ran_for=0.0)
    return None


def _cancelled(run: Run) -> Superseded | HandBack | None:
    """Return the outcome of a run that had to end for a reason that is not its own, and None for any other."""
    if run.delivery.superseded:
        return Superseded(delivery=run.delivery, ran_for=time.monotonic() - run.began)
    if run.delivery.hand_back or run.delivery.discard:
        return HandBack(delivery=run.delivery, ran_for=time.monotonic() - run.began)
    return None


def _attempt_over(run: Run, entry: dict[str, Any], delay: float | None, reason: str, ended: float) -> PutOff | GaveUp:
    """Return the outcome of a failed attempt: the next one after `delay` seconds, or none."""
    delivery, ran_for, told = run.delivery, ended - run.began, json.dumps(entry)
    if delay is None:
        return GaveUp(delivery=delivery, reason=reason, error=told, ran_for=ran_for, ended=ended)
    return PutOff(delivery=delivery, delay=delay, reason=reason, error=told, ran_for=ran_for, ended=ended)


def _told(about: tracing.Running, outcome: Outcome) -> Outcome:
    """Return the outcome of a run, having told whoever traces it."""
    match outcome:
        case Success() | Done():
            about.outcome = "succeeded"
        case Superseded():
            about.outcome = "superseded"
        case HandBack():
            about.outcome = "handed_back"
        case GaveUp():
            about.outcome = "dead"
        case PutOff():
            about.outcome = "snoozed" if outcome.reason == "snoozed" else "failed"
    if isinstance(outcome, (PutOff, GaveUp)) and outcome.error is not None:
        entry = json.loads(outcome.error)
        about.exception, about.traceback = entry["exception"], entry["traceback"]
    return outcome


def announce(part: str, error: BaseException) -> None:
    """Send `loop_failed`; if a receiver of that exits too, there is nobody left to tell."""
    with contextlib.suppress(BaseException):
        signals.loop_failed.send_robust(sender=Executor, part=part, exception=error)


def _say(say: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call what sends a signal. Its receivers hear what a run has come to; one that exits does not change it."""
    try:
        say(*args, **kwargs)
    except BaseException as left:  # send_robust() catches what is an Exception.
        announce(signals.RECEIVER, left)


async def _asay(saying: Awaitable[None]) -> None:
    """Await what sends a signal, as `_say` does; only being cancelled is no matter of the receivers."""
    try:
        await saying
    except asyncio.CancelledError:
        raise
    except BaseException as left:
        await sync_to_async(announce)(signals.RECEIVER, left)  # Who hears of it may use the database.


async def _in_peace(call: Awaitable[Outcome]) -> Outcome:
    """Await to the end, however often this is cancelled."""
    pending = asyncio.ensure_future(call)
    while True:
        try:
            return await asyncio.shield(pending)
        except asyncio.CancelledError:
            if pending.cancelled():
                raise


def _timed_out(timeout: float | None) -> TaskTimeout:
    return TaskTimeout(f"The task ran longer than its timeout of {timeout:g} s.")
