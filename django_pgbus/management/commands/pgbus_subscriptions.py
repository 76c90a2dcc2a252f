"""List the subscriptions of handlers, remove some, or write those of this code."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_pgbus.events import handlers, subscriptions
from django_pgbus.worker.other_database import use_database


class Command(BaseCommand):
    """Print one line per subscription, or per one that was removed."""

    help = (
        "Lists which handlers are subscribed to which topics: pattern, handler, queue, when a worker or `migrate` last "
        "declared it, whether it is idempotent, and whether this code does not have it. With --unbind it removes "
        "subscriptions, with --declare it writes those of this code."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        one = parser.add_mutually_exclusive_group()
        one.add_argument(
            "--unbind",
            metavar="HANDLER",
            help="Remove the subscriptions of this handler (`shop.handlers.audit`). What was published before still comes "
            "to it, and a worker whose code has it subscribes it again when it starts.",
        )
        one.add_argument("--declare", action="store_true", help="Write the subscriptions of this code.")
        add("--pattern", help="With --unbind: only the subscription to this pattern.")
        add("--database", help="Alias of the pgbus tables, if not that of the settings.")

    def handle(self, *args: Any, **options: Any) -> None:
        """List, remove or write; leaves with an error where there is nothing to remove."""
        if options["pattern"] and not options["unbind"]:
            raise CommandError("--pattern needs --unbind.")
        try:
            if options["database"]:
                use_database(options["database"])
        except ValueError as error:
            raise CommandError(str(error)) from error
        if options["unbind"]:
            self._unbind(options["unbind"], options["pattern"])
        elif options["declare"]:
            handlers.autodiscover()
            self.stdout.write(f"{subscriptions.declare()} subscriptions declared.")
        else:
            self._list()

    def _unbind(self, handler: str, pattern: str | None) -> None:
        removed = subscriptions.unbind(handler, pattern, by="pgbus_subscriptions")
        if not removed:
            raise CommandError(f"{handler} is not subscribed{f' to {pattern}' if pattern else ''}.")
        for found in removed:
            self.stdout.write(f"{handler} unbound from {found}")
        if handler not in subscriptions.unknown([handler]):
            self.stdout.write(
                "It is in this code: the next worker that starts, and the next migrate, subscribe it again."
            )

    def _list(self) -> None:
        found = subscriptions.stored()
        if not found:
            self.stdout.write("No handler is subscribed.")
            return
        unknown = set(subscriptions.unknown(row.handler for row in found))
        rows = [("pattern", "handler", "queue", "last declared", "")]
        rows += [
            (
                row.pattern,
                row.handler,
                row.queue,
                f"{row.declared_at:%Y-%m-%d %H:%M:%S %Z}",
                ", ".join(["idempotent"] * row.idempotent + ["not in this code"] * (row.handler in unknown)),
            )
            for row in found
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
            self.stdout.write(line.rstrip())
