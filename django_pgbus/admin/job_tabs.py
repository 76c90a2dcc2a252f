"""The tabs above every list of jobs: all of them, and each state with its number."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.admin import ModelAdmin
from django.db.models import Model
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.bounds import TookTooLongError, bounded
from django_pgbus.concurrency.models import BlockedExecution
from django_pgbus.queues.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.tasks import stats
from django_pgbus.worker.waiting import Text

QUICK: Final = 2_000  # milliseconds; numbers that take longer are left out
ALL: Final = "all"
TABS: Final[tuple[tuple[str, Text, type[Model], dict[str, str]], ...]] = (
    (ALL, _("All"), Message, {}),
    ("ready", _("Ready"), Message, {"state": "ready"}),
    ("running", _("Running"), Message, {"state": "running"}),
    ("delayed", _("Delayed"), Delayed, {}),
    ("retrying", _("Retrying"), Delayed, {"reason": "retry"}),
    ("parked", _("Parked"), BlockedExecution, {}),
    ("dead", _("Dead"), DeadLetter, {}),
    ("finished", _("Finished"), Archived, {}),
)


def tabs(page: Any, request: HttpRequest, current: str) -> list[dict[str, Any]]:
    """Return the tabs that a person may follow; `current` names the one that is open."""
    try:
        with bounded(QUICK):
            counts = stats.counts()
    except TookTooLongError:
        counts = None
    found = [(name, label, page.link(request, model, **query)) for name, label, model, query in TABS]
    return [
        {
            "label": label,
            "url": url,
            "number": "" if counts is None or name == ALL else words.count(getattr(counts, name)),
            "current": name == current,
        }
        for name, label, url in found
        if url
    ]


def tab_of(page: ModelAdmin[Any], request: HttpRequest) -> str:
    """Return which tab the list of a model is, with these filters; nothing where it is none of them."""
    asked = {name: request.GET.get(name) for name in ("state", "reason")}
    for name, _label, model, query in TABS[1:]:
        if page.model is model and {key: value for key, value in asked.items() if value} == query:
            return name
    return ""
