"""The shop's jobs, as the queue has them: tasks, and the copies of events that its handlers get."""

from __future__ import annotations

from django.db.models import Count

from django_pgbus.models import Batch, BlockedExecution, DeadLetter, Delayed, Message

SHOP = "shop."
PATH = f"{SHOP}tasks."
HANDLERS = f"{SHOP}handlers."

# What the end of each brings about, at most.
NEXT = {
    "tasks.import_order": ("tasks.write_order",),
    "tasks.write_order": (
        "tasks.charge_customer",
        "handlers.take_from_stock",
        "handlers.count_sales",
        "handlers.welcome",
        "handlers.audit",
        "streams.keep_totals",  # no job: what the entry of the ledger is waited for
    ),
    "tasks.charge_customer": ("tasks.call_gateway",),
    "tasks.call_gateway": ("tasks.send_receipt", "handlers.audit"),
}


def steps(job: str) -> int:
    """Return how many steps a job has before it, its own included."""
    return 1 + sum(map(steps, NEXT.get(job.removeprefix(SHOP), ())))


def open_jobs() -> dict[str, int]:
    """Return how many jobs of each path have not ended. One statement, so none is missed on its way between tables."""
    counts = [
        model.objects.filter(task__startswith=SHOP).values("task").annotate(number=Count("*")).order_by()
        for model in (Message, Delayed, BlockedExecution)
    ]
    found: dict[str, int] = {}
    for each in counts[0].union(*counts[1:], all=True):
        found[each["task"]] = found.get(each["task"], 0) + each["number"]
    return found


def steps_to_come() -> int:
    """
    Return how many steps the open jobs have before them, their own included; 0 when none is open.

    A batch that is not finished is a step: its report. It is counted first, so what its end enqueues is not missed.
    """
    reports = Batch.objects.filter(finished_at=None).count()
    return reports + sum(number * steps(job) for job, number in open_jobs().items())


def last_error(letter: DeadLetter) -> str:
    """Return the last error of a dead letter as one line."""
    errors = letter.errors or [{}]
    lines = (errors[-1].get("traceback") or "").strip().splitlines() or ["no error recorded"]
    return str(lines[-1].strip())
