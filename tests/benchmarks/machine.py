"""What the machine does meanwhile: load, memory and processor time of processes; Linux only."""

from __future__ import annotations

import os
import platform
import re
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

TICKS: Final = os.sysconf("SC_CLK_TCK")


def load() -> float:
    """Return the load of the last minute: from about 1 on, something else is running."""
    return round(os.getloadavg()[0], 2)


def busy(seconds: float = 1.0) -> float:
    """Return which share of the processors is used while we do nothing; tells at once what the load tells later."""
    before = _jiffies()
    time.sleep(seconds)
    used, idle = (after - was for after, was in zip(_jiffies(), before, strict=True))
    return round(used / max(used + idle, 1), 2)


def _jiffies() -> tuple[int, int]:
    """Return the time used and the time idle since boot, of all processors together."""
    fields = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, idle


def describe() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {"cores": os.cpu_count(), "python": platform.python_version()}


def environment(folder: Path) -> dict[str, Any]:
    """Return what machine this is, and how long its disk takes to keep a few bytes."""
    processors = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        **describe(),
        "processor": processors[0] if processors else platform.machine(),
        "memory_gb": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python_optimized": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
        "fsync_ms": sync(folder),
    }


def sync(folder: Path, times: int = 50) -> float:
    """Return the median milliseconds that a few bytes take to the disk."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(b"x" * 64)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return round(statistics.median(took) * 1000, 2)


class Process(NamedTuple):
    """One process: whose child it is, when it began, and its processor time."""

    parent: int
    born: str
    seconds: float


def spent_by_all() -> dict[int, Process]:
    """Return every process there is."""
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and (fields := _stat(int(place.name))):
            found[int(place.name)] = Process(int(fields[1]), fields[19], sum(map(int, fields[11:13])) / TICKS)
    return found


def descendants(parents: Mapping[int, int], roots: Iterable[int]) -> set[int]:
    """Return the roots and all that descend from them."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        found.add(one := waiting.pop())
        waiting += children.get(one, [])
    return found


def family(pid: int) -> set[int]:
    """Return a process and all that descend from it."""
    return descendants({one: process.parent for one, process in spent_by_all().items()}, [pid])


def parent_of(pid: int) -> int:
    """Return whose child a process is, 0 if it is gone."""
    return int(_stat(pid)[1]) if _stat(pid) else 0


def resident(pid: int) -> float:
    """Return the resident memory of one process in MB, 0 if it is gone."""
    try:
        lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its descendants so far."""
    total = 0
    for one in family(pid):
        if fields := _stat(one):
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def born(pid: int) -> str | None:
    """Return when a process began, in ticks since boot: with its number, its identity. None if it is gone."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] != "Z" else None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold anything."""
    try:
        text = (Path("/proc") / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()
