"""The whole report of a record as one HTML file that needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from django.template import Context, Engine
from django.utils.safestring import SafeString, mark_safe

from tests.benchmarks.estimate import TAKES
from tests.benchmarks.goals import GOALS, met, rows
from tests.benchmarks.notes import ASPECTS, NOTES
from tests.benchmarks.page import plots, reading
from tests.benchmarks.record import Record

TEMPLATES: Final = Path(__file__).parent / "templates"
VERDICTS: Final = {True: "met", False: "missed", None: "unmeasured"}


def write(record: Record, place: Path) -> None:
    """Write the report of a record."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(page(record), encoding="utf-8")


def page(record: Record) -> str:
    """Return the report; all of its text is escaped by the template."""
    engine = Engine(dirs=[str(TEMPLATES)])
    told = {
        "caveats": reading.caveats(record),
        "goals": [goal_of(record, name) for name in GOALS],
        "systems": [system_of(record, name) for name in reading.peers(record)],
        "environment": reading.environment(record),
        "parts": [part_of(record.parts[name]) for name in TAKES if name in record.parts],
        "failed": list(record.failed.items()),
        "budget": reading.budget(record),
        "steps": reading.steps(record),
    }
    # Strings only: nothing here is to be put into the form of a language, and no settings are needed.
    return str(engine.get_template("report.html").render(Context(told, use_l10n=False, use_tz=False)))


def goal_of(record: Record, name: str) -> dict[str, Any]:
    """Return a goal with its figures."""
    wanted = GOALS[name]
    return {
        "name": name,
        "what": wanted.what,
        "bench": wanted.bench,
        "measured": wanted.bench in record.parts,
        "verdict": VERDICTS[met(name, record.goals)],
        "rows": [
            {
                "what": row.what,
                "wanted": row.wanted,
                "reached": row.reached,
                "verdict": row.verdict,
                "state": VERDICTS[row.met],
            }
            for row in rows(name, record.goals)
        ],
    }


def system_of(record: Record, name: str) -> dict[str, Any]:
    """Return what is known of a system."""
    notes = NOTES[name]
    return {
        "title": notes.title,
        "version": reading.version(record, name),
        "notes": [(what, code(getattr(notes, aspect))) for aspect, what in ASPECTS.items()],
    }


def part_of(part: dict[str, Any]) -> dict[str, Any]:
    """Return what is told of one benchmark."""
    blocks = list(reading.fairness(part["bench"]))
    heading = blocks[0][1].rstrip(".")
    settings = {
        name: value for name, value in part["settings"].items() if name not in ("postgres", "redis", "versions")
    }
    return {
        "name": part["bench"],
        "heading": heading,
        "blocks": [(kind, code(text) if kind == "p" else text) for kind, text in blocks[1:]],
        "plots": [mark_safe(plot) for plot in plots.of(part) if plot],
        "by_system": reading.by_system(part),
        "ratios": reading.ratios(part),
        "runs": reading.all_runs(part),
        "settings": [(name.replace("_", " "), str(value)) for name, value in settings.items()],
        "checks": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in part["checks"].items()),
        "measured": f"{part['measured'][:16].replace('T', ' ')} UTC in {part['took'] / 60:.1f} minutes at {part['commit']}",
    }


def code(text: str) -> SafeString:
    """Return text whose words in backquotes are code; the rest of it is escaped."""
    from django.utils.html import escape

    return mark_safe(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)))
