"""What whoever traces is told of a range, or of an entry on its own, that is handled; entries carry no headers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from django_pgbus.streams.consumers import Consumer
from django_pgbus.streams.exceptions import Alone
from django_pgbus.streams.leases import Range
from django_pgbus.tasks import tracing

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", Range, Alone)

ALONE: Final = {"done": "succeeded", "put off": "failed", "dead": "dead", "lost": "superseded"}


def traced(handle: Callable[Concatenate[Consumer, H, P], R]) -> Callable[Concatenate[Consumer, H, P], R]:
    """Return what handles a range or an entry, with whoever traces around it."""

    @wraps(handle)
    def within(consumer: Consumer, held: H, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not tracing.hooks:
            return handle(consumer, held, *args, **kwargs)
        with tracing.running(_about(consumer, held)) as about:
            came_to = handle(consumer, held, *args, **kwargs)
            _tell(about, came_to)
        return came_to

    return within


def _about(consumer: Consumer, held: Range | Alone) -> tracing.Running:
    about = tracing.Running(task=consumer.path, topic=consumer.stream, group=consumer.group)
    if isinstance(held, Range):
        about.count, about.delivery = len(held.rows), held.reclaims + 1
    else:
        about.message, about.attempt = str(held.position), held.attempts
    return about


def _tell(about: tracing.Running, came_to: Any) -> None:
    if isinstance(came_to, str):
        about.outcome = ALONE.get(came_to, came_to)
        return
    failed = [failure for failure in came_to.failures if failure.attempts]  # the others wait for one of their key
    about.outcome = (
        "superseded" if came_to.lost else "unknown" if came_to.unknown else "failed" if failed else "succeeded"
    )
    if failed:
        about.exception, about.traceback = failed[0].exception, failed[0].traceback
