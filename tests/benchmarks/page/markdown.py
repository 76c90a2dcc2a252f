"""The page of the documentation: what a record says in short. Without a record it says that nothing is claimed."""

from __future__ import annotations

import re
from typing import Any, Final

from django.template import Context, Engine

from tests.benchmarks import estimate
from tests.benchmarks.goals import GOALS, met, rows
from tests.benchmarks.notes import ASPECTS, NOTES
from tests.benchmarks.page import html, reading
from tests.benchmarks.record import ROOT, Record

PAGE: Final = ROOT / "docs" / "operations" / "benchmarks.md"
RECORD: Final = PAGE.with_suffix("") / "record.json"
REPORT: Final = PAGE.with_suffix("") / "report.html"
SYSTEMS: Final = ("pgbus", "pgqueuer", "procrastinate", "oban", "djtasksdb", "celery", "refskip")
SHOWN: Final = {
    "jobs": "Draining no-op tasks, one worker process",
    "latency": "From the call that enqueues to the start, an idle worker",
    "enqueue": "Enqueueing, one process",
    "snapshot": "Draining while somebody holds a snapshot",
    "depth": "Draining beside a million rows",
    "idle": "A worker with nothing to do",
}
STATES: Final = {True: "met", False: "**not met**", None: "not measured"}


def write(record: Record) -> None:
    """Write the page, the record it is of in short, and the whole report beside it."""
    Record({name: reduced(part) for name, part in record.parts.items()}, record.failed).write(RECORD)
    html.write(record, REPORT)
    PAGE.write_text(page(Record.read(RECORD)), encoding="utf-8")


def reduced(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part without the statements, which are for who looks into one run."""
    settings = {name: value for name, value in part["settings"].items() if name != "statements"}
    runs = [
        {**run, "drain": {name: value for name, value in run["drain"].items() if name != "statements"}}
        if "drain" in run
        else run
        for run in part["runs"]
    ]
    return {**part, "settings": settings, "runs": runs}


def page(record: Record) -> str:
    """Return the page."""
    told = {
        "measured": bool(record.parts),
        "caveats": [_escaped(caveat) for caveat in reading.caveats(record)],
        "environment": _table(reading.Table(["", ""], reading.environment(record))),
        "goals": _table(_goals(record)),
        "missed": ", ".join(name for name in GOALS if met(name, record.goals) is False),
        "budget": _table(reading.budget(record)),
        "steps": _table(reading.steps(record)),
        "beside": [
            (what, _table(table))
            for bench, what in SHOWN.items()
            if bench in record.parts and (table := reading.by_system(record.parts[bench]))
        ],
        "systems": [
            {
                "title": NOTES[name].title,
                "version": _escaped(reading.version(record, name)) or "not measured",
                "notes": [(what, getattr(NOTES[name], aspect)) for aspect, what in ASPECTS.items()],
            }
            for name in reading.peers(record) or SYSTEMS
        ],
        "minutes": f"{estimate.whole() / 60:.0f}",
    }
    engine = Engine(dirs=[str(html.TEMPLATES)], autoescape=False)
    text = engine.get_template("benchmarks.md").render(Context(told, autoescape=False, use_l10n=False, use_tz=False))
    return re.sub(r"\n{3,}", "\n\n", str(text)).strip() + "\n"


def _goals(record: Record) -> reading.Table:
    cells: list[list[str]] = []
    for name, wanted in GOALS.items():
        cells.append([f"**{name}**", f"**{wanted.what}**", "", "", STATES[met(name, record.goals)]])
        for row in rows(name, record.goals):
            cells.append(["", row.what, row.wanted, row.reached, STATES[row.met]])
    return reading.Table(["Goal", "What", "Wanted", "Reached", "State"], cells)


def _table(table: reading.Table | None) -> str:
    if table is None:
        return ""
    rows = [table.heads, ["---"] * len(table.heads), *table.rows]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows)


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")
