#!/usr/bin/env python3
"""
Run the chaos by hand, on a server of its own, and say what came of it:

    python tests/chaos/run.py [--minutes 10] [--seed 1] [--json]
    python tests/chaos/run.py --minutes 1 --only kill_child,stop_child --kinds limited,unique
    python tests/chaos/run.py --sabotage NAME       without one of the guards (sabotage_run.py)
    python tests/chaos/run.py soak [--hours 1]      a steady mix without faults, and what grows meanwhile (soak.py)

Ends with 1 if any check is red. README.md says what is done and what is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.chaos import Found

ROOT = Path(__file__).resolve().parents[2]
TOLD = 3  # of the violations of a check
SERVER = {"fsync": "on", "max_connections": "200", "max_prepared_transactions": "32", "max_wal_size": "512MB"}


def names(text: str) -> tuple[str, ...]:
    """Return what is separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    sys.path.insert(0, str(ROOT))
    if (given := sys.argv[1:] if arguments is None else arguments)[:1] == ["soak"]:
        from tests.chaos import soak

        return soak.main(given[1:])
    if "--sabotage" in (arguments or sys.argv):
        from tests.chaos import sabotage_run

        return sabotage_run.main(arguments or sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--only", type=names, metavar="FAULT,...", help="no other faults")
    parser.add_argument("--without", type=names, metavar="FAULT,...", default=(), help="all faults but these")
    parser.add_argument("--kinds", type=names, metavar="KIND,...", help="no other work")
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two faults")
    parser.add_argument("--pace", type=float, default=0.08, help="seconds between two transactions of a producer")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--totals-take", type=float, default=0.0, help="seconds of a transaction of the group `totals`")
    parser.add_argument("--settle", type=float, default=600.0, help="seconds at most until all is settled in the end")
    parser.add_argument("--logs", type=Path, help="keep the workers' logs in this folder")
    options = parser.parse_args(arguments)

    os.environ["PGBUS_EMBEDDED"] = "0"  # the test settings start no server
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.processes.settings"  # those of the workers
    os.environ.pop("DATABASE_URL", None)
    import django

    django.setup()

    from tests.chaos.chaos import Plan
    from tests.chaos.faults import FAULTS
    from tests.chaos.producers import KINDS

    for given, known in ((options.only or (), FAULTS), (options.without, FAULTS), (options.kinds or (), KINDS)):
        if unknown := set(given) - known.keys():
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    faults = tuple(name for name in options.only or FAULTS if name not in options.without)
    plan = Plan(
        seconds=options.minutes * 60,
        seed=options.seed,
        kinds=options.kinds or tuple(KINDS),
        faults=faults,
        every=options.every,
        pace=options.pace,
        producers=options.producers,
        longest=options.settle,
        totals_take=options.totals_take,
    )
    found = run(plan, options.logs)
    tell(found)
    if options.json:
        print(json.dumps(as_json(found), default=str))
    return int(bool(found.red))


def run(plan: object, logs: Path | None = None) -> Found:
    """Run a plan on a server of its own."""
    from tests.chaos.chaos import Chaos
    from tests.processes.harness import started
    from tests.processes.server import SETTINGS, own_server

    with tempfile.TemporaryDirectory(prefix="pgbus-chaos-") as temporary:
        folder = logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with (
            own_server(options={**SETTINGS, **SERVER}) as server,
            started(folder, server.settings, tell=False) as start,
        ):
            return Chaos(plan, start, server, folder).run()


def tell(found: Found) -> None:
    """Print what happened, what was done, and what is wrong."""
    print("faults:   ", ", ".join(f"{name} {number}" for name, number in sorted(found.faults.items())))
    print("workload:")
    for kind, counts in found.workload.items():
        print(f"    {kind:16}", ", ".join(f"{name} {number}" for name, number in counts.items()))
    for name, seen in found.seen.items():
        print(f"{name + ':':34} {seen}")
    print("checks:   ", ", ".join(f"{name} {number}" for name, number in found.checks.items()))
    for name in found.red:
        print(f"RED {name}: {'; '.join(found.wrong[name][:TOLD])}")
    print(f"{'RED' if found.red else 'green'} after {found.seconds:.0f} s")


def as_json(found: Found) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "settings": found.settings,
        "faults": found.faults,
        "workload": found.workload,
        "seen": found.seen,
        "checks": found.checks,
        "wrong": {name: lines for name, lines in found.wrong.items() if lines},
        "seconds": round(found.seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
