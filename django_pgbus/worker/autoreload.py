"""
`runworker --reload`: one process that starts anew when code changes.

Django's reloader owns the main thread and its signals, so the worker runs beside it, without supervisor, children
or health endpoint, and is told to drain when the reloader leaves. What has not ended after `SECONDS` is cut off; its
lease lapses and it runs again. For development only.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import Final

from django.utils import autoreload
from django.utils.module_loading import import_string

from django_pgbus.worker.child import MAIN
from django_pgbus.worker.console import log_to_stderr
from django_pgbus.worker.plan import WorkerPlan
from django_pgbus.worker.shutdown import Level, demands

SECONDS: Final = 3.0

_serving: list[threading.Thread] = []


def work(plan: WorkerPlan, main: str = MAIN) -> int:
    """Run the reloader; it leaves this process by SystemExit, or returns after Ctrl-C."""
    try:
        autoreload.run_with_reloader(_serve, plan, main)
    finally:
        _drain()
    return 0


def _serve(plan: WorkerPlan, main: str) -> None:
    # An error of a module that changed is raised here, and the reloader waits for the next change.
    autoreload.raise_last_exception()
    _serving.append(threading.current_thread())
    if plan.process.log_level is not None:
        log_to_stderr(plan.process.log_level)
    import_string(main)(plan.process, uuid.uuid4(), None, None, plan.name)


def _drain() -> None:
    """Ask the worker to end; before the interpreter shuts down, since then no thread can start any more."""
    deadline = time.monotonic() + SECONDS
    for thread in _serving:
        demands().ask(Level.DRAIN)
        thread.join(max(0.0, deadline - time.monotonic()) * 0.7)
        if thread.is_alive():
            demands().ask(Level.NOW)
            thread.join(max(0.0, deadline - time.monotonic()))
