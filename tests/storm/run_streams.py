#!/usr/bin/env python3
"""
Run the storm over a stream by hand, on a server of its own, and say what came of it:

    python tests/storm/run_streams.py --seconds 180 [--producers 8] [--consumers 3] [--restart 20] [--seed 1]

Ends with 1 if anything was lost, handled again after it was done with, out of order, or repeated without a reason.
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
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--consumers", type=int, default=3, help="workers of one process each")
    parser.add_argument("--kill-every", type=float, default=1.0, help="seconds")
    parser.add_argument(
        "--restart", type=int, help="after so many kills PostgreSQL goes down at once, and is there again"
    )
    parser.add_argument("--pace", type=float, default=0.04, help="seconds between two transactions of a producer")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    sys.path.insert(0, str(ROOT))
    os.environ["PGBUS_EMBEDDED"] = "0"  # the test settings start no server
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.processes.settings"  # those of the workers
    os.environ.pop("DATABASE_URL", None)
    import django

    django.setup()

    from tests.processes.harness import started
    from tests.processes.server import SETTINGS, own_server
    from tests.storm.stream_books import checks
    from tests.storm.streams import SERVER, Plan, Storm

    plan = Plan(**vars(options))
    with (
        tempfile.TemporaryDirectory(prefix="pgbus-storm-") as folder,
        own_server(options={**SETTINGS, **SERVER}) as server,
        started(Path(folder), server.settings) as start,
    ):

        def restart() -> None:
            server.stop("immediate")
            server.start()

        found = Storm(plan, start, server, restart).run()
    for name, seen in asdict(found).items():
        if isinstance(seen, dict):
            print(f"{name}:")
            for part, figure in seen.items():
                print(f"    {part:26} {figure}")
        else:
            print(f"{name:22} {seen[:TOLD] if isinstance(seen, list) and name != 'evidence' else seen}")
    print("must be 0:")
    for name, amount in checks(found).items():
        print(f"    {name:26} {amount}")
    return int(any(checks(found).values()))


if __name__ == "__main__":
    sys.exit(main())
