"""Every guard that was taken away, of the rules and of the sabotages, and what was red without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tests.chaos.sabotages import SABOTAGES
from tests.chaos.shadow import Edit
from tests.evidence.guards import all_guards
from tests.evidence.marked import all_marked, showing
from tests.evidence.records import GUARDS, Record, sabotages, stamped
from tests.evidence.rules import Keeper, Rule, all_rules
from tests.evidence.words import of_record

IN_THE_SUITE: Final = re.compile(r"without (.+?) in `([\w.]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A test that was run without a guard, whether it failed, and with which line."""

    test: str
    red: bool
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A guard that was taken away: `says` what then happens (of a sabotage), `in_words` what the test saw."""

    name: str
    edits: tuple[Edit, ...]
    says: str
    in_words: str
    recorded: str  # of when and which commit; empty if it is not recorded
    seen: tuple[Seen, ...]
    chaos: dict[str, Any] | None = None
    options: tuple[str, ...] = ()  # of that chaos

    @property
    def red(self) -> bool:
        """Return whether all tests that are recorded failed, and one is."""
        return bool(self.seen) and all(one.red for one in self.seen)


@cache
def removals(rule: Rule) -> tuple[Removal, ...]:
    """Return those of a rule: its own guards, then its sabotages."""
    words = dict(rule.in_words)
    return (*_guards(rule), *(_sabotage(name, words.get(name, "")) for name in rule.sabotages))


def lead(rule: Rule, name: str) -> Removal:
    """Return the one that a promise leads with: `0` is the first guard of the rule, a name that of a sabotage."""
    return next(one for one in removals(rule) if one.name == name or one.name == f"{rule.slug}/{name}")


def best(rule: Rule, removal: Removal) -> str:
    """Return the test that failed without it, if there are several one that is named to show this rule."""
    red = [one.test for one in removal.seen if one.red]
    mine = {test.id for test in showing(rule.slug)}
    return next((test for test in red if test.partition("[")[0] in mine), red[0] if red else "")


def taken_away(keeper: Keeper, rule: Rule) -> str:
    """Return whether this clause was ever taken away: under its rule, under another, in the suite, or not."""
    if any(_touches(keeper, edit) for one in removals(rule) for edit in one.edits):
        return "yes"
    for other in all_rules():
        if any(_touches(keeper, edit) for one in removals(other) for edit in one.edits):
            return f"[elsewhere](#{other.slug})"
    return "in the suite" if any(_touches(keeper, edit) for edit in in_the_suite()) else "no"


@cache
def in_the_suite() -> tuple[Edit, ...]:
    """Return what tests take out of statements by themselves at each run."""
    return tuple(
        Edit(name, fragment, "")
        for test in all_marked()
        for words in test.breaks
        for fragments, name in IN_THE_SUITE.findall(words)
        for fragment in re.findall(r"`([^`]+)`", fragments)
    )


def _touches(keeper: Keeper, edit: Edit) -> bool:
    if keeper.unique is not None:
        return keeper.name in edit.old
    if edit.at != keeper.name and not edit.at.startswith(f"{keeper.name}."):
        return False
    if not keeper.clause:
        return True
    old = " ".join(edit.old.split())
    start, taken = keeper.text.find(keeper.clause), keeper.text.find(old)
    return taken >= 0 and taken < start + len(keeper.clause) and start < taken + len(old)


def _guards(rule: Rule) -> Iterator[Removal]:
    for one in all_guards():
        if one.rule is rule:
            entry = Record.read(GUARDS).of_guard(one)
            yield Removal(
                name=one.name,
                edits=one.guard.edits,
                says="",
                in_words=one.guard.in_words,
                recorded=of_record(entry) if entry else "",
                seen=tuple(Seen(test=test, red=True, line=line) for test, line in entry["red"]) if entry else (),
            )


def _sabotage(name: str, in_words: str) -> Removal:
    sabotage, entry = SABOTAGES[name], sabotages().get(name) or {}
    return Removal(
        name=name,
        edits=sabotage.edits,
        says=sabotage.guard,
        in_words=in_words,
        recorded=of_record(stamped("sabotages")) if entry else "",
        seen=tuple(Seen(test=one["id"], red=one["red"], line=one["line"]) for one in entry.get("tests", ())),
        chaos=entry.get("chaos"),
        options=sabotage.chaos.options if sabotage.chaos else (),
    )
