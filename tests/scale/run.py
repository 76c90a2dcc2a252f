"""
Measure every page of ours over a database with many rows.

    python tests/scale/run.py [--rows 1000000] [--compare] [--json] [--keep] [--slow]

Starts a PostgreSQL of its own on a disk (or uses that of DATABASE_URL, a superuser's), makes a database there, migrates,
seeds, visits each page as a superuser, and drops it again. Flags what takes more than a second or 25 queries, or answers
with another status than it has to: the exit code is 1. `--compare` does the same over a thousand rows first, and flags a
page that asks more often over many rows than over few.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

FEW: Final = 1000
# Reading is measured, so that the seeding need not be durable; the rest is as it comes, but for some memory.
SETTINGS: Final = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "maintenance_work_mem": "256MB",
}


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="finished, ready and delayed jobs each")
    parser.add_argument("--compare", action="store_true", help="count the queries over a thousand rows too")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--keep", action="store_true", help="leave the databases, and say where they are")
    parser.add_argument("--again", action="store_true", help="use the databases that --keep has left, of DATABASE_URL")
    parser.add_argument("--slow", action="store_true", help="print the slowest statement of each page")
    options = parser.parse_args()
    sizes = sorted({*([FEW] if options.compare else []), options.rows})
    found = {}
    with server(keep=options.keep) as url:
        prepare(url)
        for rows in sizes:
            with database(url, rows, keep=options.keep, again=options.again):
                found[rows] = measured(rows, quiet=options.json)
    return report(found, options)


# --- the database -------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(*, keep: bool) -> Iterator[str]:
    """Yield the URL of a server."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    from django_pgbus.embedded import EmbeddedPostgres

    place = Path(os.environ.get("SCALE_FOLDER", tempfile.gettempdir())) / f"pgbus-scale-{secrets.token_hex(4)}"
    yield EmbeddedPostgres(place, keep=keep).start(**SETTINGS).url()
    if keep:
        print(f"The server's files are in {place}.", file=sys.stderr)


def prepare(url: str) -> None:
    """Set Django up."""
    os.environ["DATABASE_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.scale.settings"
    import django

    django.setup()


@contextlib.contextmanager
def database(url: str, rows: int, *, keep: bool, again: bool) -> Iterator[None]:
    """Make a database, migrate and fill it, and let Django use it meanwhile."""
    from django.core.management import call_command
    from django.db import connection

    from tests.scale.seed import seed

    name = f"pgbus_scale_{rows}"
    if not again:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            admin.execute(f"CREATE DATABASE {name}")
    connection.close()
    connection.settings_dict["NAME"] = name
    try:
        call_command("migrate", verbosity=0)
        if not again:
            began = time.monotonic()
            seed(rows)
            print(f"{rows:,} rows: seeded in {time.monotonic() - began:.0f} s, {_size(url, name)}", file=sys.stderr)
        yield
    finally:
        connection.close()
        if keep:
            print(f"Kept: {_at(url, name)}", file=sys.stderr)
        else:
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _size(url: str, name: str) -> str:
    with psycopg.connect(url) as admin:
        row = admin.execute("SELECT pg_size_pretty(pg_database_size(%s::name))", [name]).fetchone()
        return str(row and row[0])


def _at(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


# --- the figures --------------------------------------------------------------------------------------


def measured(rows: int, *, quiet: bool) -> dict[str, Any]:
    """Return the visits by page."""
    from tests.scale.measure import visit_all
    from tests.scale.tools import visit_tools

    found = {}
    for visit in chain(visit_all(), visit_tools()):
        found[visit.page] = visit
        if not quiet and visit.complaint:
            print(f"{rows:,} rows: {visit.page}: {visit.complaint}", file=sys.stderr)
    return found


def report(found: dict[int, dict[str, Any]], options: argparse.Namespace) -> int:
    """Print the table, and return the exit code."""
    many = found[options.rows]
    few = found.get(FEW, {}) if options.compare else {}
    grown = {name for name in few.keys() & many.keys() if few[name].queries != many[name].queries}
    wrong = {name for name, visit in many.items() if visit.complaint} | grown
    if options.json:
        pages = [
            {**visit.as_dict(), "queries_of_few": few[name].queries if name in few else None}
            for name, visit in many.items()
        ]
        print(json.dumps({"rows": options.rows, "pages": pages, "wrong": sorted(wrong)}, indent=2))
        return bool(wrong)
    width = max(map(len, many))
    print(f"{'page':<{width}}  status      ms     cpu  queries")
    for name, visit in many.items():
        of_few = f" ({few[name].queries} of few)" if name in grown else ""
        cpu = "" if visit.cpu is None else f"{visit.cpu:.0f}"
        figures = f"{visit.status:>6} {visit.milliseconds:>7.0f} {cpu:>7}  {visit.queries:>7}{of_few}"
        print(f"{name:<{width}}  {figures}  {visit.complaint}")
        if options.slow or visit.complaint:
            print(f"    {visit.slowest[:600]}")
    times = sorted(visit.milliseconds for visit in many.values())
    print(
        f"{len(many)} pages, {len(wrong)} of them wrong; median {times[len(times) // 2]:.0f} ms, slowest {times[-1]:.0f} ms"
    )
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
