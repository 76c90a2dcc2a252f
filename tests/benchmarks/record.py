"""
What all benchmarks found, in one file: written after each of them, so that an interrupted call leaves what it had.

    {"bench": "all", "goals": {...}, "failed": {...}, "parts": {"jobs": {...}, ...}}

A part is the object that one benchmark prints, with when, how long, from which commit and on what machine it was measured.
One that is measured again takes the place of the old one; one that fails leaves it, and says so in `failed`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[2]


@dataclass(slots=True)
class Record:
    """The parts by the name of their benchmark, and why others failed."""

    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, place: Path) -> Self:
        """Return what a file has, nothing where there is none."""
        if not place.exists():
            return cls()
        found = json.loads(place.read_text(encoding="utf-8"))
        return cls(found["parts"], found["failed"])

    def add(self, part: Mapping[str, Any], took: float, environment: Mapping[str, Any]) -> None:
        """Take in what a benchmark found."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        measured = {"measured": now, "took": round(took, 1), "commit": commit(), "environment": dict(environment)}
        # Through JSON, so that what is shown now is what is read later.
        self.parts[part["bench"]] = json.loads(json.dumps({**part, **measured}, default=str))
        self.failed.pop(part["bench"], None)

    def fail(self, name: str, error: BaseException) -> None:
        """Note why a benchmark found nothing."""
        self.failed[name] = f"{type(error).__name__}: {error}"[:2000]

    @property
    def goals(self) -> dict[str, dict[str, Any]]:
        """Return the goals of all parts, by their names."""
        return {name: goal for part in self.parts.values() for name, goal in part["goals"].items()}

    @property
    def faults(self) -> list[str]:
        """Return what must not be, in words: what failed, and each check that is not 0."""
        found = [f"{name} failed" for name in self.failed]
        for name, part in self.parts.items():
            found += [f"{name}: {peer} failed" for peer in part["settings"].get("failed", ())]
            found += [f"{name}: {check} is {value}, not 0" for check, value in part["checks"].items() if value]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the form of the file."""
        return {"bench": "all", "goals": self.goals, "failed": self.failed, "parts": self.parts}

    def write(self, place: Path) -> None:
        """Replace a file in one step."""
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}.new")
        beside.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")
        beside.rename(place)


def commit() -> str | None:
    """Return the commit that is checked out, with a plus where files differ from it; None outside of git."""
    try:
        found = _git("rev-parse", "--short=12", "HEAD")
        return found + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, check=True, text=True, env=environment
    )
    return done.stdout.strip()
