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
from tests.evidence.uniques import Unique, uniques

SOURCES: Final = ROOT / "docs" / "evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """What keeps a rule: a statement, function or constraint, the clause that counts, and what it is there against."""

    name: str
    clause: str
    against: str = ""

    @property
    def place(self) -> Place:
        """Return where it stands; a constraint with its model."""
        return place_of(self.name) if self.unique is None else Place(self.unique.file, 0, 0, is_code=False)

    @property
    def unique(self) -> Unique | None:
        """Return the constraint, None if it is none."""
        return uniques().get(self.name)

    @property
    def statement(self) -> Statement | None:
        """Return the statement, None if it is none. One about a log is about log 0."""
        is_none = self.unique is not None or "/" in self.name or self.place.is_code
        found = None if is_none else imported(self.name)
        return found.of(0) if isinstance(found, LogStatement) else found if isinstance(found, Statement) else None

    @property
    def text(self) -> str:
        """Return the SQL of the statement, the code, or the constraint, on one line."""
        if self.unique is not None:
            return self.unique.text
        return _line(self.place.text if self.statement is None else self.statement.sql)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Edits that take a guard away, the tests of the rule that have to go red (none named: all), and what they then see."""

    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    in_words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One sentence that a user can rely on."""

    slug: str
    title: str
    says: str
    why: str
    kept_by: tuple[Keeper, ...]
    guards: tuple[Guard, ...]
    sabotages: tuple[str, ...]
    in_words: tuple[tuple[str, str], ...]  # of a sabotage: what its tests saw


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A promise of the product, and the rules it consists of."""

    title: str
    says: str
    lead: tuple[tuple[str, str], ...]  # the rules that say most of it, each with one of its guards that were taken away
    is_measured: bool  # by the benchmarks
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
        lead=tuple((slug, guard) for slug, _, guard in (one.partition("/") for one in told["lead"])),
        is_measured=told.get("is_measured", False),
        rules=tuple(_rule(one) for one in told["rule"]),
    )


def _rule(told: dict[str, Any]) -> Rule:
    unknown = told.keys() - {"slug", "title", "says", "why", "kept_by", "guard", "sabotages", "in_words"}
    if unknown:
        raise ValueError(f"{told['slug']}: no rule has {', '.join(sorted(unknown))}")
    return Rule(
        slug=told["slug"],
        title=told.get("title") or told["slug"].replace("-", " ").capitalize(),
        says=_line(told["says"]),
        why=_line(told["why"]),
        kept_by=tuple(_keeper(one) for one in told["kept_by"]),
        guards=tuple(_guard(one) for one in told.get("guard", ())),
        sabotages=tuple(told.get("sabotages", ())),
        in_words=tuple(told.get("in_words", {}).items()),
    )


def _guard(told: dict[str, Any]) -> Guard:
    edits = tuple(Edit(one["in"], one["old"], one.get("new", "")) for one in (told, *told.get("also", ())))
    return Guard(edits=edits, tests=tuple(told.get("tests", ())), in_words=_line(told.get("in_words", "")))


def _keeper(told: str | dict[str, str]) -> Keeper:
    if isinstance(told, str):
        told = {"by": told}
    name, _, clause = told["by"].partition(": ")
    return Keeper(name=name, clause=_line(clause), against=_line(told.get("against", "")))


def _line(text: str) -> str:
    return " ".join(text.split())
