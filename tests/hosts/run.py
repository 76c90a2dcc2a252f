#!/usr/bin/env python3
"""
Cut one of three hosts off for three leases, by hand, and say what came of it (as root: hosts are network namespaces):

    python tests/hosts/run.py [--seconds 30] [--lease 6] [--seed 1] [--recommended] [--json]

Ends with 1 if anything was lost, done twice, above a limit, or not told. `--recommended` gives the
connections of jobs the settings that the documentation recommends; without, they have those of the system.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--lease", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recommended", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    sys.path.insert(0, str(ROOT))
    os.environ["PGBUS_EMBEDDED"] = "0"  # the test settings start no server
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.processes.settings"  # those of the workers
    os.environ.pop("DATABASE_URL", None)
    import django

    django.setup()

    from tests.hosts.net import why_not
    from tests.hosts.partition import Plan, checks
    from tests.hosts.three import cut_one_off

    if reason := why_not():
        print(f"There are no hosts here: {reason}.", file=sys.stderr)
        return 2
    plan = Plan(seconds=options.seconds, lease=options.lease, seed=options.seed)
    with tempfile.TemporaryDirectory(prefix="pgbus-hosts-") as folder:
        found = cut_one_off(plan, Path(folder), recommended=options.recommended)
    for name, seen in asdict(found).items():
        print(f"{name:22} {seen[:5] if isinstance(seen, list) else seen}")
    print("must be 0:")
    for name, amount in checks(found).items():
        print(f"    {name:18} {amount}")
    if options.json:
        print(json.dumps({"plan": asdict(plan), "found": asdict(found), "checks": checks(found)}))
    return int(any(checks(found).values()))


if __name__ == "__main__":
    sys.exit(main())
