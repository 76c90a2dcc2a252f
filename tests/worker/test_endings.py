"""Why a process has ended: its exit code counts only with what belongs to it."""

from __future__ import annotations

import signal

import pytest

from django_pgbus.worker.endings import Ending, ending
from django_pgbus.worker.shutdown import Level

UNASKED = {"asked": Level.RUN, "killed": False, "leaving": None, "holds": False, "timed_out": False}


@pytest.mark.parametrize(
    ("code", "known", "why"),
    [
        (0, {}, Ending.DONE),
        (0, {"asked": Level.DRAIN}, Ending.DONE),
        (0, {"holds": True}, Ending.DIED),  # a job called os._exit(0)
        (0, {"holds": True, "asked": Level.DRAIN}, Ending.DIED),
        (66, {}, Ending.RECYCLED),
        (66, {"holds": True}, Ending.DIED),
        (1, {"leaving": 1}, Ending.DONE),  # a burst with failures
        (1, {}, Ending.DIED),  # an exception on the way up
        (64, {"asked": Level.DRAIN, "holds": True}, Ending.STOPPED),
        (64, {"leaving": 64, "holds": True}, Ending.STOPPED),  # somebody signalled the child itself
        (64, {"holds": True}, Ending.DIED),  # a job called os._exit(64)
        (65, {"holds": True, "timed_out": True}, Ending.TIMED_OUT),
        (65, {"holds": True, "timed_out": True, "asked": Level.DRAIN}, Ending.TIMED_OUT),
        (65, {"holds": True}, Ending.DIED),
        (-signal.SIGKILL, {"holds": True}, Ending.DIED),
        (-signal.SIGKILL, {"holds": True, "asked": Level.DRAIN}, Ending.DIED),  # out of memory while draining
        (-signal.SIGKILL, {"holds": True, "asked": Level.KILL, "killed": True}, Ending.STOPPED),
        (-signal.SIGTERM, {"asked": Level.DRAIN}, Ending.STOPPED),  # before it could take the signal over
        (-signal.SIGTERM, {}, Ending.DIED),
        (-signal.SIGQUIT, {"asked": Level.NOW, "holds": True}, Ending.STOPPED),
        (-signal.SIGSEGV, {"asked": Level.DRAIN, "holds": True}, Ending.DIED),
        (3, {}, Ending.DIED),
    ],
)
def test_the_reason_of_an_end(code, known, why):
    assert ending(code, **{**UNASKED, **known}) is why
