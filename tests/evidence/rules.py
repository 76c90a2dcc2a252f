"""The promises and their rules, as `docs/evidence/*.toml` tells them, with the code that keeps each."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from django_pgbus.postgres import Statement
from django_pgbus.streams.log_statement import LogStatement
from tests.chaos.shadow import Edit
from tests.evidence.places import PACKAGE, ROOT, Place, place_of

SOURCES: Final = ROOT / "docs" / "evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """What keeps a rule: a statement or a function, and the clause of it that counts."""

    name: str
    clause: str

    @property
    def place(self) -> Place:
        """Return where it stands."""
        return place_of(self.name)

    @property
    def statement(self) -> Statement | None:
        """Return the statement, None if it is none. One about a log is about log 0."""
        found = None if self.place.is_code or "/" in self.name else imported(self.name)
        return found.of(0) if isinstance(found, LogStatement) else found if isinstance(found, Statement) else None

    @property
    def text(self) -> str:
        """Return the SQL of the statement, or the code, on one line."""
        return _line(self.place.text if self.statement is None else self.statement.sql)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Edits that take a guard away, and the tests of the rule that have to go red; none named: all."""

    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One sentence that a user can rely on."""

    slug: str
    says: str
    why: str
    kept_by: tuple[Keeper, ...]
    guards: tuple[Guard, ...]
    sabotages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A promise of the product, and the rules it consists of."""

    title: str
    says: str
    lead: tuple[str, ...]  # the rules that say most of it
    rules: tuple[Rule, ...]


@cache
def promises() -> tuple[Promise, ...]:
    """Return the promises in their order."""
    return tuple(
        _promise(tomllib.loads(file.read_text(encoding="utf-8"))) for file in sorted(SOURCES.glob("[0-9]-*.toml"))
    )


def all_rules() -> Iterator[Rule]:
    """Yield the rules of all promises."""
    return (rule for promise in promises() for rule in promise.rules)


def imported(name: str) -> Any:
    """Return the object of a dotted name within the package, from the longest part of it that is a module."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        if (ROOT / PACKAGE / "/".join(parts[:length])).with_suffix(".py").exists():
            found = importlib.import_module(".".join([PACKAGE, *parts[:length]]))
            for part in parts[length:]:
                found = getattr(found, part)
            return found
    raise ModuleNotFoundError(name)


def _promise(told: dict[str, Any]) -> Promise:
    return Promise(
        title=told["title"],
        says=_line(told["says"]),
        lead=tuple(told["lead"]),
        rules=tuple(_rule(one) for one in told["rule"]),
    )


def _rule(told: dict[str, Any]) -> Rule:
    unknown = told.keys() - {"slug", "says", "why", "kept_by", "guard", "sabotages"}
    if unknown:
        raise ValueError(f"{told['slug']}: no rule has {', '.join(sorted(unknown))}")
    return Rule(
        slug=told["slug"],
        says=_line(told["says"]),
        why=_line(told["why"]),
        kept_by=tuple(_keeper(text) for text in told["kept_by"]),
        guards=tuple(_guard(one) for one in told.get("guard", ())),
        sabotages=tuple(told.get("sabotages", ())),
    )


def _guard(told: dict[str, Any]) -> Guard:
    edits = tuple(Edit(one["in"], one["old"], one.get("new", "")) for one in (told, *told.get("also", ())))
    return Guard(edits=edits, tests=tuple(told.get("tests", ())))


def _keeper(text: str) -> Keeper:
    name, _, clause = text.partition(": ")
    return Keeper(name=name, clause=_line(clause))


def _line(text: str) -> str:
    return " ".join(text.split())
