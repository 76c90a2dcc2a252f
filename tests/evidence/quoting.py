"""What is quoted of a statement: what stands inside NOT EXISTS reads as its opposite, so it is quoted from NOT on."""

from __future__ import annotations

import re
from typing import Final

from tests.chaos.shadow import Edit
from tests.evidence.rules import Keeper
from tests.evidence.words import code

NEGATED: Final = re.compile(r"\bNOT (?:EXISTS )?\(")


def quoted(text: str, fragment: str) -> str:
    """Return a fragment of a text on one line, with all of what is negated around it."""
    start = text.find(fragment) if fragment else -1
    for found in NEGATED.finditer(text) if start >= 0 else ():
        end = _end(text, found.end())
        if found.start() < start and start + len(fragment) <= end:
            return text[found.start() : end]
    return fragment


def _end(text: str, start: int) -> int:
    """Return where the parenthesis ends that was opened before `start`."""
    depth, at = 1, start
    while depth and at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at


def clause(keeper: Keeper) -> str:
    """Return the clause that counts, as code."""
    return code(quoted(keeper.text, keeper.clause))


def edited(edit: Edit) -> str:
    """Return what was taken away, and what stood there instead, if anything."""
    old, new = " ".join(edit.old.split()), " ".join(edit.new.split())
    whole = quoted(Keeper(name=edit.at, clause="").text, old)
    if whole != old:
        old, new = whole, " ".join(whole.replace(old, new).split())
    return f"{code(old)} " + (f"became {code(new)}" if new else "was left out")
