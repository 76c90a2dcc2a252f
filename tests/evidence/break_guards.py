"""
Take every guard of `docs/evidence/*.toml` away, one at a time, and see its tests fail.

    python -m tests.evidence.break_guards [part of a rule's name ...]

writes `docs/evidence/guards.json`. Without arguments all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.sabotage import Sabotage
from tests.chaos.sabotage_run import run_tests
from tests.evidence.guards import Breakable, all_guards
from tests.evidence.records import GUARDS, Record, stamp
from tests.evidence.rules import ROOT

TIMEOUT = 100  # seconds that one test may take: without its guard it may wait for ever
Red = dict[str, str]


def main(arguments: list[str]) -> int:
    """Break them and write the record; return 1 if a guard is missed by a test that should see it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", help="parts of the names of rules")
    only = parser.parse_args(arguments).rules
    os.environ.setdefault("PGBUS_TEST_SUFFIX", "guards")
    record, now, missed = Record.read(GUARDS), stamp(), 0
    guards = [one for one in all_guards() if not only or any(part in one.name for part in only)]
    here = [one for one in guards if not one.needs_a_copy]
    for found in (in_this_tree(here) if here else {}, in_a_copy([one for one in guards if one.needs_a_copy])):
        for name, red in found.items():
            guard = next(one for one in guards if one.name == name)
            unseen = guard.tests - red.keys() if guard.all_must else frozenset() if red else guard.tests
            missed += bool(unseen)
            print(f"{name}: {guard.guard.edits[0].at}")
            for test, line in red.items():
                print(f"    {test.rpartition('::')[2]}: {line}")
            for test in unseen:
                print(f"    NOT SEEN by {test.rpartition('::')[2]}")
            record.keep(name, {**entry(guard, red), **now})
    if not only:
        record.drop(set(record.of) - {one.name for one in guards})
    record.write(GUARDS)
    print(f"{len(guards)} guards, {missed} of them missed.")
    return 1 if missed else 0


def in_this_tree(guards: Sequence[Breakable]) -> dict[str, Red]:
    """Return what fails without each of these guards, taken away while the program runs."""
    tests = sorted({test for guard in guards for test in guard.tests})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.evidence.broken", "-p", "no:cacheprovider"]
        subprocess.run(
            [*command, f"--timeout={TIMEOUT}", "--tb=no", "--no-header", "-r", "N", *tests],
            cwd=ROOT,
            env={
                **os.environ,
                "PGBUS_BROKEN_GUARDS": json.dumps([guard.name for guard in guards]),
                "PGBUS_BROKEN_REPORT": str(report),
            },
            check=False,
        )
        found: dict[str, Red] = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    return {guard.name: found.get(guard.name, {}) for guard in guards}


def in_a_copy(guards: Sequence[Breakable]) -> dict[str, Red]:
    """Return what fails without each of these guards, taken away in the files of a copy of the tree."""
    return {
        guard.name: {seen.name: seen.line for seen in run_tests(_as_sabotage(guard)) if seen.red} for guard in guards
    }


def _as_sabotage(guard: Breakable) -> Sabotage:
    return Sabotage(
        name=guard.name, guard=guard.rule.says, rule="", edits=guard.guard.edits, tests=tuple(sorted(guard.tests))
    )


def entry(guard: Breakable, red: Red) -> dict[str, object]:
    """Return what is kept: what was changed, and what went red."""
    return {
        "edits": [[edit.at, edit.old, edit.new] for edit in guard.guard.edits],
        "red": [[test, red[test]] for test in sorted(red)],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
