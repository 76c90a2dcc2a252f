"""How long the benchmarks take, so that one knows before: seconds on the machine of reference, with their usual sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tests.benchmarks.bench import SOME


class Takes(NamedTuple):
    """Seconds: once, in each run, and for each peer in each of its runs."""

    once: float
    run: float
    peer: float = 0.0
    peer_once: float = 0.0
    peer_runs: int = 1000
    peers: int = 1000  # who takes part at most
    runs: int = 1000  # of `all`: some tell enough with fewer


TAKES: Final = {
    "jobs": Takes(5, 10, 10),
    "enqueue": Takes(5, 10, 6),
    "latency": Takes(5, 55, 14),
    "depth": Takes(60, 40, 35, 75, SOME, 2),
    "snapshot": Takes(80, 57, 42, 10, SOME, 3),
    "idle": Takes(5, 42, 2),
    "commits": Takes(5, 50),
    "burst": Takes(5, 15),
    "hotkey": Takes(5, 60),
    "streams": Takes(200, 90),
    "batch": Takes(5, 15, runs=SOME),
    "events": Takes(5, 40, runs=SOME),
    "storm": Takes(5, 75, runs=1),
    "budget": Takes(5, 60, runs=1),
}


def seconds(name: str, runs: int, peers: int) -> float:
    """Return about how long one of them takes."""
    takes = TAKES[name]
    of_peers = min(peers, takes.peers) * (takes.peer * min(runs, takes.peer_runs) + takes.peer_once)
    return takes.once + takes.run * runs + of_peers


def runs_of(name: str, asked: int) -> int:
    """Return how many runs one of them has in `all`."""
    return min(asked, TAKES[name].runs)


def told(names: Iterable[str], asked: int, peers: int) -> str:
    """Return one line for people."""
    each = {name: seconds(name, runs_of(name, asked), peers) for name in names}
    parts = ", ".join(f"{name} {took / 60:.1f}" for name, took in each.items())
    return f"About {sum(each.values()) / 60:.0f} minutes where nothing else runs: {parts}."


def whole() -> float:
    """Return about how long all of them take, five runs beside five peers and the yardstick."""
    return sum(seconds(name, runs_of(name, 5), 6) for name in TAKES)
