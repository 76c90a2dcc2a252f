"""Sessions that are left, and memory that grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.chaos.samples import Samples
from tests.processes.harness import JOBS

WARM: Final = 20.0  # seconds until a process has all that it needs
OLD: Final = 60.0  # seconds that a process must have lived to be judged
GROWN: Final = 0.25  # of its memory, and
MUCH: Final = 24 * 1024  # KiB


def connections_leaked(samples: Samples, processes: int) -> Iterator[str]:
    """Yield each kind of session of which there are more, when all is quiet, than so many worker processes want."""
    if not samples.sessions:
        yield "nobody looked"
        return
    for name, number in samples.sessions[-1].items():
        # Each process has one of a name at most; its jobs' are closed once their threads are idle (CONN_MAX_AGE is 0).
        wanted = 0 if name == JOBS else processes
        if (name == JOBS or name.startswith("pgbus")) and number > wanted:
            yield f"{name}: {number} sessions in the end, {wanted} would do"
    if samples.in_transaction[-1]:
        yield f"{samples.in_transaction[-1]} sessions are left in a transaction"


def memory_grown(samples: Samples) -> Iterator[str]:
    """Yield each process that needs much more in its last third than in the third after its warm-up."""
    for pid, seen in samples.memory.items():
        if not seen or seen[-1][0] - seen[0][0] < OLD:
            continue
        warm = [kib for at, kib in seen if at - seen[0][0] >= WARM]
        third = max(1, len(warm) // 3)
        before, after = max(warm[:third]), min(warm[-third:])
        if after - before > MUCH and after > before * (1 + GROWN):
            yield f"process {pid}: {before} KiB, then {after} KiB in {seen[-1][0] - seen[0][0]:.0f} s"
