"""In what state the record of the benchmarks is."""

from __future__ import annotations

from tests.benchmarks.goals import GOALS, met
from tests.benchmarks.page import reading
from tests.benchmarks.page.markdown import RECORD
from tests.benchmarks.record import Record

PAGE = "[benchmarks](operations/benchmarks.md)"


def state() -> str:
    """Return it in a few words, for a table."""
    record = Record.read(RECORD)
    if not record.parts:
        return "not measured yet"
    verdicts = [met(name, record.goals) for name in GOALS]
    counts = {"met": True, "**not met**": False, "not measured": None}
    return ", ".join(f"{verdicts.count(value)} {words}" for words, value in counts.items() if value in verdicts)


def sentences() -> str:
    """Return it in sentences, for the head of the promise."""
    record = Record.read(RECORD)
    if not record.parts:
        return (
            f"**Not measured yet.** There is no record of the {PAGE}: the promise itself is not shown. What follows is what"
            " a statement reads, locks and writes, which does not depend on the machine."
        )
    missed = [f"{name} ({wanted.what})" for name, wanted in GOALS.items() if met(name, record.goals) is False]
    caveats = reading.caveats(record)
    parts = [
        f"Measured: of {len(GOALS)} goals {state()}; see {PAGE}.",
        f"**Not met**: {', '.join(missed)}." if missed else "",
        f"**No figures of record**: {' '.join(caveats)}" if caveats else "",
        "What follows is what a statement reads, locks and writes, which does not depend on the machine.",
    ]
    return " ".join(part for part in parts if part)
