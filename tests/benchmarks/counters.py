"""
What ran and when, told through files in memory: no traffic to the database, half a microsecond a job.

Written by the jobs of every system, so this imports the standard library only; read by the benchmark. The folder is
`BENCH_RUN`.

    PROCESS_THREAD.count    how many jobs that thread started, when the first and when the last
    PROCESS.stamps          one line "number seconds" for each job whose start is timed
    marks                   one byte for each numbered job: how often it started
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SLOT: Final = struct.Struct("<Qdd")  # count, first start, last start
RUN: Final = Path(os.environ.get("BENCH_RUN", "."))

_mine = threading.local()
_open_stamps: dict[int, int] = {}
_open_marks: dict[int, mmap.mmap] = {}


# --- in the jobs --------------------------------------------------------------------------------------


def hit() -> None:
    """Count one start."""
    now = time.time()
    try:
        slot = _mine.slot
        if slot[2] != os.getpid():  # forked since
            raise AttributeError
    except AttributeError:
        slot = _mine.slot = _new_slot(now)
    slot[1] += 1
    SLOT.pack_into(slot[0], 0, slot[1], slot[3], now)


def _new_slot(now: float) -> list[Any]:
    file = os.open(RUN / f"{os.getpid()}_{threading.get_ident()}.count", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, SLOT.size)
    memory = mmap.mmap(file, SLOT.size)
    os.close(file)
    return [memory, 0, os.getpid(), now]


def stamp(number: int) -> None:
    """Write down that this job started now."""
    now, me = time.time(), os.getpid()
    if me not in _open_stamps:
        _open_stamps[me] = os.open(RUN / f"{me}.stamps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_open_stamps[me], f"{number} {now!r}\n".encode())


def mark(number: int) -> None:
    """Count one start of this very job."""
    me = os.getpid()
    if me not in _open_marks:
        with (RUN / "marks").open("r+b") as file:
            _open_marks[me] = mmap.mmap(file.fileno(), 0)
    _open_marks[me][number] += 1


# --- in the benchmark ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Starts:
    """How many jobs have started, when the first and when the last (seconds since the epoch)."""

    count: int
    first: float
    last: float


class Counters:
    """The folder, as the benchmark reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    def clear(self, *, numbered: int = 0) -> None:
        """Forget everything, and make room for marks of as many jobs; only while no worker runs."""
        for file in self.folder.iterdir():
            file.unlink()
        if numbered:
            (self.folder / "marks").write_bytes(bytes(numbered))

    def starts(self) -> Starts:
        """Return what has started so far."""
        slots = [SLOT.unpack(raw) for file in self.folder.glob("*.count") if len(raw := file.read_bytes()) == SLOT.size]
        slots = [slot for slot in slots if slot[0]]
        if not slots:
            return Starts(0, 0.0, 0.0)
        return Starts(sum(s[0] for s in slots), min(s[1] for s in slots), max(s[2] for s in slots))

    def stamps(self) -> dict[int, list[float]]:
        """Return when each numbered job started, each time it did."""
        moments: dict[int, list[float]] = {}
        for file in self.folder.glob("*.stamps"):
            for line in file.read_text().splitlines():
                number, moment = line.split()
                moments.setdefault(int(number), []).append(float(moment))
        return moments

    def marks(self) -> tuple[int, int]:
        """Return how many numbered jobs never started, and how many starts were one too many."""
        marks = (self.folder / "marks").read_bytes()
        return marks.count(0), sum(mark - 1 for mark in marks if mark > 1)
