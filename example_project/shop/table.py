"""The closing table: its lines, and every sum that is off as a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django_pgbus.models import DeadLetter
from shop.jobs import last_error


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the table."""

    label: str
    value: str
    note: str = ""


@dataclass(slots=True)
class Closing:
    """The lines of the table, why the dead letters died, and what does not add up."""

    entries: list[Entry] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, label: str, value: int | Decimal, note: str = "") -> None:
        """Append a line."""
        self.entries.append(Entry(label, f"{value:,.2f}" if isinstance(value, Decimal) else f"{value:,}", note))

    def require(self, what: str, found: Any, wanted: Any) -> None:
        """Note a problem unless the two are equal."""
        if found != wanted:
            self.problems.append(f"{what}: {_short(found)}, but should be {_short(wanted)}")

    def require_at_most(self, what: str, found: int, limit: int) -> None:
        """Note a problem if there are more."""
        if found > limit:
            self.problems.append(f"{what}: {found}, but should be at most {limit}")


def why(letter: DeadLetter) -> str:
    """Return what died after how many attempts, and its last error, as one line."""
    runs = f"{letter.attempts} attempt{'s' if letter.attempts != 1 else ''}"
    return f"{letter.task.rpartition('.')[2]} #{letter.id}, {runs}: {last_error(letter)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(value)})"
