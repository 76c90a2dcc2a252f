"""Enqueue one task per row of an order file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from shop.importing import Imported, import_file
from shop.rows import COLUMNS, HeaderError


class Command(BaseCommand):
    """`manage.py import_orders FILE`."""

    help = f"Enqueues one task per row of a CSV file with the columns {', '.join(COLUMNS)}, all of them or none."
    requires_migrations_checks = True

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the arguments."""
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--chunk", type=positive, default=500, help="Rows enqueued at once (500).")

    def handle(self, *, file: Path, chunk: int, **options: Any) -> None:
        """Import, and say what was refused."""
        try:
            imported = import_file(file, chunk=chunk, tell=self._tell if options["verbosity"] > 1 else None)
        except (OSError, HeaderError) as error:
            raise CommandError(str(error)) from error
        for line in imported.escaped:
            self.stdout.write(f"line {line}: characters that cannot be stored were written out")
        for line, reason in imported.refused:
            self.stdout.write(self.style.WARNING(f"line {line} refused: {reason}"))
        self._tell(imported)
        self.stdout.write(f"batch {imported.batch}: a report is mailed when the last of these rows has ended")

    def _tell(self, imported: Imported) -> None:
        self.stdout.write(
            f"{imported.read} rows read, {imported.enqueued} enqueued, {len(imported.duplicates)} there already, "
            f"{len(imported.refused)} refused"
        )


def positive(text: str) -> int:
    """Return a whole number from 1."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number
