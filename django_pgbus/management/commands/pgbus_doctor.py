"""Say what could keep jobs from running."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

import django_pgbus
from django_pgbus.worker.doctor import examine
from django_pgbus.worker.doctor_streams import CannotRepair, repair_cursor
from django_pgbus.worker.findings import Finding, Grade, as_document, worst
from django_pgbus.worker.other_database import use_database


class Command(BaseCommand):
    """Print one line per finding, and what to do below it; or repair what is asked for."""

    help = "Looks at settings, database, workers and queues, and says what is wrong and what to do. Exit code 1: fail."
    requires_system_checks = ()  # They are the first thing it looks at.

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--database", help="Alias of the pgbus tables to look at, if not that of the settings.")
        parser.add_argument(
            "--json",
            action="store_true",
            help="Print one JSON document for machines, when all has been looked at, instead of lines.",
        )
        parser.add_argument(
            "--repair-cursor",
            metavar="STREAM/GROUP",
            help="Instead of looking: let a group that refuses to work adopt the log as it is. Stop its workers before. It "
            "never moves the cursor.",
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="Repair although workers follow the group, or hold ranges of it: they are gone for good.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the findings, and leave with 1 if one of them fails; or repair a cursor."""
        if options["database"]:
            try:
                use_database(options["database"])
            except ValueError as error:
                raise CommandError(str(error)) from error
        if options["repair_cursor"]:
            try:
                self.stdout.write(repair_cursor(options["repair_cursor"], force=options["force"]))
            except CannotRepair as error:
                raise CommandError(str(error)) from error
            return
        if options["force"]:
            raise CommandError("--force belongs to --repair-cursor.")
        found = []
        for finding in examine():
            found.append(finding)
            if not options["json"]:
                self._write(finding)
        if options["json"]:
            self.stdout.write(json.dumps(as_document(found, version=django_pgbus.__version__), indent=2))
        if worst(found) is Grade.FAIL:
            raise SystemExit(1)

    def _write(self, finding: Finding) -> None:
        styles = {Grade.OK: self.style.SUCCESS, Grade.WARN: self.style.WARNING, Grade.FAIL: self.style.ERROR}
        self.stdout.write(f"{styles[finding.grade](f'{finding.grade:<4}')}  {finding.subject}: {finding.text}")
        if finding.remedy and finding.grade is not Grade.OK:
            self.stdout.write(f"      {finding.remedy}")
