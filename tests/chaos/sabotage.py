"""What a sabotage is: one guard of the product that is removed, and what has to go red without it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.shadow import Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """Options of `tests/chaos/run.py` under which one of these checks goes red, and why it does."""

    options: tuple[str, ...]
    checks: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotage:
    """
    One guard, removed.

    `guard` says what is gone, `rule` is its number in the semantics, `tests` are ids of pytest of which each has to fail.
    """

    name: str
    guard: str
    rule: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    chaos: Chaos | None = None

    @property
    def statement(self) -> str:
        """Return where the guard stands."""
        return ", ".join(dict.fromkeys(edit.at for edit in self.edits))
