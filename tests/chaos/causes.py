"""
What explains that a run ended before its time, or that a lease lapsed.

Only what stands here explains anything. A fault that should be survived without a trace explains nothing: that of LISTEN,
slow commits, slow connections, a paused queue, a wrong clock by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from tests.chaos.records import Fault, Run

# What a process had sent before it was killed is executed still, once its session gets a processor.
LATE: Final = timedelta(seconds=1)
AROUND: Final = timedelta(seconds=15)  # that are told before and after what is wrong
DYING: Final = timedelta(seconds=3)  # from the beginning of a job that ends its process until the process is gone

KILLS: Final = frozenset({"kill_child", "kill_worker", "poison"})
STOPS: Final = frozenset({"deploy", "skew", "kill_supervisor"})  # SIGTERM: what does not end in time is handed back
# Silence: leases lapse.
SILENCES: Final = frozenset({"stop_child", "stop_worker", "stall", "stall_and_reset", "refuse", "restart", "starved"})
# Sessions end: a transaction with them, and the reply of a claim, whose jobs then nobody knows of.
LOSSES: Final = frozenset(
    {"restart", "end_job_sessions", "end_pgbus_sessions", "drop", "cut", "refuse", "stall_and_reset"}
)


class Causes:
    """All faults, by the process that they concern."""

    def __init__(self, faults: Iterable[Fault], runs: Iterable[Run] = ()) -> None:
        self._of: dict[int, list[Fault]] = defaultdict(list)
        for fault in faults:
            for pid in fault.pids:
                self._of[pid].append(fault)
        for run in runs:
            if run.kind == "poison":
                self._of[run.pid].append(Fault("poison", frozenset({run.pid}), run.began, run.began + DYING))

    def any(self, names: Iterable[str], pid: int, start: datetime, end: datetime) -> bool:
        """Return whether one of these happened to the process, at some time from start to end."""
        wanted = set(names)
        return any(
            fault.name in wanted and fault.after <= end and fault.before + LATE >= start for fault in self._of[pid]
        )

    def told(self, pid: int, start: datetime, end: datetime) -> str:
        """Return what happened to the process around the time from start to end, for whoever reads what is wrong."""
        faults = [fault for fault in self._of[pid] if fault.after <= end + AROUND and fault.before >= start - AROUND]
        times = (f"{fault.name} {fault.after:%H:%M:%S.%f} to {fault.before:%H:%M:%S.%f}" for fault in faults)
        return f"process {pid}: {', '.join(times) or 'nothing'}"

    def kills(self, names: Iterable[str]) -> list[tuple[int, datetime, datetime]]:
        """Return (process, after, before) of each time one of these happened to a process, as the storms want it."""
        wanted = set(names)
        return [
            (pid, fault.after, fault.before)
            for pid, faults in self._of.items()
            for fault in faults
            if fault.name in wanted
        ]
