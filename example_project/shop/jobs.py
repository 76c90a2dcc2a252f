"""The shop's jobs, as the queue has them."""

from __future__ import annotations

from django.db.models import Count

from django_pgbus.models import Archived, DeadLetter, Delayed, Message

PATH = "shop.tasks."
STEPS = {f"{PATH}import_order": 4, f"{PATH}write_order": 3, f"{PATH}charge_payment": 2, f"{PATH}send_receipt": 1}


def open_jobs() -> dict[str, int]:
    """Return how many jobs of each task have not ended. One statement, so none is missed on its way between tables."""
    counts = [
        model.objects.filter(task__startswith=PATH).values("task").annotate(number=Count("*")).order_by()
        for model in (Message, Delayed)
    ]
    found: dict[str, int] = {}
    for each in counts[0].union(counts[1], all=True):
        found[each["task"]] = found.get(each["task"], 0) + each["number"]
    return found


def ended_jobs() -> int:
    """Return how many jobs have ended, well or not."""
    return sum(model.objects.filter(task__startswith=PATH).count() for model in (Archived, DeadLetter))


def share_done() -> float:
    """Return which share of all steps is done, from 0 to 1; exactly 1 when no job is open."""
    to_come = sum(number * STEPS.get(task, 1) for task, number in open_jobs().items())
    return 1.0 if not to_come else (done := ended_jobs()) / (done + to_come)
