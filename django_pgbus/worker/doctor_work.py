"""The looks of `pgbus_doctor` at the work: what waits, who would do it, and whether this code knows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import django_pgbus
from django_pgbus.events import subscriptions
from django_pgbus.tasks.runnable import kind_of, load_path
from django_pgbus.worker import doctor_sql as sql
from django_pgbus.worker.findings import Finding, Findings, Grade
from django_pgbus.worker.plan import Capsule, parse_queues

BACKLOG_COUNTED: Final = 10_000
TASK_ROWS: Final = 10_000  # of each table, the oldest
MOST_NAMED: Final = 20  # findings of a kind


# --- workers ------------------------------------------------------------------------------------------


def workers() -> Findings:
    """Look whether the living workers hear of work, and run the code of one version."""
    living = sql.LIVING_WORKERS.rows()
    deaf = [worker.name for worker in living if worker.listening is False]
    if deaf:
        yield Finding(
            Grade.WARN,
            "workers",
            f"{', '.join(deaf)} hear no notifications and only poll",
            "See notifications, above.",
            deaf[0],
        )
    names: defaultdict[str, set[str]] = defaultdict(set)
    for worker in living:
        names[worker.version].add(worker.name)
    mixed = len(names) > 1 or (names and django_pgbus.__version__ not in names)
    if mixed:
        found = ", ".join(f"{version} ({_some(sorted(names[version]))})" for version in sorted(names))
        yield Finding(
            Grade.WARN,
            "workers",
            f"run pgbus {found}; this code has {django_pgbus.__version__}",
            "In the middle of a deployment that is as it should be. After it, restart those of before.",
            min(names.keys() - {django_pgbus.__version__}),
        )
    if not deaf and not mixed:
        yield Finding(Grade.OK, "workers", f"{len(living)} alive{f', all of version {min(names)}' if names else ''}")


# --- queues -------------------------------------------------------------------------------------------


def queues() -> Findings:
    """Look whether every queue with work has a worker, and none has a name that is a slip of the pen."""
    backlogs = sql.BACKLOGS.rows(counted=BACKLOG_COUNTED)
    living = sql.LIVING_WORKERS.rows()
    capsules = [capsule for worker in living for capsule in _capsules(worker.queues)]
    known = {name for capsule in capsules for name in capsule.names}
    known |= {row.queue for row in backlogs if _served(row.queue, capsules)}
    served = 0
    for row in backlogs:
        jobs = f"{row.jobs:,}{'+' if row.jobs == BACKLOG_COUNTED else ''} jobs"
        if row.paused_at is not None:
            yield Finding(
                Grade.WARN,
                "queues",
                f"{row.queue!r} is paused{f' by {row.paused_by}' if row.paused_by else ''}, {jobs} wait",
                "Resume it on the page Queues of the admin.",
                row.queue,
            )
        elif _served(row.queue, capsules):
            served += 1
        elif near := sorted(name for name in known if looks_like(row.queue, name)):
            yield Finding(
                Grade.FAIL,
                "queues",
                f"{row.queue!r} has {jobs} and no living worker; {near[0]!r}, one letter away, has one",
                f"Correct the queue_name of the task, or the --queues of the worker. Until then: manage.py runworker "
                f"--queues {row.queue!r}",
                row.queue,
            )
        else:
            yield Finding(
                Grade.FAIL,
                "queues",
                f"{row.queue!r} has {jobs} and no living worker",
                f"Start one: manage.py runworker --queues {row.queue!r}",
                row.queue,
            )
    if living or not backlogs:
        yield Finding(Grade.OK, "queues", f"{len(living)} living workers, {served} queues with work served")


def _served(queue: str, capsules: Iterable[Capsule]) -> bool:
    return any(capsule.serves(queue) for capsule in capsules)


def _capsules(text: str) -> tuple[Capsule, ...]:
    try:
        return parse_queues(text, threads=1)
    except ValueError:  # A worker of another version.
        return ()


def looks_like(one: str, other: str) -> bool:
    """Return whether one name is the other with one letter added, missing, wrong, or in the place of its neighbour."""
    if one == other or abs(len(one) - len(other)) > 1 or _lettered(one) == _lettered(other):
        return False  # shard1 and shard2 are meant to be two
    start = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    left, right = one[start:], other[start:]
    swapped = left[:2] == right[1::-1] and left[2:] == right[2:]
    return left[1:] == right[1:] or left[1:] == right or left == right[1:] or swapped


def _lettered(name: str) -> str:
    return "".join(letter for letter in name if not letter.isdigit())


# --- code ---------------------------------------------------------------------------------------------


def tasks() -> Findings:
    """Import what waits, as a worker of this code would."""
    rows = sql.TASKS.rows(rows=TASK_ROWS)
    unknown: dict[str, BaseException] = {}
    waiting: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        waiting[row.task] += row.jobs
        try:
            load_path(row.task, kind_of(row.topic))
        except (Exception, SystemExit) as error:  # whatever a module raises when it is imported
            unknown[row.task] = error
    for path, reason in list(unknown.items())[:MOST_NAMED]:
        yield Finding(
            Grade.FAIL,
            "tasks",
            f"{path} waits ({waiting[path]:,}{_bounded(waiting[path])} jobs) and cannot be imported: {_line(reason)}",
            "Deploy the code that has it, or discard these jobs: each of their attempts fails.",
            path,
        )
    if len(unknown) > MOST_NAMED:
        rest = list(unknown)[MOST_NAMED:]
        yield Finding(
            Grade.FAIL,
            "tasks",
            f"{len(rest)} more paths wait and cannot be imported, {sum(waiting[path] for path in rest):,} jobs",
            "See those above.",
        )
    if not unknown:
        yield Finding(Grade.OK, "tasks", f"all {len(waiting)} that wait can be imported")


def _bounded(jobs: int) -> str:
    return " or more" if jobs >= TASK_ROWS else ""


def events() -> Findings:
    """Look for what is published to handlers that are not there."""
    paths = {row.handler for row in subscriptions.stored()}
    unknown = subscriptions.unknown(paths)
    for path in unknown:
        yield Finding(
            Grade.WARN,
            "events",
            f"{path} is subscribed, and this code does not have it",
            f"If no other does: manage.py pgbus_subscriptions --unbind {path}",
            path,
        )
    if not unknown:
        yield Finding(Grade.OK, "events", f"all {len(paths)} subscribed handlers are in this code")


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else repr(error)


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
