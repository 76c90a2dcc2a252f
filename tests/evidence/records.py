"""What was recorded: guards that were taken away, sabotages, the ten minutes of chaos; each with its commit and date."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.evidence.guards import Breakable
from tests.evidence.places import ROOT
from tests.evidence.rules import SOURCES

GUARDS: Final = SOURCES / "guards.json"
SABOTAGES: Final = SOURCES / "sabotages.json"
CHAOS: Final = SOURCES / "chaos.json"
STAMPS: Final = SOURCES / "stamps.json"  # of records that do not say themselves of when they are


class Record:
    """Entries by name, in a file that is sorted, so that a change is a change of the lines it concerns."""

    def __init__(self, of: dict[str, Any]) -> None:
        self.of = of

    @classmethod
    def read(cls, file: Path) -> Record:
        """Return what is recorded; nothing where there is no file."""
        return cls(json.loads(file.read_text(encoding="utf-8")) if file.exists() else {})

    def keep(self, name: str, entry: dict[str, object]) -> None:
        """Replace an entry."""
        self.of[name] = entry

    def drop(self, names: set[str]) -> None:
        """Forget entries of what is not there any more."""
        for name in names:
            del self.of[name]

    def write(self, file: Path) -> None:
        """Write it."""
        file.write_text(json.dumps(self.of, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")

    def of_guard(self, guard: Breakable) -> dict[str, Any] | None:
        """Return the entry of a guard, None if it was never taken away, or was another one then."""
        entry: dict[str, Any] | None = self.of.get(guard.name)
        edits = [[edit.at, edit.old, edit.new] for edit in guard.guard.edits]
        return entry if entry is not None and entry["edits"] == edits else None


def sabotages() -> dict[str, dict[str, Any]]:
    """Return what was recorded of the sabotages, by name."""
    found = json.loads(SABOTAGES.read_text(encoding="utf-8")) if SABOTAGES.exists() else []
    return {entry["name"]: entry for entry in found}


def stamped(name: str) -> dict[str, str]:
    """Return of which commit and date a record is, as far as that is known."""
    known: dict[str, str] | None = Record.read(STAMPS).of.get(name)
    return known or {"commit": "unknown", "date": "of an unknown date"}


def put_stamp(name: str) -> None:
    """Note that a record is made now."""
    stamps = Record.read(STAMPS)
    stamps.keep(name, {**stamp()})
    stamps.write(STAMPS)


def stamp() -> dict[str, str]:
    """Return the commit and the date of what is recorded now."""
    commit = _git("rev-parse", "--short=10", "HEAD")
    changed = _git("status", "--porcelain", "--", "django_pgbus", "tests")
    return {
        "commit": f"{commit} with changes" if commit and changed else commit,
        "date": f"{datetime.now(tz=UTC):%Y-%m-%d}",
    }


def _git(*arguments: str) -> str:
    try:
        found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip()
