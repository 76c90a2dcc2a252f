"""Run worker processes."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_pgbus.worker import options as types
from django_pgbus.worker.console import LEVELS, log_to_stderr
from django_pgbus.worker.other_database import use_database
from django_pgbus.worker.plan import make_plan
from django_pgbus.worker.run import CannotStart, work


class Command(BaseCommand):
    """Map options to a plan, and work as planned."""

    help = (
        "Runs tasks and handlers of events and streams until it is stopped. The first SIGTERM or Ctrl-C lets what runs "
        "finish within the grace, the second stops them at once and hands them back. Exit codes: 0 stopped, or a burst "
        "has nothing left to do; 1 a burst had failing tasks, or the worker could not start."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options; what is left out comes from PGBUS."""
        add = parser.add_argument
        add(
            "--queues",
            "--queue-name",
            metavar="QUEUES",
            help='Queues and threads: "default,mail: 10; critical: 5" are two groups with threads of their own. '
            "`mail_*` is every queue of that prefix, `*` every queue of tasks, `@*` every queue of events, `!name` leaves "
            "one out.",
        )
        add(
            "--events",
            action="store_true",
            help="Work on events, in a group of its own: all that is done unless --queues names queues too.",
        )
        add(
            "--streams",
            metavar="GROUPS",
            help="Follow streams, and nothing else unless --queues or --events is given too. Comma separated groups: "
            "ledger/totals, ledger (all its groups), `*`. If left out, all are followed, or none if --queues or --events is "
            "given.",
        )
        add("--exclude-queues", metavar="QUEUES", help="Comma separated queues to leave out of every group.")
        add("--threads", type=types.count, help="Threads of a group of queues that names no number.")
        add("--processes", type=types.count, help="Worker processes.")
        add(
            "--burst",
            "--batch",
            action="store_true",
            help="End when the queues are empty and the followed groups have caught up.",
        )
        add(
            "--reload",
            action=BooleanOptionalAction,
            default=False,
            help="Start anew when code changes; for development, off unless given, under DEBUG too. Not graceful.",
        )
        add("--max-jobs", "--max-tasks", metavar="N", type=types.count, help="Replace a process after N tasks.")
        add(
            "--max-memory",
            metavar="SIZE",
            type=types.size,
            help="Replace a process that uses this much memory, 512M or 2G.",
        )
        add("--max-age", metavar="SECONDS", type=types.some_seconds, help="Replace a process of this age.")
        add("--database", help="Alias of the pgbus tables to work on, if not that of the settings.")
        add("--interval", metavar="SECONDS", type=types.some_seconds, help="Longest wait between two looks.")
        add("--grace", metavar="SECONDS", type=types.seconds, help="How long running tasks may finish when stopping.")
        add(
            "--health-port",
            metavar="PORT",
            type=types.address,
            help="Answer GET /live and /ready on this port, of every address or of the one in 127.0.0.1:8001.",
        )
        add("--worker-id", "--name", metavar="NAME", type=types.name, help="Name on the Workers page; the host's.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Work; leaves with the exit code unless it is 0."""
        log_level = LEVELS[options["verbosity"]]
        log_to_stderr(log_level)
        try:
            if options["database"]:
                use_database(options["database"])
            plan = make_plan(
                queues=options["queues"],
                events=options["events"],
                streams=options["streams"],
                excluded=options["exclude_queues"],
                threads=options["threads"],
                processes=options["processes"],
                name=options["worker_id"],
                poll=options["interval"],
                grace=options["grace"],
                health=options["health_port"],
                burst=options["burst"],
                reload=options["reload"],
                max_jobs=options["max_jobs"],
                max_memory=options["max_memory"],
                max_age=options["max_age"],
                log_level=log_level,
            )
        except (ValueError, TypeError) as error:
            raise CommandError(str(error)) from error
        try:
            code = work(plan)
        except CannotStart as error:
            raise CommandError(str(error)) from error
        if code:
            raise SystemExit(code)
