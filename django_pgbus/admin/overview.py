"""
The page above all others, at the head of the list of our pages: how everything stands, and what needs a person.

A person sees what the pages of that list would show, and nothing else is even asked for. What is asked for is read in parts
(`reading.py`): one that cannot be read says so, and the others are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Model
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import overview_cards, overview_tables, overview_warnings, words
from django_pgbus.admin.reading import Found, read
from django_pgbus.concurrency import stats as concurrency_stats
from django_pgbus.concurrency.models import BlockedExecution
from django_pgbus.events import stats as event_stats
from django_pgbus.events.models import Subscription
from django_pgbus.insights import stats as insights
from django_pgbus.insights.models import RunCount
from django_pgbus.insights.stats import Window
from django_pgbus.queues import stats
from django_pgbus.queues.models import DeadLetter, Delayed, Message, QueueState
from django_pgbus.streams import stats as stream_stats
from django_pgbus.streams.models import StreamLog
from django_pgbus.worker import hindrances, waiting
from django_pgbus.worker.models import Worker
from django_pgbus.worker.waiting import Text

HOUR: Final = 3600.0
MOST_STREAMS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something to read, and for whom: whoever may see the page of one of these models."""

    label: Text
    ask: Callable[[], Any]
    pages: tuple[type[Model], ...]


PARTS: Final[dict[str, Part]] = {
    "queues": Part(label=_("queues"), ask=lambda: stats.queues(), pages=(Message, Delayed, DeadLetter, QueueState)),
    "situation": Part(
        label=_("workers"),
        ask=lambda: waiting.situation(),
        pages=(Worker, QueueState, StreamLog, Subscription),
    ),
    "parked": Part(label=_("parked jobs"), ask=lambda: concurrency_stats.parked(), pages=(BlockedExecution,)),
    "delays": Part(label=_("retrying jobs"), ask=lambda: stats.delays(), pages=(Delayed,)),
    "died": Part(label=_("dead letters of the last hour"), ask=lambda: stats.died(HOUR), pages=(DeadLetter,)),
    "subscriptions": Part(label=_("subscriptions"), ask=lambda: event_stats.subscriptions(), pages=(Subscription,)),
    "streams": Part(label=_("streams"), ask=lambda: stream_stats.overview(MOST_STREAMS + 1), pages=(StreamLog,)),
    "alarms": Part(label=_("alarms of streams"), ask=lambda: stream_stats.alarms(), pages=(StreamLog,)),
    "unknown": Part(label=_("tasks that wait"), ask=lambda: hindrances.unknown_tasks(), pages=(Message,)),
    "series": Part(label=_("what ran in the last hour"), ask=lambda: insights.series(Window.HOUR), pages=(RunCount,)),
    "rates": Part(label=_("rates of the queues"), ask=lambda: insights.rates(), pages=(RunCount,)),
    "tables": Part(label=_("tables"), ask=lambda: hindrances.tables(), pages=(Worker,)),
    "held": Part(label=_("open transactions"), ask=lambda: hindrances.held(), pages=(Worker,)),
}


def overview(app_list: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the page shows for a list of apps, which holds only the pages that a person may see."""
    pages = {
        listed["model"]: listed["admin_url"]
        for app in app_list
        for listed in app["models"]
        if listed.get("admin_url") and listed["model"]._meta.app_label == "pgbus"
    }
    wanted = {name: part.ask for name, part in PARTS.items() if any(model in pages for model in part.pages)}
    if not wanted:
        return {}
    found = read(wanted)
    return {
        "now": words.clock(timezone.now()),
        "unread": list(_unread(found)),
        "warnings": sorted(overview_warnings.warnings(pages, found), key=lambda warning: warning["kind"] != "lost"),
        "cards": list(overview_cards.cards(pages, found)),
        "hour": overview_cards.hour(found),
        **overview_tables.tables(pages, found),
    }


def _unread(found: Found) -> list[str]:
    """Return the names of the parts that could not be read."""
    return [
        gettext("%(part)s (took too long)") % {"part": PARTS[name].label} if slow else str(PARTS[name].label)
        for name, slow in found.unread.items()
    ]
