"""Write the report of a record, and the page of the documentation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.benchmarks.page import html, markdown
from tests.benchmarks.record import Record


def main() -> int:
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks.page", description=__doc__)
    made.add_argument("record", type=Path, help="the file that `run.py all --json FILE` wrote")
    made.add_argument("--html", type=Path, metavar="FILE", help="the whole report")
    made.add_argument("--docs", action="store_true", help="docs/operations/benchmarks.md, its record and the report")
    asked = made.parse_args()
    if not asked.record.exists():
        raise SystemExit(f"There is no {asked.record}.")
    record = Record.read(asked.record)
    if asked.html:
        html.write(record, asked.html)
    if asked.docs:
        markdown.write(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
