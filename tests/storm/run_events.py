#!/usr/bin/env python3
"""
Run the storm over events by hand, on a server of its own, and say what came of it:

    python tests/storm/run_events.py --events 10000 [--kill-every 1] [--restart 5] [--seed 1]

Ends with 1 if anything was lost, done twice, or repeated without a kill that explains it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOLD = 5  # of the violations


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--kill-every", type=float, default=1.0, help="seconds")
    parser.add_argument(
        "--restart", type=int, help="after so many kills PostgreSQL goes down at once, and is there again"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    sys.path.insert(0, str(ROOT))
    os.environ["PGBUS_EMBEDDED"] = "0"  # the test settings start no server
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.processes.settings"  # those of the workers
    os.environ.pop("DATABASE_URL", None)
    import django

    django.setup()

    from tests.processes.harness import started
    from tests.processes.server import own_server
    from tests.storm.events import Plan, Storm, checks

    plan = Plan(events=options.events, kill_every=options.kill_every, restart=options.restart, seed=options.seed)
    with (
        tempfile.TemporaryDirectory(prefix="pgbus-storm-") as folder,
        own_server() as server,
        started(Path(folder), server.settings) as start,
    ):

        def restart() -> None:
            server.stop("immediate")
            server.start()

        found = Storm(plan, start, restart).run()
    for name, seen in asdict(found).items():
        print(f"{name:15} {seen[:TOLD] if isinstance(seen, list) else seen}")
    print("must be 0:     ", checks(found))
    return int(any(checks(found).values()))


if __name__ == "__main__":
    sys.exit(main())
