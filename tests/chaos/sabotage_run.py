"""
Seeing what goes red without a guard: each sabotage in a copy of the repository.

    python tests/chaos/run.py --sabotage NAME            the chaos that shows it; 0 only if an expected check is red
    python tests/chaos/run.py --sabotage NAME --tests    the tests that show it; 0 only if each of them is red
    python tests/chaos/run.py --sabotage all [--tests]   all of them, with a table at the end

`--json` also writes what was seen into docs/evidence/sabotages.json, beside what stands there of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from django_pgbus.embedded import EmbeddedPostgres
from tests.chaos.sabotage import Sabotage
from tests.chaos.sabotages import SABOTAGES
from tests.chaos.shadow import ROOT, Shadow, shadow

RECORD: Final = ROOT / "docs" / "evidence" / "sabotages.json"
LONGEST: Final = 1800.0  # seconds of one command
PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_django.plugin", "-p", "pytest_timeout")
FEW_PLUGINS: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the others take longer to import than most tests to run
BROKEN: Final = re.compile(r"[\[-]fails ")  # a run of a test with a rule that it breaks itself says nothing here
LINE: Final = 300  # characters of what is kept of a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Whether a test or a check went red, and the line that says why."""

    name: str
    red: bool
    line: str


# --- tests --------------------------------------------------------------------------------------------


def run_tests(sabotage: Sabotage, copy: Shadow | None = None) -> list[Seen]:
    """Run the tests of a sabotage in the copy, or in one of its own, and return what each came to."""
    if copy is None:
        with shadow() as made:
            return run_tests(sabotage, made)
    report = copy.root / "report.xml"
    report.unlink(missing_ok=True)
    # The tables are those of the run before, unless it is they that are sabotaged.
    anew = any("/migrations/" in edit.at for edit in sabotage.edits)
    tables = {"PGBUS_TEST_SUFFIX": "sabotaged" if anew else "sabotages"}
    options = [*PYTEST, "--create-db" if anew else "--reuse-db", f"--junitxml={report}"]
    with copy.without(sabotage.edits):
        ended = copy.run([*options, *sabotage.tests], timeout=LONGEST, **FEW_PLUGINS, **tables)
    cases = _cases(report) if report.exists() else {}
    return [_of_test(test, cases, ended.stdout) for test in sabotage.tests]


def share_a_server() -> None:
    """Let all runs of tests use one server, where none is given: to start one takes longer than most of them."""
    if "DATABASE_URL" not in os.environ and "PGBUS_TEST_PGDATA" not in os.environ:
        folder = Path(tempfile.gettempdir(), f"pgbus-sabotages-{os.getpid()}")
        EmbeddedPostgres(folder, keep=False).start(fsync="off", max_prepared_transactions="10")
        os.environ["PGBUS_TEST_PGDATA"] = str(folder)  # of which nothing is left once this process has ended


def _cases(report: Path) -> dict[str, str | None]:
    """Return by its id, of each test that ran, why it failed; None if it passed. One that could not begin is left out."""
    found: dict[str, str | None] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("error") is not None or case.find("skipped") is not None:
            continue
        failure = case.find("failure")
        file = case.get("classname", "").replace(".", "/") + ".py"
        found[f"{file}::{case.get('name')}"] = None if failure is None else _reason(failure)
    return found


def _reason(failure: ElementTree.Element) -> str:
    """Return where a test failed and with what, in a line."""
    places = re.findall(r"^(tests/\S+\.py:\d+): ", failure.text or "", re.MULTILINE)
    said = " ".join(failure.get("message", "").split())
    return (f"{places[-1]}: {said}" if places else said)[:LINE]


def _of_test(test: str, cases: dict[str, str | None], output: str) -> Seen:
    mine = {id: why for id, why in cases.items() if id == test or (id.startswith(f"{test}[") and not BROKEN.search(id))}
    if not mine:
        return Seen(name=test, red=False, line=f"It did not run: {' '.join(output.split())[-LINE:]}")
    red = [why for why in mine.values() if why is not None]
    return Seen(name=test, red=bool(red), line=red[0] if red else "It passed.")


# --- chaos --------------------------------------------------------------------------------------------


def run_chaos(sabotage: Sabotage, copy: Shadow) -> tuple[list[Seen], float]:
    """
    Run the chaos of a sabotage in the copy; return which checks went red and how many seconds it took.

    An expected check stands first, green if none of them is red.
    """
    assert sabotage.chaos is not None
    began = time.monotonic()
    with copy.without(sabotage.edits):
        ended = copy.run(["tests/chaos/run.py", *sabotage.chaos.options, "--json"], timeout=LONGEST)
    red = dict(re.findall(r"^RED ([^:\n]+): (.*)$", ended.stdout, re.MULTILINE))
    expected = [check for check in sabotage.chaos.checks if check in red]
    seen = [Seen(name=check, red=True, line=red[check][:LINE]) for check in expected]
    if not expected:
        said = " ".join(ended.stdout.split())[-LINE:]
        why = f"Red: {', '.join(red) or 'nothing'}. Exit code {ended.returncode}: {said}"
        seen = [Seen(name=" or ".join(sabotage.chaos.checks), red=False, line=why)]
    seen += [Seen(name=check, red=True, line=why[:LINE]) for check, why in red.items() if check not in expected]
    return seen, time.monotonic() - began


# --- the record ---------------------------------------------------------------------------------------


def record(results: dict[str, dict[str, Any]]) -> None:
    """Write what was seen of these, and keep what is known of the others that are still there."""
    known = {one["name"]: one for one in json.loads(RECORD.read_text())} if RECORD.exists() else {}
    rows = []
    for name, sabotage in SABOTAGES.items():
        about = {"name": name, "rule": sabotage.rule, "guard": sabotage.guard, "statement": sabotage.statement}
        rows.append({"tests": [], "chaos": None, **known.get(name, {}), **about, **results.get(name, {})})
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


# --- the command --------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for and return the exit code: 0 if all that has to be red is."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sabotage", required=True, type=_chosen, metavar="NAME", help="or NAME,NAME or all")
    parser.add_argument("--tests", action="store_true", help="its tests, not its chaos")
    parser.add_argument("--json", action="store_true", help=f"write what was seen into {RECORD.relative_to(ROOT)}")
    asked = parser.parse_args(arguments)
    chosen = asked.sabotage
    if not asked.tests:
        chosen = [sabotage for sabotage in chosen if sabotage.chaos is not None]
    table = []
    if asked.tests:
        share_a_server()
    with shadow() as copy:
        for sabotage in chosen:
            seen, entry = _tests(sabotage, copy) if asked.tests else _chaos(sabotage, copy)
            _tell(sabotage, seen)
            table += [(sabotage.name, one) for one in (seen if asked.tests else seen[:1])]
            if asked.json:
                record({sabotage.name: entry})
    if len(chosen) > 1:
        _print_table(table)
    return int(not table or any(not one.red for _, one in table))


def _tests(sabotage: Sabotage, copy: Shadow) -> tuple[list[Seen], dict[str, Any]]:
    seen = run_tests(sabotage, copy)
    return seen, {"tests": [{"id": one.name, "red": one.red, "line": one.line} for one in seen]}


def _chaos(sabotage: Sabotage, copy: Shadow) -> tuple[list[Seen], dict[str, Any]]:
    seen, seconds = run_chaos(sabotage, copy)
    first = seen[0]
    return seen, {"chaos": {"check": first.name, "red": first.red, "line": first.line, "seconds": round(seconds)}}


def _chosen(names: str) -> list[Sabotage]:
    if names == "all":
        return list(SABOTAGES.values())
    if unknown := [name for name in names.split(",") if name not in SABOTAGES]:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(SABOTAGES)}")
    return [SABOTAGES[name] for name in names.split(",")]


def _tell(sabotage: Sabotage, seen: Sequence[Seen]) -> None:
    print(f"{sabotage.name}: {sabotage.guard} ({sabotage.rule}, {sabotage.statement})", flush=True)
    for one in seen:
        print(f"  {'red  ' if one.red else 'GREEN'} {one.name}\n        {one.line}", flush=True)


def _print_table(table: Sequence[tuple[str, Seen]]) -> None:
    width = max(len(name) for name, _ in table)
    for name, one in table:
        print(f"{name:{width}}  {'red' if one.red else 'GREEN':5}  {one.name.rpartition('/')[2]}")
    print(f"{sum(one.red for _, one in table)} of {len(table)} are red.")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
