"""The numbers above the list of our pages: what a person wants to know before choosing one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from django.db import DatabaseError
from django.db.models import Model
from django.utils.translation import gettext, ngettext

from django_pgbus.admin import words
from django_pgbus.admin.bounds import TookTooLongError, bounded
from django_pgbus.concurrency import stats as concurrency_stats
from django_pgbus.concurrency.models import BlockedExecution
from django_pgbus.concurrency.stats import Parked
from django_pgbus.events import stats as event_stats
from django_pgbus.events.models import Subscription
from django_pgbus.queues import stats
from django_pgbus.queues.models import DeadLetter, Delayed, Message, QueueState
from django_pgbus.queues.stats import Count, Totals
from django_pgbus.streams import stats as stream_stats
from django_pgbus.streams.models import StreamLog
from django_pgbus.streams.states import Alarms
from django_pgbus.worker import stats as worker_stats
from django_pgbus.worker.models import Worker
from django_pgbus.worker.stats import Health, WorkerStats

Pages = Mapping[type[Model], str]

NAMED: Final = 3


def summary(app_list: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return cards and warnings for the pages in a list of apps, which holds only those a person may see."""
    pages: Pages = {
        listed["model"]: listed["admin_url"]
        for app in app_list
        for listed in app["models"]
        if listed.get("admin_url") and listed["model"]._meta.app_label == "pgbus"
    }
    if not pages:
        return {}
    try:
        with bounded():
            totals, workers = stats.totals(stats.queues()), worker_stats.workers()
            parked = concurrency_stats.parked()
            subscribed = {one.queue for one in event_stats.subscriptions()} if Subscription in pages else set()
            alarms = stream_stats.alarms() if StreamLog in pages else None
    except (DatabaseError, TookTooLongError):  # not migrated yet, or away: the list below is still of use
        return {"unknown": True}
    cards = list(_cards(pages, totals, parked, workers))
    warnings = [*_warnings(pages, totals, workers, subscribed), *_of_streams(pages, alarms)]
    return {"cards": cards, "warnings": warnings}


def _cards(
    pages: Pages, totals: Totals, parked: Sequence[Parked], workers: Sequence[WorkerStats]
) -> Iterator[dict[str, Any]]:
    if url := pages.get(Message):
        oldest = _oldest(totals.oldest_ready or 0.0) if totals.ready else ""
        yield _card(f"{url}?state=ready", gettext("ready"), words.count(totals.ready), oldest)
        yield _card(f"{url}?state=running", gettext("running"), words.count(totals.running))
    if url := pages.get(Delayed):
        yield _card(url, gettext("delayed"), words.count(totals.delayed))
    if url := pages.get(BlockedExecution):
        waits = [of_kind.oldest for of_kind in parked if of_kind.oldest is not None]
        number = sum((of_kind.number for of_kind in parked), Count(0))
        yield _card(url, gettext("parked"), words.count(number), _oldest(max(waits)) if waits else "")
    if url := pages.get(DeadLetter):
        yield _card(url, gettext("dead letters"), words.count(totals.dead), alarm=bool(totals.dead))
    if url := pages.get(Worker):
        working = [worker for worker in workers if worker.takes_jobs]
        threads = sum(worker.capacity for worker in working)
        note = ngettext("%(number)s thread", "%(number)s threads", threads) % {"number": words.number(threads)}
        yield _card(url, gettext("workers"), words.number(len(working)), note if working else "", alarm=not working)


def _oldest(seconds: float) -> str:
    return gettext("oldest for %(age)s") % {"age": words.age(seconds)}


def _card(url: str, label: str, number: str, note: str = "", *, alarm: bool = False) -> dict[str, Any]:
    return {"url": url, "label": label, "number": number, "note": note, "alarm": alarm}


def _warnings(
    pages: Pages, totals: Totals, workers: Sequence[WorkerStats], subscribed: Collection[str]
) -> Iterator[dict[str, str]]:
    if url := pages.get(Worker):
        if not any(worker.takes_jobs for worker in workers):
            yield {"url": url, "text": gettext("No worker is running: whatever is enqueued waits.")}
        if silent := sum(worker.health is Health.SILENT for worker in workers):
            text = ngettext("%(number)s worker fell silent.", "%(number)s workers fell silent.", silent)
            yield {"url": url, "text": text % {"number": words.number(silent)}}
        if deaf := sum(worker.health is Health.DEAF for worker in workers):
            text = ngettext(
                "%(number)s worker hears no notifications and only polls.",
                "%(number)s workers hear no notifications and only poll.",
                deaf,
            )
            yield {"url": url, "text": text % {"number": words.number(deaf)}}
    works = any(worker.takes_jobs for worker in workers)
    unserved = sorted(queue for queue in subscribed if works and not worker_stats.serving(queue, workers))
    if (url := pages.get(Subscription)) and unserved:
        text = ngettext(
            "Handlers are subscribed to a queue that no running worker serves: %(names)s.",
            "Handlers are subscribed to queues that no running worker serves: %(names)s.",
            len(unserved),
        )
        yield {"url": url, "text": text % {"names": _names(unserved)}}
    if (url := pages.get(QueueState)) and (paused := totals.paused):
        text = ngettext("Paused queue: %(names)s.", "Paused queues: %(names)s.", len(paused))
        yield {"url": url, "text": text % {"names": _names(paused)}}


def _of_streams(pages: Pages, alarms: Alarms | None) -> Iterator[dict[str, str]]:
    if alarms is None:
        return
    url = pages[StreamLog]
    if refusing := alarms.refusing:
        text = ngettext(
            "A consumer group refuses to work: %(names)s.", "Consumer groups refuse to work: %(names)s.", len(refusing)
        )
        yield {"url": url, "text": text % {"names": _names(refusing)}}
    if paused := alarms.paused:
        text = ngettext("Paused consumer group: %(names)s.", "Paused consumer groups: %(names)s.", len(paused))
        yield {"url": url, "text": text % {"names": _names(paused)}}
    if dead := alarms.dead:
        text = ngettext(
            "%(number)s dead letter of a stream waits for a person.",
            "%(number)s dead letters of streams wait for a person.",
            dead.number,
        )
        yield {"url": url, "text": text % {"number": words.count(dead)}}


def _names(queues: Sequence[str]) -> str:
    return ", ".join(map(words.showable, queues[:NAMED])) + (" …" if len(queues) > NAMED else "")
