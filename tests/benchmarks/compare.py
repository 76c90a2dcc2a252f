"""
Two states of the code, one after the other and again: what a drain and an enqueue cost in each.

    python -m tests.benchmarks.compare TREE [TREE] [--rounds N] [--jobs N]

A tree is a folder with a checkout; the second is this one. Wall time on a machine where others work says nothing, so what
counts is processor time, in microseconds a job, as a median of rounds in which the trees take turns. Both run in this
interpreter, with the benchmark's project of their own.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.benchmarks import drains
from tests.benchmarks.counters import Counters
from tests.benchmarks.figures import median, rounded
from tests.benchmarks.server import Database, Server
from tests.benchmarks.systems import OURS, ROOT, System

SECONDS = 2.0  # of enqueueing
PATIENCE = 120.0  # seconds without a start: others may keep the processors busy


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("trees", nargs="+", type=Path)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--jobs", type=int, default=30_000)
    asked = made.parse_args()
    drains.PATIENCE = PATIENCE  # type: ignore[misc]
    trees = [*asked.trees, ROOT][:2]
    systems = [replace(OURS, name=f"pgbus_{number}", root=tree.absolute()) for number, tree in enumerate(trees)]
    found: dict[str, list[dict[str, float]]] = {system.name: [] for system in systems}
    with tempfile.TemporaryDirectory(prefix="pgbus-bench-") as folder:
        server, counters = Server.open(), Counters(Path(folder) / "run")
        try:
            for number in range(asked.rounds):
                for system in systems if number % 2 else reversed(systems):
                    found[system.name].append(one(system, server, counters, asked.jobs))
        finally:
            server.close()
    tell(trees, list(found.values()))


def one(system: System, server: Server, counters: Counters, jobs: int) -> dict[str, float]:
    """Return what a job costs in a fresh database, in microseconds."""

    def install(database: Database) -> None:
        system.run(counters, database, "install")

    with server.fresh(system.name, install) as database:
        spent = system.run(counters, database, "processor", SECONDS, module="tests.benchmarks.project.enqueueing")
        with database.connect() as connection:
            connection.execute("TRUNCATE pgbus_messages")
        counters.clear()
        system.run(counters, database, "send_many", jobs)
        database.settle()
        drained = drains.drain(system, counters, database, jobs)
        return {"drain: worker": drained.worker_us, "drain: in all (wall)": 1e6 / drained.rate, **spent}


def tell(trees: list[Path], found: list[list[dict[str, float]]]) -> None:
    """Print the medians of each tree and their ratio."""
    print(f"us a job: {', '.join(map(str, trees))}, ratio")
    for name in found[0][0]:
        medians = [median(round[name] for round in rounds) for rounds in found]
        ratio = medians[-1] / medians[0] if medians[0] and medians[-1] is not None else None
        print("".join(f"{rounded(value, 1):>10}" for value in medians), f"{rounded(ratio, 3):>8}  {name}")


if __name__ == "__main__":
    main()
