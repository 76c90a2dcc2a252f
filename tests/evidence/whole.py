"""The statements that the page names, as they are sent."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from django_pgbus.postgres import Statement
from tests.evidence.removals import in_the_suite, removals
from tests.evidence.rules import Keeper, all_rules
from tests.evidence.waits import locks_and_waits


def section() -> str:
    """Return all statements that keep a rule, or were changed to take a guard away."""
    parts = ["## The statements, whole", "As they are sent. `pgbus_stream_0` stands for the log of any stream."]
    for name, statement in sorted(statements().items()):
        parts.append(f"### {name}\n\nLocks and waits: {locks_and_waits(statement)}.\n\n{_folded(statement.sql)}")
    return "\n\n".join(parts)


def statements() -> dict[str, Statement]:
    """Return them by name."""
    found = {}
    for name in dict.fromkeys(_names()):
        statement = Keeper(name=name, clause="").statement
        if statement is not None:
            found[name] = statement
    return found


def _names() -> Iterator[str]:
    for rule in all_rules():
        yield from (keeper.name for keeper in rule.kept_by)
        yield from (edit.at for one in removals(rule) for edit in one.edits)
    yield from (edit.at for edit in in_the_suite())


def _folded(sql: str) -> str:
    text = textwrap.dedent(sql).strip("\n").rstrip()
    return f"<details><summary>SQL</summary>\n\n```sql\n{text}\n```\n\n</details>"
