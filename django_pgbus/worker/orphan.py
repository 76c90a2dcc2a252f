"""A child notices that its supervisor has died."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Final

CHECK: Final = 2.0  # seconds


def watch_supervisor(gone: Callable[[], object]) -> threading.Thread | None:
    """
    Start a thread that calls `gone` once when the process that spawned this one has ended.

    Returns None where there is no such process. A closing pipe tells at once; the parent's id is looked at too, for
    the case that another process has inherited the other end of that pipe.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return None
    sentinel, pid = parent.sentinel, parent.pid

    def watch() -> None:
        while os.getppid() == pid and not wait([sentinel], CHECK):
            pass
        gone()

    thread = threading.Thread(target=watch, name="pgbus-orphan-watch", daemon=True)
    thread.start()
    return thread
