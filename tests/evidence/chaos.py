"""What ten minutes of faults came to, as recorded."""

from __future__ import annotations

import json
from typing import Any

from tests.evidence.records import CHAOS
from tests.evidence.words import of_record, table

INTRO = """## Ten minutes of chaos

Real workers against a real PostgreSQL, with all faults at once: processes killed, suspended and stopped, the server
restarted, sessions ended, connections cut and delayed, clocks that are wrong, deploys. Every enqueue, start, end and
commit is recorded, and checks join the records afterwards."""


def chaos() -> str:
    """Return the section; it says so where nothing is recorded."""
    if not CHAOS.exists():
        return f"{INTRO}\n\nNot recorded yet: `python tests/chaos/run.py --minutes 10 --json`."
    found: dict[str, Any] = json.loads(CHAOS.read_text(encoding="utf-8"))
    wrong = sum(found["checks"].values())
    verdict = "All checks found nothing." if not wrong else f"**{wrong} findings**; see the table."
    settings = ", ".join(f"`{name}` {value}" for name, value in sorted(found["settings"].items()))
    of = of_record(found) if "commit" in found else "of an unknown commit"
    parts = [
        f"{INTRO}\n\n{verdict} {found['seconds']:.0f} s ({of}). {settings}.",
        _counts("Fault", "How often", found["faults"]),
        _counts("Workload", "How many", found["workload"]),
        _counts("Check", "Found", found["checks"]),
    ]
    if found.get("wrong"):
        parts.append("\n".join(f"- {line}" for line in found["wrong"]))
    return "\n\n".join(parts)


def _counts(what: str, number: str, of: dict[str, Any]) -> str:
    return table((what, number), [(name.replace("_", " "), _number(value)) for name, value in of.items()])


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
