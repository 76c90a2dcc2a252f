"""What needs a person, in sentences; each leads to the page where it can be mended, or on which more is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.db.models import Model
from django.utils.translation import gettext, ngettext

from django_pgbus.admin import words
from django_pgbus.admin.reading import Found
from django_pgbus.events.models import Subscription
from django_pgbus.postgres.stats import TableStats
from django_pgbus.queues.models import DeadLetter, Message, QueueState
from django_pgbus.queues.stats import QueueStats
from django_pgbus.streams.models import StreamLog
from django_pgbus.streams.states import Alarms
from django_pgbus.worker import hindrances
from django_pgbus.worker.models import Worker
from django_pgbus.worker.stats import WorkerStats

Pages = Mapping[type[Model], str]
Warning = dict[str, str]

NAMED: Final = 3
OF_EACH: Final = 4  # sentences of one kind; the tables and pages have the others
DATABASE: Final = "#pgbus-database"


def warnings(pages: Pages, found: Found) -> Iterator[Warning]:
    """Yield what is wrong, as far as a person may see it."""
    situation = found.get("situation")
    workers: Sequence[WorkerStats] | None = None if situation is None else situation.workers
    if workers is not None:
        yield from _nobody(pages, workers)
        yield from _first(_unserved(pages, found.get("queues") or (), workers))
        yield from _of_workers(pages, workers)
        yield from _subscribed(pages, found.get("subscriptions") or (), workers)
    yield from _first(_paused(pages, found.get("queues") or ()))
    if died := found.get("died"):
        text = ngettext(
            "%(number)s job became a dead letter within the last hour.",
            "%(number)s jobs became dead letters within the last hour.",
            died.number,
        )
        yield _lost(pages[DeadLetter], text % {"number": words.count(died)})
    yield from _first(_unknown(pages, found.get("unknown") or ()))
    yield from _of_streams(pages, found.get("alarms"))
    yield from _first(_open(found))
    yield from _dead_rows(found.get("tables") or ())


def _lost(url: str, text: str) -> Warning:
    return {"url": url, "text": text, "kind": "lost"}


def _waiting(url: str, text: str) -> Warning:
    return {"url": url, "text": text, "kind": "waiting"}


def _first(all_of_a_kind: Iterable[Warning]) -> list[Warning]:
    return list(all_of_a_kind)[:OF_EACH]


# --- workers and the queues they serve ----------------------------------------------------------------------


def _nobody(pages: Pages, workers: Sequence[WorkerStats]) -> Iterator[Warning]:
    url = pages.get(Worker) or pages.get(QueueState)
    if not url or not hindrances.nobody(workers):
        return
    if any(worker.takes_jobs for worker in workers):
        yield _lost(url, gettext("No running worker takes jobs: whatever is enqueued waits."))
        return
    text = gettext("No worker is running: whatever is enqueued waits.")
    if last := _last_of(workers, lambda _: True):
        heard = gettext("The last was heard of %(time)s.") % {"time": words.clock(last.beat_at)}
        text = f"{text} {heard}"
    yield _lost(url, text)


def _unserved(pages: Pages, queues: Sequence[QueueStats], workers: Sequence[WorkerStats]) -> Iterator[Warning]:
    if QueueState not in pages or hindrances.nobody(workers):  # then that is said, for all of them
        return
    for queue in hindrances.unserved(queues, workers):
        text = gettext("No running worker serves queue %(queue)s: %(number)s ready, the oldest for %(age)s.") % {
            "queue": words.showable(queue.name),
            "number": words.count(queue.ready),
            "age": words.age(queue.oldest_ready or 0.0),
        }
        last = _last_of(workers, lambda worker, name=queue.name: worker.serves(name))  # type: ignore[misc]
        if last is not None and Worker in pages:
            told = {"worker": words.showable(last.name), "time": words.clock(last.beat_at)}
            heard = gettext("The last that did, %(worker)s, was heard of %(time)s.")
            text = f"{text} {heard % told}"
        yield _lost(pages.get(Worker) or pages[QueueState], text)


def _last_of(workers: Sequence[WorkerStats], chosen: Callable[[WorkerStats], bool]) -> WorkerStats | None:
    """Return who of the workers that take no jobs any more was heard of last."""
    gone = [worker for worker in workers if not worker.takes_jobs and chosen(worker)]
    return max(gone, key=lambda worker: worker.beat_at, default=None)


def _of_workers(pages: Pages, workers: Sequence[WorkerStats]) -> Iterator[Warning]:
    url = pages.get(Worker)
    if not url:
        return
    if silent := len(hindrances.silent(workers)):
        text = ngettext("%(number)s worker fell silent.", "%(number)s workers fell silent.", silent)
        yield _lost(url, text % {"number": words.number(silent)})
    if deaf := len(hindrances.deaf(workers)):
        text = ngettext(
            "%(number)s worker hears no notifications and only polls.",
            "%(number)s workers hear no notifications and only poll.",
            deaf,
        )
        yield _waiting(url, text % {"number": words.number(deaf)})


def _subscribed(pages: Pages, subscriptions: Sequence[Any], workers: Sequence[WorkerStats]) -> Iterator[Warning]:
    if hindrances.nobody(workers):
        return
    if unserved := hindrances.unheard((one.queue for one in subscriptions), workers):
        text = ngettext(
            "Handlers are subscribed to a queue that no running worker serves: %(names)s.",
            "Handlers are subscribed to queues that no running worker serves: %(names)s.",
            len(unserved),
        )
        yield _waiting(pages[Subscription], text % {"names": _names(unserved)})


def _paused(pages: Pages, queues: Sequence[QueueStats]) -> Iterator[Warning]:
    if not (url := pages.get(QueueState)):
        return
    for queue in hindrances.held_up(queues):
        number = queue.ready or queue.delayed
        text = ngettext(
            "Queue %(queue)s is paused since %(time)s, and %(number)s job waits in it.",
            "Queue %(queue)s is paused since %(time)s, and %(number)s jobs wait in it.",
            number.number,
        )
        told = {"queue": words.showable(queue.name), "number": words.count(number)}
        yield _waiting(url, text % {**told, "time": words.clock(queue.paused_at)})


# --- jobs and streams ---------------------------------------------------------------------------------------


def _unknown(pages: Pages, paths: Sequence[str]) -> Iterator[Warning]:
    for path in paths:
        text = gettext("%(task)s waits, and the code of this server does not have it.")
        url = f"{pages[Message]}?{urlencode({'q': path.encode('utf-8', 'replace')})}"
        yield _waiting(url, text % {"task": words.shortened(path, 200)})


def _of_streams(pages: Pages, alarms: Alarms | None) -> Iterator[Warning]:
    if alarms is None:
        return
    url = pages[StreamLog]
    if refusing := alarms.refusing:
        text = ngettext(
            "A consumer group refuses to work: %(names)s.", "Consumer groups refuse to work: %(names)s.", len(refusing)
        )
        yield _lost(url, text % {"names": _names(refusing)})
    if paused := alarms.paused:
        text = ngettext("Paused consumer group: %(names)s.", "Paused consumer groups: %(names)s.", len(paused))
        yield _waiting(url, text % {"names": _names(paused)})
    if dead := alarms.dead:
        text = ngettext(
            "%(number)s dead letter of a stream waits for a person.",
            "%(number)s dead letters of streams wait for a person.",
            dead.number,
        )
        yield _waiting(url, text % {"number": words.count(dead)})


def _names(names: Sequence[str]) -> str:
    named = ", ".join(map(words.showable, names[:NAMED]))
    if len(names) <= NAMED:
        return named
    return gettext("%(names)s and %(number)s more") % {"names": named, "number": words.number(len(names) - NAMED)}


# --- the database -------------------------------------------------------------------------------------------


def _open(found: Found) -> Iterator[Warning]:
    for one in found.get("held") or ():
        text = gettext("A transaction has been open for %(age)s, of process %(name)s (%(about)s).")
        if one.prepared:
            text = gettext("A prepared transaction has been open for %(age)s: %(name)s (%(about)s).")
        told = {"age": words.age(one.seconds), "name": words.showable(one.name), "about": words.showable(one.about)}
        yield _waiting(DATABASE, text % told)


def _dead_rows(tables: Sequence[TableStats]) -> Iterator[Warning]:
    for table in filter(hindrances.lags, tables):
        told = {"table": table.name, "dead": words.number(table.dead), "live": words.number(table.live)}
        text = gettext("%(table)s has %(dead)s dead rows beside %(live)s live ones: autovacuum lags behind.")
        yield _waiting(DATABASE, text % told)
