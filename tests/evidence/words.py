"""Words and links of the pages of evidence."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from tests.evidence.places import ROOT
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
    file, _, name = id.partition("::")
    name = name.rpartition("::")[2].partition("[")[0]
    words = name.removeprefix("test_").replace("_", " ")
    return f'[{words}]({up}{file} "{name}")'


def source(keeper: Keeper) -> str:
    """Return the path of the file in which something stands."""
    return keeper.place.file.relative_to(ROOT).as_posix()


def fenced(sql: str) -> str:
    """Return SQL that a reader unfolds."""
    text = textwrap.dedent(sql).strip("\n").rstrip()
    return f"<details><summary>SQL</summary>\n\n```sql\n{text}\n```\n\n</details>"


def of_record(entry: dict[str, Any]) -> str:
    """Return of when a record is, and of which commit."""
    return f"{entry['date']}, commit {entry['commit'] or 'unknown'}"
