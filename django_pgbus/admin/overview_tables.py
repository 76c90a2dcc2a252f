"""The tables of the overview: queues, workers, streams and the database; each only as long as helps to choose a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.db.models import Model
from django.utils.translation import gettext

from django_pgbus.admin import stream_words, words
from django_pgbus.admin.queues import state_of
from django_pgbus.admin.reading import Found
from django_pgbus.admin.workers import WORDS
from django_pgbus.postgres.stats import TableStats
from django_pgbus.queues.models import Message, QueueState
from django_pgbus.queues.stats import Count, QueueStats
from django_pgbus.streams.models import StreamLog
from django_pgbus.streams.states import StreamState
from django_pgbus.worker import hindrances
from django_pgbus.worker import stats as worker_stats
from django_pgbus.worker.hindrances import Held
from django_pgbus.worker.models import Worker
from django_pgbus.worker.stats import Health, WorkerStats
from django_pgbus.worker.waiting import Situation

Pages = Mapping[type[Model], str]
Table = dict[str, Any]

MINUTE: Final = 60
MOST: Final = 15  # rows of a table; the page behind it has all of them
WORST_FIRST: Final = (Health.SILENT, Health.DEAF, Health.DRAINING, Health.BEATING)


def tables(pages: Pages, found: Found) -> dict[str, Table]:
    """Return the tables of the pages that a person may see; one that could not be read says so."""
    situation = found.get("situation")
    shown: dict[str, Table] = {}
    if url := pages.get(QueueState):
        rates = found.get("rates")
        rows = _queues(pages, found.get("queues"), situation, rates or {})
        shown["queues"] = {**_table(url, rows), "has_rates": rates is not None}
    if url := pages.get(Worker):
        shown["workers"] = _table(url, _workers(situation))
        shown["database"] = _database(found.get("tables"), found.get("held"))
    if url := pages.get(StreamLog):
        shown["streams"] = _table(url, _streams(url, found.get("streams"), situation))
    return shown


def _table(url: str, rows: tuple[list[Any], int] | None) -> Table:
    if rows is None:
        return {"url": url, "unread": True}
    shown, all_of_them = rows
    more = all_of_them > len(shown)
    return {"url": url, "rows": shown, "most": words.number(len(shown)) if more else ""}


# --- queues -------------------------------------------------------------------------------------------------


def _queues(
    pages: Pages, queues: Sequence[QueueStats] | None, situation: Situation | None, rates: Mapping[str, float]
) -> tuple[list[dict[str, Any]], int] | None:
    """Return those that need somebody, then those with the longest wait, by name; and how many there are."""
    if queues is None or situation is None:
        return None
    serving = {queue.name: len(worker_stats.serving(queue.name, situation.workers)) for queue in queues}

    def calm(queue: QueueStats) -> tuple[bool, float, int]:
        waits = bool(queue.ready or queue.running or queue.delayed)
        needs_somebody = waits and (queue.paused or not serving[queue.name])
        return not needs_somebody, -(queue.oldest_ready or 0.0), -queue.ready.number

    chosen = sorted(sorted(queues, key=calm)[:MOST], key=lambda queue: queue.name)
    return [_queue(pages, queue, serving[queue.name], rates.get(queue.name, 0.0)) for queue in chosen], len(queues)


def _queue(pages: Pages, queue: QueueStats, serving: int, rate: float) -> dict[str, Any]:
    jobs = pages.get(Message)
    return {
        "name": words.showable(queue.name),
        **state_of(queue, serving),
        "ready": words.count(queue.ready),
        "ready_url": f"{jobs}?{urlencode({'queue': queue.name, 'state': 'ready'})}" if jobs and queue.ready else "",
        "rate": words.decimal(rate * MINUTE),
        "oldest": "" if queue.oldest_ready is None else words.age(queue.oldest_ready),
        "running": words.count(queue.running),
        "workers": words.number(serving),
    }


# --- workers ------------------------------------------------------------------------------------------------


def _workers(situation: Situation | None) -> tuple[list[dict[str, Any]], int] | None:
    """Return the workers, those that are not well first; and how many there are."""
    if situation is None:
        return None
    workers = sorted(situation.workers, key=lambda worker: WORST_FIRST.index(worker.health))
    return [_worker(worker) for worker in workers[:MOST]], len(workers)


def _worker(worker: WorkerStats) -> dict[str, Any]:
    kind, state, _ = WORDS[worker.health]
    return {
        "name": words.showable(worker.name),
        "host": words.showable(worker.host),
        "kind": kind,
        "state": state,
        "queues": words.shortened(worker.queues, 80),
        "streams": words.shortened(worker.streams, 80),
        "running": words.number(worker.running),
        "capacity": words.number(worker.capacity),
        "beat": gettext("%(age)s ago") % {"age": words.age(worker.silent_for)},
    }


# --- streams ------------------------------------------------------------------------------------------------


def _streams(
    url: str, streams: Sequence[StreamState] | None, situation: Situation | None
) -> tuple[list[dict[str, Any]], int] | None:
    if streams is None or situation is None:
        return None
    worst = sorted(streams, key=lambda stream: -(stream.worst.lag_seconds or 0.0) if stream.worst else 0.0)
    chosen = sorted(worst[:MOST], key=lambda stream: stream.name)
    return [_stream(url, stream, situation) for stream in chosen], len(streams)


def _stream(url: str, stream: StreamState, situation: Situation) -> dict[str, Any]:
    worst = stream.worst
    behind = Count(sum(group.lag > 0 for group in stream.groups), stream.more_groups)
    return {
        "name": words.showable(stream.name),
        "url": f"{url}{stream.id}/change/",
        "behind": words.count(behind),
        "groups": f"{words.number(len(stream.groups))}{'+' if stream.more_groups else ''}",
        "lag": words.number(worst.lag) if worst and worst.lag else "",
        "age": words.age(worst.lag_seconds) if worst and worst.lag and worst.lag_seconds is not None else "",
        "of": words.showable(worst.name) if worst and worst.lag and len(stream.groups) > 1 else "",
        "dead": words.count(stream.dead) if stream.dead else "",
        "attention": list(stream_words.attention(stream, situation)),
    }


# --- the database -------------------------------------------------------------------------------------------


def _database(health: Sequence[TableStats] | None, held: Sequence[Held] | None) -> Table:
    return {
        "unread": health is None and held is None,
        "tables": None if health is None else [_health(table) for table in health],
        "held": None if held is None else [transaction(one) for one in held[:MOST]],
    }


def _health(table: TableStats) -> dict[str, Any]:
    lags = hindrances.lags(table)
    return {
        "name": words.showable(table.name),
        "kind": "waiting" if lags else "ready",
        "state": gettext("many dead rows") if lags else gettext("in order"),
        "live": words.number(table.live),
        "dead": words.number(table.dead),
        "vacuumed": "" if table.vacuumed is None else gettext("%(age)s ago") % {"age": words.age(table.vacuumed)},
    }


def transaction(one: Held) -> dict[str, Any]:
    """Return an open transaction in words, and the statement that ends it."""
    name = words.showable(one.name)
    return {
        "who": (gettext("prepared transaction %(name)s") if one.prepared else gettext("process %(name)s"))
        % {"name": name},
        "about": words.showable(one.about),
        "age": words.age(one.seconds),
        "end": f"ROLLBACK PREPARED {_quoted(name)}" if one.prepared else f"SELECT pg_terminate_backend({name})",
        "holds": gettext("keeps dead rows from going") if one.holds_snapshot else gettext("keeps what it has locked"),
    }


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
