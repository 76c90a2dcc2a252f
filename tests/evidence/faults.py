"""The page `docs/evidence/faults.md`: faults that other systems had, and the tests that look for each here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from tests.evidence.rules import SOURCES
from tests.evidence.words import link_to, table

INTRO = """# Faults of other systems

Job queues, event buses and logs before this one had these faults. Each is looked for here by the tests beside it; where a
fault cannot occur, or belongs to something that this version does not have, the last column says why. {number} faults,
{tested} of them with a test.

"Seen in" names a public issue, or the system: *pgbus* is the Ruby gem whose features these are, *vulkan* the engine that the
streams learnt from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happened, where it was seen, the ids of the tests that look for it, and what else is to be said."""

    section: str
    what: str
    seen_in: str
    tests: tuple[str, ...]
    note: str


def all_faults() -> Iterator[Fault]:
    """Yield the faults in their order."""
    for section in tomllib.loads((SOURCES / "faults.toml").read_text(encoding="utf-8"))["section"]:
        for what, seen_in, tests, *note in section["faults"]:
            yield Fault(
                section=section["title"],
                what=what,
                seen_in=seen_in,
                tests=tuple(_id(test) for test in tests),
                note=" ".join(note),
            )


def _id(short: str) -> str:
    file, _, name = short.partition("::")
    return f"tests/{file}.py::test_{name}"


def page() -> str:
    """Return the page."""
    faults = list(all_faults())
    parts = [INTRO.format(number=len(faults), tested=sum(bool(fault.tests) for fault in faults))]
    for section in dict.fromkeys(fault.section for fault in faults):
        rows = [
            (
                fault.what,
                _seen(fault.seen_in),
                "; ".join(link_to(test, up="../../") for test in fault.tests),
                fault.note,
            )
            for fault in faults
            if fault.section == section
        ]
        parts.append(f"## {section}\n\n" + table(("What happened", "Seen in", "Looked for by", ""), rows))
    return "\n\n".join(parts)


def _seen(where: str) -> str:
    repository, _, number = where.partition("#")
    return f"[{where}](https://github.com/{repository}/issues/{number})" if number else where
