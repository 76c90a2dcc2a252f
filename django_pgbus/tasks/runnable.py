"""
What the code of this process says of a task or a handler: how it is called, and what is said of its run.

The executor knows the steps of a run, a `Runnable` what differs between the kinds: tasks here, handlers of events in
`events/`, which puts its own loader beside that of the tasks.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, cast

from django.core.signals import setting_changed
from django.dispatch import Signal
from django.utils import timezone

from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import payload, running
from django_pgbus.tasks.compat import (
    AnyTask,
    AnyTaskResult,
    TaskContext,
    TaskError,
    TaskResultStatus,
    task_finished,
    task_started,
)
from django_pgbus.tasks.listeners import is_heard, only_django_listens
from django_pgbus.tasks.lookup import find_task
from django_pgbus.tasks.masking import loggable, scrubbed
from django_pgbus.tasks.policy import Policy, policy_of


@dataclass(slots=True)
class Call:
    """
    One run of a function: its arguments, and what is known of it.

    `subject` is a TaskResult, which is made when somebody asks `Runnable.subject_of`, or an Event or an Entry. `worker` is
    who runs it, once its message could be read.

    Its repr, which error trackers send with the frames of a traceback, holds no arguments.
    """

    delivery: Delivery
    runnable: Runnable | None  # None: it could not be loaded
    began: float
    args: Sequence[Any] = field(default=(), repr=False)
    kwargs: dict[str, Any] = field(default_factory=dict, repr=False)
    subject: Any = None
    worker: str | None = None


class Runnable:
    """What the code says of one path; the defaults say nothing, hide nothing and keep no return value."""

    func: Callable[..., Any]
    is_async: bool
    policy: Policy

    def open(self, call: Call, worker: str) -> None:
        """Read what the message carries into `call`; raises what is wrong with it."""
        raise NotImplementedError

    def subject_of(self, call: Call) -> Any:
        """Return what is known of a run, None if its message could not be read."""
        return call.subject

    def positional(self, call: Call) -> Sequence[Any]:
        """Return the positional arguments as the function takes them."""
        return call.args

    def enter(self, call: Call) -> None:
        """Prepare the context of the run."""

    def begins(self, call: Call) -> None:
        """Say that it begins."""

    async def abegins(self, call: Call) -> None:
        """Say that it begins, from the event loop."""

    def encoded(self, value: Any) -> str:
        """
        Return the return value as it is stored: nothing of it.

        Raises TypeError for a run that has not taken place: what it was to await or iterate over.
        """
        if inspect.iscoroutine(value):
            value.close()
        if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise TypeError(
                f"It returned a {type(value).__name__} that nobody awaits, so nothing was done. Is a decorator around an "
                "async handler not async itself?"
            )
        return "null"

    def succeeds(self, call: Call, value: Any) -> None:
        """Say that it has succeeded."""

    async def asucceeds(self, call: Call, value: Any) -> None:
        """Say that it has succeeded, from the event loop."""

    def remember(self, call: Call, exception: str, text: str) -> None:
        """Add a failure to what is known of it: the path of the exception and its traceback."""

    def gives_up(self, call: Call, error: BaseException) -> None:
        """Say that it has failed for good."""

    def scrubbed(self, text: str, call: Call) -> str:
        """Return a text, such as a traceback, without what nobody may read."""
        return text


class RunnableTask(Runnable):
    """A task, with Django's signals, its result and its sensitive arguments."""

    def __init__(self, task: AnyTask) -> None:
        self.task = task
        self.func = task.func
        self.is_async = inspect.iscoroutinefunction(task.func)
        self.policy = policy_of(task)
        self._sender = type(task.get_backend())

    def open(self, call: Call, worker: str) -> None:
        """Decode the arguments."""
        call.args, call.kwargs = payload.decode(call.delivery.payload)
        call.worker = worker
        if call.delivery.errors is not None:
            self.subject_of(call)  # A history that cannot be read fails the attempt, and not what follows from it.

    def subject_of(self, call: Call) -> Any:
        """Return the result that Django's contract asks for; most runs end without anybody having asked."""
        if call.subject is None and call.worker is not None:
            delivery = call.delivery
            call.subject = running.running(
                task=self.task,
                id=delivery.id,
                backend=delivery.backend,
                enqueued_at=delivery.enqueued_at,
                now=timezone.now() - timedelta(seconds=time.monotonic() - call.began),
                args=list(call.args),
                kwargs=call.kwargs,
                errors=delivery.errors,
                attempts=delivery.attempts,
                worker=call.worker,
            )
        return call.subject

    def positional(self, call: Call) -> Sequence[Any]:
        """Return the arguments, with the context before them if the task takes one."""
        if self.task.takes_context:
            return (TaskContext(task_result=cast(AnyTaskResult, self.subject_of(call))), *call.args)
        return call.args

    def begins(self, call: Call) -> None:
        """Send Django's signal."""
        if is_heard(task_started, logging.INFO):
            task_started.send_robust(self._sender, task_result=self.subject_of(call))

    async def abegins(self, call: Call) -> None:
        """Send Django's signal."""
        if is_heard(task_started, logging.INFO):
            await _asend(task_started, self._sender, self.subject_of(call))

    def encoded(self, value: Any) -> str:
        """Return what the result will hold."""
        return payload.encode_result(value)

    def succeeds(self, call: Call, value: Any) -> None:
        """Send Django's signal."""
        if call.subject is not None or is_heard(task_finished, logging.INFO):
            task_finished.send_robust(self._sender, task_result=self._finished(call, value))

    async def asucceeds(self, call: Call, value: Any) -> None:
        """Send Django's signal."""
        if call.subject is not None or is_heard(task_finished, logging.INFO):
            await _asend(task_finished, self._sender, self._finished(call, value))

    def remember(self, call: Call, exception: str, text: str) -> None:
        """Add it to the errors of the result."""
        if (result := self.subject_of(call)) is not None:
            result.errors.append(TaskError(exception_class_path=exception, traceback=text))

    def gives_up(self, call: Call, error: BaseException) -> None:
        """Send Django's signal, while the error is the one in flight: its log line reads sys.exc_info()."""
        if (result := self.subject_of(call)) is None:
            return
        # By the same name: error trackers send the variables of this frame, and none may hold the other any more.
        error = loggable(error, self.task, call.args, call.kwargs)
        try:
            raise error
        except BaseException:
            _mark(result, TaskResultStatus.FAILED, None)
            task_finished.send_robust(self._sender, task_result=result)

    def scrubbed(self, text: str, call: Call) -> str:
        """Return it without the values of sensitive arguments."""
        return scrubbed(text, self.task, call.args, call.kwargs)

    def _finished(self, call: Call, value: Any) -> Any:
        """Return the result as that of a run that succeeded; a task may have kept the one it was given."""
        result = self.subject_of(call)
        _mark(result, TaskResultStatus.SUCCESSFUL, value)
        return result


def _mark(result: Any, status: Any, value: Any) -> None:
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())


async def _asend(signal: Signal, sender: type, result: Any) -> None:
    """Send from the event loop; receivers that may use the database get a thread, Django's log line needs none."""
    if only_django_listens(signal):
        signal.send_robust(sender, task_result=result)
    else:
        await signal.asend_robust(sender, task_result=result)


# --- by their paths -----------------------------------------------------------------------------------

Loader = Callable[[str], Runnable]

_loaded: Final[dict[str, dict[str, Runnable]]] = {"task": {}, "handler": {}, "entry": {}}


def _no_handlers(path: str) -> Runnable:
    raise ImportError(f"The handler {path} cannot be run: this process has not loaded django_pgbus.events.")


def _no_entries(path: str) -> Runnable:
    raise ImportError(f"The handler {path} cannot be run: this process has not loaded django_pgbus.streams.")


class _Loaders:
    """How tasks, handlers of events and handlers of streams are found by their paths."""

    task: Loader = staticmethod(lambda path: RunnableTask(find_task(path)))
    handler: Loader = staticmethod(_no_handlers)
    entry: Loader = staticmethod(_no_entries)


loaders: Final = _Loaders()


def kind_of(topic: str | None) -> str:
    """Return what a message with this topic is: a "task", an event for a "handler", or an "entry" of a stream."""
    if topic is None:
        return "task"
    return "entry" if "/" in topic else "handler"  # STREAM/GROUP; no topic of an event has a slash


def known(delivery: Delivery) -> Runnable | None:
    """Return what is to be run if it has been loaded here before."""
    return _loaded[kind_of(delivery.topic)].get(delivery.task)


def load(delivery: Delivery) -> Runnable:
    """Return what is to be run; raises what importing it raises, anew each time."""
    return known(delivery) or load_path(delivery.task, kind_of(delivery.topic))


def load_path(path: str, kind: str) -> Runnable:
    """Return what is run under this path as a message of this kind, loaded now; raises what importing it raises."""
    loader: Loader = getattr(loaders, kind)
    runnable = _loaded[kind][path] = loader(path)
    return runnable


def forget() -> None:
    """Load everything anew: what was declared may have changed (settings, tests)."""
    for paths in _loaded.values():
        paths.clear()


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in {"TASKS", "PGBUS"}:
        forget()


setting_changed.connect(_forget, dispatch_uid="pgbus.runnable")
