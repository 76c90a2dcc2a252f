"""Words and links of the pages of evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.evidence.places import ROOT, place_of
from tests.evidence.rules import Keeper


def code(text: str) -> str:
    """Return a text as code, empty if it is; whatever it holds."""
    text = " ".join(text.split())
    if not text:
        return ""
    ticks = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars within cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def link_to(id: str, *, up: str = "../") -> str:
    """Return a link to a test, which says in words what it is called; `up` leads from the page to the repository."""
    file, name = _parts(id)
    words = name.removeprefix("test_").replace("_", " ")
    return f'[{words}]({up}{file} "{name}")'


def named(id: str) -> str:
    """Return a link to a test from the page of evidence, which says where it stands and what it is called."""
    file, name = _parts(id)
    return f'[`{file.removeprefix("tests/")}::{name}`](../{file} "{name}")'


def _parts(id: str) -> tuple[str, str]:
    file, _, name = id.partition("::")
    return file, name.rpartition("::")[2].partition("[")[0]


def at(name: str) -> str:
    """Return a link to what stands at the end of the page if it is a statement, else to its file."""
    if Keeper(name=name, clause="").statement is not None:
        return f"[`{name}`](#{anchor(name)})"
    return f"[`{name}`](../{place_of(name).file.relative_to(ROOT).as_posix()})"


def anchor(name: str) -> str:
    """Return the address of a heading."""
    return "".join(letter for letter in name.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def source(keeper: Keeper) -> str:
    """Return the path of the file in which something stands."""
    return keeper.place.file.relative_to(ROOT).as_posix()


def of_record(entry: dict[str, Any]) -> str:
    """Return of when a record is, and of which commit."""
    return f"{entry['date']}, commit {entry['commit'] or 'unknown'}"
