"""What a benchmark found, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.figures import is_number, medians, rounded


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be reached; None in `reached` means that it could not be measured, and nothing is claimed."""

    reached: float | None
    goal: float
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Return whether it is reached."""
        if self.reached is None:
            return None
        return self.reached <= self.goal if self.at_most else self.reached >= self.goal

    def as_dict(self) -> dict[str, Any]:
        """Return the form of the JSON."""
        return {"reached": self.reached, "goal": self.goal, "at_most": self.at_most, "met": self.met}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark, all runs of it."""

    bench: str
    settings: dict[str, Any]
    runs: Sequence[Mapping[str, Any]]
    ratios: dict[str, float | None] = field(default_factory=dict)
    goals: dict[str, Goal] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the form of the JSON."""
        return {
            "bench": self.bench,
            "settings": self.settings,
            "runs": self.runs,
            "median": medians(self.runs),
            "ratios": self.ratios,
            "goals": {name: goal.as_dict() for name, goal in self.goals.items()},
            "checks": self.checks,
        }

    def as_json(self) -> str:
        """Return it in one line."""
        return json.dumps(self.as_dict(), default=str)

    def as_table(self) -> str:
        """Return it in lines for people."""
        lines = [f"{self.bench}   " + "  ".join(f"{k}={v}" for k, v in self.settings.items() if not _is_long(v)), ""]
        numbered = [{k: v for k, v in run.items() if is_number(v)} for run in self.runs]
        for name, middle in medians(numbered).items():
            each = "  ".join(_short(run.get(name)) for run in numbered)
            lines.append(f"  {name:<34}{_short(middle):>12}   {each}")
        lines += [f"  {name:<34}{_short(ratio):>12}" for name, ratio in self.ratios.items()]
        lines.append("")
        for name, goal in self.goals.items():
            verdict = {True: "met", False: "NOT MET", None: "not measured"}[goal.met]
            sign = "<=" if goal.at_most else ">="
            lines.append(f"  {name:<34}{_short(goal.reached):>12}   {sign} {goal.goal:g}   {verdict}")
        lines.append("  checks: " + ", ".join(f"{name} {value}" for name, value in self.checks.items()))
        return "\n".join(lines)


def _short(value: Any) -> str:
    return "-" if value is None else f"{rounded(value):,}"


def _is_long(value: Any) -> bool:
    return isinstance(value, (dict, list)) and len(str(value)) > 60
