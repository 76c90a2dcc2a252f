"""What the minutes of chaos came to, as recorded, and what may be said of them elsewhere on the page."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.evidence.places import ROOT
from tests.evidence.records import CHAOS
from tests.evidence.words import code, of_record, table

SHOWN: Final = 3  # findings of a check
README: Final = ROOT / "tests" / "chaos" / "README.md"

INTRO = """## The chaos run

Real workers against a real PostgreSQL (fsync on), with faults drawn from a shuffled deck: processes killed, suspended and
stopped, the server restarted, sessions ended, connections cut and delayed, clocks that are wrong, deploys. Several last at
once. Every enqueue, start, end and commit is recorded, and [checks](#names-of-the-checks) join the records afterwards."""

NONE = "**Not recorded yet**, so nothing on this page rests on it: `python tests/chaos/run.py --minutes 10 --json`."


def recorded() -> dict[str, Any] | None:
    """Return what the run came to, None if there is no record."""
    found: dict[str, Any] | None = json.loads(CHAOS.read_text(encoding="utf-8")) if CHAOS.exists() else None
    return found


def red(found: dict[str, Any]) -> dict[str, int]:
    """Return how much each check found that found something."""
    return {name: number for name, number in found["checks"].items() if number}


def section() -> str:
    """Return the section; it says so where nothing is recorded, and what was red."""
    found = recorded()
    if found is None:
        return f"{INTRO}\n\n{NONE}\n\n{_names()}"
    wrong = red(found)
    settings = ", ".join(f"`{name}` {_number(value)}" for name, value in sorted(found["settings"].items()))
    of = of_record(found) if "commit" in found else "of an unknown commit"
    verdict = f"**Red: {', '.join(code(name) for name in wrong)}.** What was found stands below." if wrong else "Green."
    parts = [
        f"{INTRO}\n\n{verdict} {found['seconds']:.0f} s from start to quiet ({of}). {settings}.",
        _counts("Fault", "How often", found["faults"]),
        _counts("Workload", "How many", found["workload"]),
        table(("Check", "Found"), [(code(name), _found(number)) for name, number in found["checks"].items()]),
        *(_wrong(name, found.get("wrong", {}).get(name, ())) for name in wrong),
    ]
    return "\n\n".join([*(part for part in parts if part), _names()])


def shown(what: str, fault: str | None = None) -> str:
    """Return by which chaos this is shown, if it is: `what` is said of a run, `fault` has to be in it."""
    found = recorded()
    if found is None or (fault and not found["faults"].get(fault)):
        return f"no test shows {what}, and no [chaos run](#the-chaos-run) that would is recorded"
    ended = "which was **red**" if red(found) else "which was green"
    return f"only the recorded [chaos run](#the-chaos-run), {ended}, has {what}"


def of_random_tests() -> str:
    """Return what the tests that make their cases at random, and the chaos, have found."""
    found = recorded()
    if found is None:
        return "; the chaos run, which would be the widest of them, is not recorded"
    if wrong := red(found):
        return f"; the recorded chaos run was **red** ({', '.join(code(name) for name in wrong)})"
    return "; the recorded chaos run found nothing"


def _names() -> str:
    """Return what each check is red for, from the README of the chaos."""
    lines = README.read_text(encoding="utf-8").splitlines()
    start = lines.index("| check | red if |") + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        names, _, what = line.strip("| ").partition(" | ")
        rows.append((", ".join(code(name) for name in names.split(", ")), what))
    return f"### Names of the checks\n\n{table(('Check', 'Red if'), rows)}"


def _wrong(name: str, lines: list[str]) -> str:
    more = f"\n- and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return f"{code(name)} found:\n\n" + "\n".join(f"- {code(line)}" for line in lines[:SHOWN]) + more


def _counts(what: str, number: str, of: dict[str, Any]) -> str:
    return table((what, number), [(name.replace("_", " "), _number(value)) for name, value in of.items()])


def _found(number: int) -> str:
    return f"**{number:,}**" if number else "0"


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_number(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
