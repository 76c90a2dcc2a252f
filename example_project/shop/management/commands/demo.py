"""Show the whole: import, two workers, a kill, and the sums."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from shop.demo.run import DemoError, Plan, run
from shop.demo.workers import WorkersError
from shop.management.commands.import_orders import positive
from shop.rows import HeaderError

SAMPLE = Path(__file__).resolve().parents[3] / "orders_sample.csv"


class Command(BaseCommand):
    """`manage.py demo`."""

    help = (
        "Empties the shop, imports a file of orders, runs workers and kills one of them with -9, "
        "then prints a closing table. Exits with 1 if anything does not add up."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the arguments."""
        parser.add_argument("--file", type=Path, default=SAMPLE, help=f"The orders ({SAMPLE.name}).")
        parser.add_argument("--workers", type=positive, default=2, help="How many `runworker` to start (2).")
        parser.add_argument("--chunk", type=positive, default=500, help="Rows enqueued at once (500).")
        parser.add_argument(
            "--kill-every",
            type=seconds,
            metavar="SECONDS",
            help="Kill a worker process again and again until the end, instead of one in the middle.",
        )
        parser.add_argument("--serve", action="store_true", help="Leave site and workers running until Ctrl-C.")
        parser.add_argument("--address", default="127.0.0.1:8000", help="Of the site (127.0.0.1:8000).")

    def handle(self, **options: Any) -> None:
        """Give the demonstration."""
        signal.signal(signal.SIGTERM, lambda *received: sys.exit(143))  # so that the workers are stopped
        plan = Plan(**{name: options[name] for name in ("file", "workers", "chunk", "kill_every", "serve", "address")})
        try:
            adds_up = run(plan, self.stdout)
        except (OSError, HeaderError, DemoError, WorkersError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=130) from None
        if not adds_up:
            raise CommandError("Not everything adds up.")


def seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    if not 0 < (number := float(text)) < float("inf"):
        raise ValueError(text)
    return number
