"""
From a file to tasks: one task per row, one batch per file.

A file is enqueued whole or not at all: the block of its batch is a transaction. When the last of its rows has been
validated or has given up, a report is mailed. pgbus refuses what PostgreSQL cannot store (a NUL byte, a broken character)
before any SQL, naming argument and place; such a row is sent with those characters written out (`\\x00`), so that it
becomes a dead letter a person can read. What cannot be sent even so is refused, with its reason, and counted. So is a
row whose order is being imported already: `import_order` is unique per order. Who imports the same orders at the same
time waits for the end of this transaction.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django_pgbus import Batch, InvalidPayload, JobNotUnique, enqueue_many
from shop import rows
from shop.tasks import import_order, mail_broken_rows, mail_report

TITLE = "Import of "
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")

Line = tuple[int, dict[str, Any]]


@dataclass(slots=True)
class Imported:
    """What became of the rows of a file: `read == enqueued + len(duplicates) + len(refused)`; rows by their lines."""

    batch: int = 0
    read: int = 0
    enqueued: int = 0
    duplicates: list[int] = field(default_factory=list)
    escaped: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


def import_file(path: Path, *, chunk: int = 500, tell: Callable[[Imported], None] | None = None) -> Imported:
    """
    Enqueue one task per row of the file, all of them or none, and return what became of the rows.

    `tell` is called after each chunk, before anything is committed.
    """
    imported = Imported()
    name = _escape(path.name)
    with Batch(TITLE + name, properties={"file": name}, on_finish=mail_report, on_failure=mail_broken_rows) as batch:
        for lines in _chunks(rows.read(path), chunk):
            _send(lines, imported)
            if tell:
                tell(imported)
    imported.batch = batch.id or 0
    return imported


def _send(lines: list[Line], imported: Imported) -> None:
    imported.read += len(lines)
    try:
        results = enqueue_many(import_order, [_arguments(*line) for line in lines])
    except InvalidPayload:  # nothing was written: look for the row
        for number, row in lines:
            _send_one(number, row, imported)
        return
    duplicates = [line[0] for line, result in zip(lines, results, strict=True) if isinstance(result, JobNotUnique)]
    imported.duplicates += duplicates
    imported.enqueued += len(lines) - len(duplicates)


def _send_one(number: int, row: dict[str, Any], imported: Imported) -> None:
    try:
        try:
            import_order.enqueue(row, line=number)
        except InvalidPayload:
            import_order.enqueue(write_out(row), line=number)
            imported.escaped.append(number)
    except InvalidPayload as error:
        imported.refused.append((number, str(error)))
    except JobNotUnique:
        imported.duplicates.append(number)
    else:
        imported.enqueued += 1


def write_out(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with every character that cannot be stored written as its escape."""
    return {
        name: [_escape(text) for text in value] if isinstance(value, list) else _escape(value)
        for name, value in row.items()
    }


def _escape(text: str) -> str:
    return _NOT_STORABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _arguments(number: int, row: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (row,), {"line": number}


def _chunks(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    lines = iter(lines)
    while part := list(itertools.islice(lines, size)):
        yield part
