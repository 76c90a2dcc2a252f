"""How long a task waits after a failure."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any, Final

from django_pgbus import signals
from django_pgbus.conf import get_settings
from django_pgbus.tasks.policy import Backoff

# Thirty years: beyond it a number is a mistake, and dates come to an end.
_TOO_LONG: Final = 1e9


def delay(backoff: Backoff | None, exception: BaseException, subject: Any, failures: int, *, path: str) -> float | None:
    """
    Return the seconds to wait after the n-th failure, or None to give up.

    The function of the task or handler decides if it has one, and is taken at its word; `subject` is its TaskResult or
    Event. Where it raises, exits or returns nonsense the default applies, and `backoff_broken` is sent: a mistake there
    must not lose the job.
    """
    if backoff is None or subject is None:
        return default_delay(failures)
    try:
        answer = backoff(exception, subject)
        return None if answer is None else _seconds(answer)
    except BaseException as error:  # It may be meant for a command line, and exit.
        signals.backoff_broken.send_robust(sender=None, task=path, exception=error)
        return default_delay(failures)


def default_delay(failures: int) -> float:
    """Return BACKOFF_BASE doubled with each failure, at most BACKOFF_CAP, varied by BACKOFF_JITTER."""
    settings = get_settings()
    doublings = min(max(failures - 1, 0), 64)
    wait = min(settings.BACKOFF_BASE * 2.0**doublings, settings.BACKOFF_CAP)
    return wait * random.uniform(1 - settings.BACKOFF_JITTER, 1 + settings.BACKOFF_JITTER)  # noqa: S311


def _seconds(answer: object) -> float:
    seconds = answer.total_seconds() if isinstance(answer, timedelta) else answer
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"backoff returned a {type(answer).__name__}, not seconds, a timedelta or None.")
    if not 0 <= seconds <= _TOO_LONG:
        raise ValueError(f"backoff returned {seconds!r}, not seconds from 0 to {_TOO_LONG:.0f}.")
    return float(seconds)
