"""The demonstration, as one list of steps."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import OutputWrapper

from django_pgbus import Batch
from shop import reports, streams
from shop.closing import Closing, close
from shop.demo import fresh, repeats
from shop.demo.progress import Progress
from shop.demo.workers import MANAGE, Workers
from shop.gateway import Gateway
from shop.importing import Imported, import_file
from shop.jobs import open_jobs, steps_to_come

LOOK = 0.1  # seconds between two looks at the queue; more where a look takes long, but
LONGEST = 0.4  # not so much that kills come late
PATIENCE = 90  # seconds without any progress before the demonstration gives up
KILL_AT = 1 / 3
RECOUNT_AT = 1 / 5  # while orders are still being written


class DemoError(Exception):
    """The demonstration cannot be given; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked for; `kill_every` seconds, or one kill in the middle if None."""

    file: Path
    workers: int = 2
    kill_every: float | None = None
    chunk: int = 500
    serve: bool = False
    address: str = "127.0.0.1:8000"


def run(plan: Plan, out: OutputWrapper) -> bool:
    """Give the demonstration; return whether everything adds up."""
    progress = Progress(out)
    prepare(progress)
    with ExitStack() as stack:
        gateway = stack.enter_context(Gateway())
        progress.say(f"Payment gateway: {gateway.url}, of a hundred answers two are failures.")
        imported, again = enqueue(plan, progress)
        workers = stack.enter_context(Workers(plan.workers, logs=logs(), environment={"SHOP_GATEWAY_URL": gateway.url}))
        progress.say(f"Workers: {plan.workers} x manage.py runworker, their logs in {logs()}")
        repeated = watch(plan, workers, imported, progress)
        stopped = [] if plan.serve else workers.stop()
        closing = close(plan.file, imported, gateway, killed=workers.killed, again=again, repeated=repeated)
        closing.require("exit codes of the workers", stopped, [0] * len(stopped))
        closing.require("whether a worker was killed", workers.killed > 0, imported.enqueued > 0)
        tell(closing, progress)
        if plan.serve:
            serve(plan, workers, progress)
        else:
            progress.say(
                f"To look around: python3 dev.py demo --serve in the folder above, then http://{plan.address}/admin/"
            )
    return not closing.problems


def prepare(progress: Progress) -> None:
    """Make tables, admin user and an empty shop."""
    database = settings.DATABASES["default"]
    progress.say(f"Database: {database['NAME']} at {database.get('HOST') or 'the local socket'}")
    call_command("migrate", verbosity=0, interactive=False)
    while workers := fresh.living_workers():  # those of a killed run leave their rows for a lease
        if time.monotonic() - progress.began > PATIENCE / 3:
            raise DemoError(f"Other workers use this database, stop them first: {', '.join(map(str, workers))}.")
        time.sleep(1)
    fresh.empty_shop()
    if fresh.ensure_admin():
        progress.say("Admin user: admin, password: admin (a demo's password; change it before anyone else can log in)")
    else:
        progress.say("Admin user: admin was there before and keeps its password.")


def enqueue(plan: Plan, progress: Progress) -> tuple[Imported, Imported]:
    """Enqueue the file's rows before anybody works, and the same file once more."""
    began = time.monotonic()
    imported = import_file(plan.file, chunk=plan.chunk)
    took = time.monotonic() - began
    progress.say(f"Import: {imported.enqueued:,} of the {imported.read:,} rows of {plan.file.name} in {took:.1f} s")
    again = import_file(plan.file, chunk=plan.chunk)
    progress.say(f"The same file once more: {again.enqueued:,} rows, {len(again.duplicates):,} are duplicates")
    return imported, again


def watch(plan: Plan, workers: Workers, imported: Imported, progress: Progress) -> int:
    """
    Wait until every job has ended, killing a worker now and then, or until nothing moves any more.

    On the way some events are published once more, as soon as there are enough; return how many. And a worker begins with
    a second group of the ledger, which reads it from the beginning.
    """
    total, to_come = steps_to_come(), -1
    groups = [streams.TOTALS]
    repeated: int | None = None
    moved = killed = time.monotonic()
    batch, report = Batch.get(imported.batch), None
    while to_come:
        before, began = to_come, time.monotonic()
        to_come = steps_to_come() + streams.behind(groups)
        if repeated is None and (not to_come or repeats.are_there_enough()):
            heard = repeats.publish_again()
            repeated = len(heard)
            progress.say(f"Published once more, under the same ids: the events of {repeated} orders")
            total, to_come = total + sum(heard), to_come + sum(heard)
        share = max(0.0, 1 - to_come / total) if to_come else 1.0
        if len(groups) == 1 and share >= RECOUNT_AT and streams.ledger.head():
            groups.append(streams.RECOUNT)
            entries = streams.behind([streams.RECOUNT])
            workers.begin("--streams", f"{streams.ledger.name}/{streams.RECOUNT}")
            progress.say(f"A second group begins to read the ledger, {entries:,} entries late, at {share:.0%}")
            total, to_come = total + entries, to_come + entries
        now = time.monotonic()
        time.sleep(min(max(LOOK, 5 * (now - began)), LONGEST))
        moved = now if to_come != before else moved
        progress.show(share, f"{workers.killed} killed")
        if now - moved > PATIENCE:
            progress.say(f"Nothing has moved for {PATIENCE} s. Open jobs: {open_jobs()}")
            progress.say(f"The readers of the ledger are {streams.behind(groups):,} positions behind.")
            break
        if to_come and _is_time_to_kill(plan, share, workers.killed, now - killed) and (victim := workers.kill_one()):
            killed = now
            progress.say(f"{victim}, at {share:.0%}")
        if report is None and (report := reports.arrived(batch)):
            progress.say(f"The import has ended, its report is mailed, at {share:.0%}: {report}")
        for line in workers.keep_going():
            progress.say(line)
    progress.end()
    return repeated or 0


def _is_time_to_kill(plan: Plan, share: float, killed: int, since: float) -> bool:
    if plan.kill_every is None:
        return share >= KILL_AT and not killed
    return since >= plan.kill_every and share > 0


def tell(closing: Closing, progress: Progress) -> None:
    """Print the closing table and what does not add up."""
    progress.say("\nClosing table")
    for entry in closing.entries:
        progress.say(f"  {entry.label:<34}{entry.value:>12}  {entry.note}".rstrip())
    if closing.reasons:
        progress.say("\nDead letters")
        for reason in closing.reasons:
            progress.say(f"  {reason}")
    for problem in closing.problems:
        progress.say(f"\nDOES NOT ADD UP: {problem}")
    if not closing.problems:
        progress.say("\nEverything adds up.")


def serve(plan: Plan, workers: Workers, progress: Progress) -> None:
    """Leave site, workers and gateway running until Ctrl-C."""
    command = [sys.executable, str(MANAGE), "runserver", "--noreload", plan.address]
    with subprocess.Popen(command, env=workers.environment, stdin=subprocess.DEVNULL) as site:
        progress.say(f"\nThe admin: http://{plan.address}/admin/   (Ctrl-C ends site and workers)")
        try:
            while site.poll() is None:
                for line in workers.keep_going():
                    progress.say(line)
                time.sleep(1)
        except KeyboardInterrupt:
            progress.say("Stopping.")
        finally:
            site.terminate()


def logs() -> Path:
    """Return where the workers' logs are."""
    return Path(settings.SHOP_HOME) / "var" / "log"
