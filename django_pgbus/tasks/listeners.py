"""
Who listens to Django's signals of tasks.

Django does, to write a log line. Where nobody else listens and that line would not be written, nobody needs a
`TaskResult` either: making and sending it is a third of what a short run costs.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any, Final

from django.dispatch import Signal

from django_pgbus.tasks.compat import task_enqueued, task_finished, task_signals, task_started

_log: Final[logging.Logger] = task_signals.logger


def _djangos_own(signal: Signal) -> list[Any]:
    """Return the entries of Django's own receivers; what an entry holds beside the receiver differs with its version."""
    own = []
    for entry in signal.receivers:
        receiver = entry[1]() if isinstance(entry[1], weakref.ReferenceType) else entry[1]
        if getattr(receiver, "__module__", None) == task_signals.__name__:
            own.append(entry)
    return own


_own: Final = {signal: _djangos_own(signal) for signal in (task_enqueued, task_started, task_finished)}


def only_django_listens(signal: Signal) -> bool:
    """Return whether nobody but Django itself listens, to whichever sender."""
    return signal.receivers == _own[signal]


def is_heard(signal: Signal, level: int) -> bool:
    """Return whether anything comes of sending, where Django's own log line has this level."""
    return signal.receivers != _own[signal] or _log.isEnabledFor(level)
