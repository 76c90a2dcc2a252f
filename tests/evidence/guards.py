"""Every guard that can be taken away, with its name and the tests that should see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.evidence.marked import Marked, showing
from tests.evidence.rules import Guard, Rule, all_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakable:
    """A guard, and the ids of the tests that are run without it. `all_must`: each of them has to fail, else any."""

    name: str
    rule: Rule
    guard: Guard
    tests: frozenset[str]
    all_must: bool

    @property
    def needs_a_copy(self) -> bool:
        """Return whether it has to stand in files: another process, a migration, or what is listed at import reads it."""
        processes = any(
            test.startswith(("tests/processes/", "tests/architecture/test_statements")) for test in self.tests
        )
        return processes or any("/" in edit.at or edit.at == "queues.models.NextPosition" for edit in self.guard.edits)


def all_guards() -> Iterator[Breakable]:
    """Yield the guards of all rules."""
    for rule in all_rules():
        for number, guard in enumerate(rule.guards):
            yield Breakable(
                name=f"{rule.slug}/{number}",
                rule=rule,
                guard=guard,
                tests=frozenset(one.id for one in _tests(rule, guard)),
                all_must=bool(guard.tests),
            )


def _tests(rule: Rule, guard: Guard) -> list[Marked]:
    """Return those that are named, else those of the rule that are quick."""
    of_rule = showing(rule.slug)
    if guard.tests:
        return [one for one in of_rule if one.name in guard.tests]
    return [one for one in of_rule if not one.is_slow] or of_rule
