"""When a process is to be replaced by a fresh one: after so many jobs, so much memory, or so long."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Final

from django_pgbus.worker.plan import ProcessPlan

SPREAD: Final = 0.1  # processes that start together do not all end together


def reason_to_recycle(plan: ProcessPlan, *, jobs: int, memory: int, age: float, spread: float = 0.0) -> str | None:
    """
    Return why this process has done its share, as words for a log line, or None.

    `memory` in bytes, `age` in seconds; `spread` (0 to 1, drawn once per process) brings the age limit forward
    by up to a tenth.
    """
    if plan.max_jobs is not None and jobs >= plan.max_jobs:
        return f"{jobs} jobs done"
    if plan.max_memory is not None and memory >= plan.max_memory:
        return f"{memory / (1 << 20):.0f} MiB of memory in use"
    if plan.max_age is not None and age >= plan.max_age * (1 - SPREAD * spread):
        return f"{age:.0f} s old"
    return None


def resident_memory() -> int:
    """Return the memory this process has in use, in bytes; where the system does not say, the most it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * resource.getpagesize()
