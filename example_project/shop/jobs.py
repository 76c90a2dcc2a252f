"""The shop's jobs, as the queue has them."""

from __future__ import annotations

from django.db.models import Count

from django_pgbus.models import Batch, BlockedExecution, DeadLetter, Delayed, Message

PATH = "shop.tasks."
ORDER = ("import_order", "write_order", "charge_customer", "call_gateway", "send_receipt")
STEPS = {f"{PATH}{task}": to_come for to_come, task in enumerate(reversed(ORDER), 1)}


def open_jobs() -> dict[str, int]:
    """Return how many jobs of each task have not ended. One statement, so none is missed on its way between tables."""
    counts = [
        model.objects.filter(task__startswith=PATH).values("task").annotate(number=Count("*")).order_by()
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
    return reports + sum(number * STEPS.get(task, 1) for task, number in open_jobs().items())


def last_error(letter: DeadLetter) -> str:
    """Return the last error of a dead letter as one line."""
    errors = letter.errors or [{}]
    lines = (errors[-1].get("traceback") or "").strip().splitlines() or ["no error recorded"]
    return str(lines[-1].strip())
