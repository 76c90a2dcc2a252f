"""What processes take, read from /proc; Linux only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tests.benchmarks import machine

MEMORY: Final = {"Rss": "rss", "Pss": "pss", "Private_Clean": "uss", "Private_Dirty": "uss"}


def look(pid: int) -> dict[str, float] | None:
    """Return memory in MB, descriptors, threads and processor seconds of one process; None if it is gone."""
    folder = Path("/proc") / str(pid)
    try:
        memory = dict.fromkeys(MEMORY.values(), 0.0)
        for line in (folder / "smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            if name in MEMORY:
                memory[MEMORY[name]] += int(rest.split()[0]) / 1024
        stat = (folder / "stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        return {
            **memory,
            "fds": len(os.listdir(folder / "fd")),
            "threads": int(fields[17]),
            "cpu": sum(map(int, fields[11:13])) / machine.TICKS,
        }
    except (OSError, ValueError):  # it has ended meanwhile
        return None


def look_at_server(pid: int) -> dict[str, float]:
    """Return what the server takes: the memory of its processes that no other shares, and all processor time."""
    family = machine.family(pid)
    stat = (Path("/proc") / str(pid) / "stat").read_text()
    collected = sum(map(int, stat[stat.rindex(")") + 2 :].split()[13:15])) / machine.TICKS  # of children that ended
    seen = [found for one in family if (found := look(one)) is not None]
    return {
        "uss": sum(found["uss"] for found in seen),
        "pss": sum(found["pss"] for found in seen),
        "processes": len(seen),
        "cpu": collected + sum(found["cpu"] for found in seen),
    }


def used() -> dict[str, float]:
    """Return the processor time of the whole machine since it was started, used and idle, in seconds."""
    fields = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return {"used": (sum(fields) - idle) / machine.TICKS, "idle": idle / machine.TICKS}


def children(pid: int) -> list[int]:
    """Return the worker processes of a supervisor, in the order of their numbers."""
    found = machine.spent_by_all()
    return sorted(one for one, process in found.items() if process.parent == pid and b"spawn_main" in _command(one))


def _command(pid: int) -> bytes:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""
