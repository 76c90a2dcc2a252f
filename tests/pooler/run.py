#!/usr/bin/env python3
"""
Run the core of the suite through PgBouncer in transaction mode:

    python tests/pooler/run.py --listen direct     workers' own sessions go past the pooler (LISTEN_DATABASE)
    python tests/pooler/run.py --listen none       everything goes through it: the worker is deaf, and polls
    python tests/pooler/run.py --listen none --short        what the suite runs itself, in a minute
    python tests/pooler/run.py --listen none tests/races -k slots -x       any of pytest's arguments

Starts a PostgreSQL and a PgBouncer of its own. Ends with pytest's exit code.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("queues", "tasks", "concurrency", "uniqueness", "batches", "events", "streams", "races", "worker")
REAL = ("batches", "burst", "events", "hygiene", "killed", "poison", "queues", "recycling", "stopping", "streams")
CORE = [
    *(f"tests/{folder}" for folder in FOLDERS),
    *(f"tests/processes/test_{name}.py" for name in (*REAL, "suspended", "timeouts")),
    "tests/pooler/through.py",
]
SHORT = {
    "direct": ["tests/pooler/through.py"],
    "none": [
        "tests/pooler/through.py",
        *(f"tests/races/test_{name}.py" for name in ("fencing", "slots", "ranges")),
        "tests/processes/test_killed.py",
    ],
}


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", choices=("direct", "none"), default="direct")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--pool", type=int, default=20, help="connections of the pooler to each database")
    options, rest = parser.parse_known_args()

    sys.path.insert(0, str(ROOT))
    os.environ["PGBUS_EMBEDDED"] = "0"  # the settings start no server: this does
    from django_pgbus.embedded import EmbeddedPostgres
    from tests.pooler.bouncer import in_front_of, is_installed
    from tests.settings import SERVER, place_for_a_run

    if not is_installed():
        print("There is no PgBouncer here: apt-get install pgbouncer.", file=sys.stderr)
        return 2
    server = EmbeddedPostgres(place_for_a_run() / f"pgbus-pooled-{os.getpid()}", keep=False)
    server.start(**SERVER)
    chosen = SHORT[options.listen] if options.short else CORE
    if any(Path(ROOT, word.split("::")[0]).exists() for word in rest):
        chosen = []
    with (
        tempfile.TemporaryDirectory(prefix="pgbus-pooled-") as folder,
        in_front_of(server.database(), pool=options.pool) as bouncer,
    ):
        environment = {
            **os.environ,
            "DATABASE_URL": bouncer.url(),
            "PGBUS_TEST_DIRECT_URL": server.url(),
            "PGBUS_TEST_LISTEN": options.listen,
        }
        pytest = ["-m", "pytest", "-p", "tests.pooler.plugin", "--reuse-db", "-o", f"cache_dir={folder}"]
        return subprocess.call([sys.executable, *pytest, *chosen, *rest], cwd=ROOT, env=environment)


if __name__ == "__main__":
    sys.exit(main())
