"""
Why a child has ended, from its exit code and what was asked of it.

An exit code alone proves nothing: a job may call os._exit with any number. So the codes of our own count only with
what belongs to them: nothing held any more, a report, or a demand.
"""

from __future__ import annotations

import signal
from enum import StrEnum
from typing import Final

from django_pgbus.worker.shutdown import Level

DONE: Final = 0  # drained, or a burst found its queues empty
SOME_FAILED: Final = 1  # a burst found its queues empty, and runs had failed
HELD_AT_STOP: Final = 64  # sync runs were left after the grace
HARD_TIMEOUT: Final = 65
RECYCLE: Final = 66


class Ending(StrEnum):
    """What an end means for the jobs held and for the replacement."""

    DONE = "done"  # nothing is held
    RECYCLED = "recycled"  # nothing is held
    STOPPED = "stopped"  # asked for: what it held goes back without counting an attempt
    TIMED_OUT = "timed out"  # one job failed, the others go back without counting an attempt
    DIED = "died"  # unasked: started jobs keep their attempt, all are suspects


def ending(code: int, *, asked: Level, killed: bool, leaving: int | None, holds: bool, timed_out: bool) -> Ending:
    """
    Return why a child has ended.

    `code` is negative for a signal, as multiprocessing says it; `killed` is whether we sent SIGKILL; `leaving` is the
    code it announced; `timed_out` whether it reported a hard timeout.
    """
    ours = {
        -signal.SIGTERM: asked >= Level.DRAIN,  # It came before the child could take it over.
        -signal.SIGQUIT: asked >= Level.NOW,
        -signal.SIGKILL: killed,
        HELD_AT_STOP: asked >= Level.DRAIN or leaving == HELD_AT_STOP,
    }
    if ours.get(code):
        return Ending.STOPPED
    if code == HARD_TIMEOUT and timed_out:
        return Ending.TIMED_OUT
    if holds:
        return Ending.DIED
    if code == RECYCLE:
        return Ending.RECYCLED
    if code == DONE or (code == SOME_FAILED and leaving == SOME_FAILED):
        return Ending.DONE
    return Ending.DIED
