"""
Make the evidence anew: `python3 dev.py evidence [part ...]`, all of it without a part.

    guards      take every guard of docs/evidence/*.toml away, one at a time, and see its tests fail
    sabotages   the same with those of the chaos run: their tests, then their chaos
    chaos       ten minutes of all faults (--minutes for another time)
    benchmarks  against the peers that are installed
    page        write docs/evidence.md from what is recorded
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable

from tests.evidence.places import ROOT
from tests.evidence.records import CHAOS, put_stamp, stamp

Part = Callable[[argparse.Namespace], int]


def guards(given: argparse.Namespace) -> int:
    """Take guards away and return whether a test missed one."""
    return _run("-m", "tests.evidence.break_guards")


def sabotages(given: argparse.Namespace) -> int:
    """Run the sabotages, each with its tests and with its chaos, and return whether one was missed."""
    command = ("tests/chaos/run.py", "--sabotage", "all", "--json")
    missed = _run(*command, "--tests") or _run(*command)
    put_stamp("sabotages")
    return missed


def chaos(given: argparse.Namespace) -> int:
    """Run the chaos and keep what it says last; return whether a check found something."""
    command = [sys.executable, "tests/chaos/run.py", "--minutes", str(given.minutes), "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        last = ""
        for line in running.stdout:
            last = line if line.startswith("{") else last
            if not line.startswith("{"):
                print(line, end="", flush=True)
    if last:
        CHAOS.write_text(json.dumps({**json.loads(last), **stamp()}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return running.returncode


def benchmarks(given: argparse.Namespace) -> int:
    """Measure against the peers."""
    return _run("tests/benchmarks/run.py", "all", "--html", "docs/_build/benchmarks.html")


def page(given: argparse.Namespace) -> int:
    """Write the pages."""
    return _run("docs/generate.py")


PARTS: dict[str, Part] = {
    "guards": guards,
    "sabotages": sabotages,
    "chaos": chaos,
    "benchmarks": benchmarks,
    "page": page,
}


def main(arguments: list[str]) -> int:
    """Do the parts that are asked for, the page last, even after one that failed; return the first bad exit code."""
    parser = argparse.ArgumentParser(
        prog="dev.py evidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", choices=[*PARTS, []], help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=10.0, help="of chaos")
    given = parser.parse_args(arguments)
    wanted = [part for part in PARTS if part in given.parts or not given.parts or part == "page"]
    worst = 0
    for part in wanted:
        print(f"== {part}", flush=True)
        worst = PARTS[part](given) or worst
    return worst


def _run(*command: str) -> int:
    return subprocess.call([sys.executable, *command], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
