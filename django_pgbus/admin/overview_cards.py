"""The numbers at the head of the overview; each leads to the page that has more of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.db.models import Model
from django.utils.translation import gettext, ngettext

from django_pgbus.admin import charts, words
from django_pgbus.admin.reading import Found
from django_pgbus.concurrency.models import BlockedExecution
from django_pgbus.concurrency.stats import Parked
from django_pgbus.insights.models import RunCount
from django_pgbus.insights.stats import Point
from django_pgbus.queues import stats
from django_pgbus.queues.models import DeadLetter, Delayed, Message
from django_pgbus.queues.stats import Count, Totals
from django_pgbus.worker.models import Worker
from django_pgbus.worker.waiting import Situation

Pages = Mapping[type[Model], str]
Card = dict[str, Any]
Cards = Iterator[Card]

LATELY: Final = 5  # minutes


def cards(pages: Pages, found: Found) -> Cards:
    """Return the cards of the pages that a person may see; one that could not be read has no number."""
    queues = found.get("queues")
    totals = None if queues is None else stats.totals(queues)
    if url := pages.get(Message):
        yield _counted(f"{url}?state=ready", lambda n: ngettext("ready", "ready", n), totals.ready if totals else None)
        yield {**_card(f"{url}?state=ready", gettext("oldest ready"), _oldest(totals)), "long": True}
        yield _counted(
            f"{url}?state=running", lambda n: ngettext("running", "running", n), totals.running if totals else None
        )
    if url := pages.get(Delayed):
        delays = found.get("delays")
        retrying = None if delays is None else sum((of_queue.retrying for of_queue in delays.values()), Count(0))
        yield _counted(url, lambda n: ngettext("delayed", "delayed", n), totals.delayed if totals else None)
        yield _counted(f"{url}?reason=retry", lambda n: ngettext("retrying", "retrying", n), retrying)
    if url := pages.get(BlockedExecution):
        yield _parked(url, found.get("parked"))
    if url := pages.get(DeadLetter):
        died = found.get("died")
        note = gettext("%(number)s in the last hour") % {"number": words.count(died)} if died else ""
        dead = totals.dead if totals else None
        card = _counted(url, lambda n: ngettext("dead letter", "dead letters", n), dead, note)
        yield {**card, "alarm": bool(dead)}
    if url := pages.get(Worker):
        yield _workers(url, found.get("situation"))
    if url := pages.get(RunCount):
        yield from _runs(url, found.get("series"))


def _oldest(totals: Totals | None) -> str | None:
    if totals is None:
        return None
    return words.NOTHING if totals.oldest_ready is None else words.age(totals.oldest_ready)


def _parked(url: str, kinds: Sequence[Parked] | None) -> Card:
    if kinds is None:
        return _card(url, gettext("parked"), None)
    waits = [kind.oldest for kind in kinds if kind.oldest is not None]
    note = gettext("oldest for %(age)s") % {"age": words.age(max(waits))} if waits else ""
    number = sum((kind.number for kind in kinds), Count(0))
    return _counted(url, lambda n: ngettext("parked", "parked", n), number, note)


def _workers(url: str, situation: Situation | None) -> Card:
    if situation is None:
        return _card(url, gettext("workers"), None)
    working = [worker for worker in situation.workers if worker.takes_jobs]
    threads = sum(worker.capacity for worker in working)
    note = ngettext("%(busy)s of %(number)s thread busy", "%(busy)s of %(number)s threads busy", threads)
    told = {"busy": words.number(sum(worker.running for worker in working)), "number": words.number(threads)}
    number, note = Count(len(working)), note % told if working else ""
    card = _counted(url, lambda n: ngettext("worker", "workers", n), number, note)
    return {**card, "alarm": not working}


def _runs(url: str, points: Sequence[Point] | None) -> Cards:
    if points is None:
        yield _card(url, gettext("finished a minute"), None)
        yield _card(url, gettext("failures"), None)
        return
    whole = points[:-1]  # the last minute goes on
    finished = [point.succeeded + point.failed + point.dead for point in whole]
    rate = sum(finished[-LATELY:]) / LATELY
    over = gettext("over the last five minutes")
    line = {"line": charts.sparkline(finished), "kind": "good"}
    yield {**_card(url, gettext("finished a minute"), words.decimal(rate), over), **line}
    failed = sum(point.failed + point.dead for point in points)
    number = failed + sum(point.succeeded for point in points)
    told = {"failed": words.number(failed), "number": words.number(number)}
    note = gettext("%(failed)s of %(number)s in the last hour") % told if number else gettext("no run in the last hour")
    line = {"line": charts.sparkline([point.failed + point.dead for point in whole]), "kind": "bad"}
    yield {**_card(url, gettext("failures"), words.percent(failed / number) if number else words.NOTHING, note), **line}


def hour(found: Found) -> list[dict[str, str]]:
    """Return the numbers behind the lines, the last minute first."""
    return [
        {
            "at": words.clock(point.at),
            "finished": words.number(point.succeeded + point.failed + point.dead),
            "failed": words.number(point.failed),
            "dead": words.number(point.dead),
        }
        for point in reversed(found.get("series") or ())
    ]


def _counted(url: str, label: Callable[[int], str], number: Count | None, note: str = "") -> Card:
    """Return the card of a count; `label` says what so many are called."""
    if number is None:
        return _card(url, label(0), None)
    return _card(url, label(number.number), words.count(number), note)


def _card(url: str, label: str, number: str | None, note: str = "") -> Card:
    if number is None:
        number, note = words.NOTHING, gettext("not read")
    return {"url": url, "label": label, "number": number, "note": note, "alarm": False}
