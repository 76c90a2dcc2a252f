"""
Every page of ours that a browser can ask for, read from the URL patterns themselves: a new page is not forgotten.

A pattern is filled with rows that are there; lists are asked with each filter, search and order they offer. A pattern
of which nobody has said what to ask raises NoExample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db.models import Max, Min
from django.test import RequestFactory
from django.urls import URLPattern, get_resolver

from django_pgbus.models import (
    Batch,
    BlockedExecution,
    EntryException,
    Message,
    Semaphore,
    StreamLog,
    Subscription,
    UniquenessKey,
)

OURS: Final = "admin/pgbus/"
CHOICES: Final = 2  # of a filter that are asked for
# Nothing is added or deleted in our pages; an address without its end, and a queue, lead to another page.
STATUS: Final = {"add": 403, "delete": 403, "moved": 302, "pgbus_queuestate_change": 302}
SEARCHES: Final = {"a path": "import", "nothing": "no such thing"}


MONITORS: Final = "pgbus/"
SCRAPE: Final = 300  # milliseconds that the numbers for monitors may take


class NoExample(LookupError):
    """A URL pattern of ours is measured by nobody: say in `tests/scale/pages.py` what to ask it."""


@dataclass(frozen=True, slots=True, order=True)
class Page:
    """A page: a name that is the same in every database, its address in this one, and what it has to keep to."""

    name: str
    address: str
    status: int = 200
    most_milliseconds: float = 1000


class Examples:
    """What to ask, of the rows that are in this database."""

    @cached_property
    def stream(self) -> StreamLog:
        """Return the stream with the most entries."""
        return StreamLog.objects.get(name="ledger")

    @cached_property
    def batch(self) -> Batch:
        """Return the batch with the most members."""
        return Batch.objects.filter(finished_at=None).earliest("pk")

    @cached_property
    def copy(self) -> Message:
        """Return a copy of an event."""
        return Message.objects.filter(event_id__isnull=False).latest("pk")

    @cached_property
    def parked(self) -> BlockedExecution:
        """Return a parked job, so that its key has others that wait."""
        return BlockedExecution.objects.filter(waits_for="semaphore").earliest("pk")

    @property
    def middle(self) -> int:
        """Return an ID that jobs in the line stand above and below."""
        ends = Message.objects.aggregate(oldest=Min("pk"), newest=Max("pk"))
        return int(ends["oldest"] + ends["newest"]) // 2

    def given(self) -> dict[str, Any]:
        """Return a value for each filter that offers none to choose from."""
        return {"batch": self.batch.pk, "event": self.copy.event_id, "key": self.parked.key, "queue": "q001"}

    def of_pages(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return what to ask beside what lists of Django's offer, by the name of the pattern and by a label."""
        lock = UniquenessKey.objects.earliest("created_at")
        subscription = Subscription.objects.earliest("pk")
        failed = EntryException.objects.filter(group__stream=self.stream)
        of_group = {"stream": self.stream.pk, "group": "totals"}
        waiting, dead = failed.filter(status="ready").earliest("pk"), failed.filter(status="dead").earliest("pk")
        key = {"key": Semaphore.objects.get(key=self.parked.key).key}
        return {
            "pgbus_semaphore_changelist": {
                "": {},
                "searched for a limited key": {"q": key["key"]},
                "searched for a unique key": {"q": lock.key},
                "searched for nothing": {"q": "no such thing"},
            },
            "pgbus_semaphore_release": {"": key},
            "pgbus_semaphore_discard_parked": {"": key},
            "pgbus_semaphore_discard_lock": {"": {"key": lock.key, "job": lock.message_id}},
            "pgbus_streamlog_changelist": {
                "": {},
                "searched for one": {"q": "ledger"},
                "searched for nothing": {"q": "no such thing"},
            },
            "pgbus_streamlog_pause": {"": of_group},
            "pgbus_streamlog_resume": {"": {**of_group, "group": "mail"}},
            "pgbus_streamlog_rewind": {
                "": of_group,
                "to the beginning": {**of_group, "to": "beginning"},
                "to the end": {**of_group, "to": "end"},
                "to a position": {**of_group, "to": "position", "position": 5},
            },
            "pgbus_streamlog_override": {"": {"stream": self.stream.pk}},
            "pgbus_streamlog_redrive": {"": {**of_group, "entry": dead.pk}},
            "pgbus_streamlog_discard": {"": {**of_group, "entry": waiting.pk}},
            "pgbus_streamlog_redrive_dead": {"": of_group},
            "pgbus_streamlog_discard_dead": {"": of_group},
            "pgbus_subscription_changelist": {
                "": {},
                "searched for a topic": {"q": "orders"},
                "searched for nothing": {"q": "no such thing"},
                "of one event": {"q": self.copy.event_id},
            },
            "pgbus_subscription_unbind": {"": {"handler": subscription.handler, "pattern": subscription.pattern}},
            "pgbus_queuestate_changelist": {"": {}},
            "pgbus_worker_changelist": {"": {}},
            "pgbus_message_changelist": {
                "of all jobs, further down": {"below": self.middle},
                "of all jobs, at a key": {"q": key["key"]},
            },
            "pgbus_runcount_changelist": {
                "": {},
                **{f"of {window}": {"window": window} for window in ("1h", "24h", "7d")},
                **{f"by {order}": {"window": "7d", "order": order} for order in ("slowest", "failures", "number")},
                "of a task": {"window": "7d", "task": "shop.tasks.task_1"},
                "of a queue": {"window": "7d", "queue": "q001"},
            },
        }

    def objects(self, model: Any) -> dict[str, Any]:
        """Return the rows to look at, by what is special about each."""
        name = model._meta.model_name
        if name == "queuestate":
            return {"paused": "q007"}
        if name == "streamlog":
            return {"longest": self.stream.pk}
        rows = model._default_manager.order_by("pk")
        found = {"oldest": rows.first().pk, "newest": rows.last().pk}
        if name == "message":
            found["running"] = rows.filter(leased_until__isnull=False, event_id=None).first().pk
        if name == "batch":
            found = {"open": self.batch.pk, "finished": rows.filter(finished_at__isnull=False).first().pk}
        return found

    def entry(self) -> int:
        """Return a failed entry."""
        return EntryException.objects.filter(group__stream=self.stream, status="dead").latest("pk").pk


def every_page() -> Iterator[Page]:
    """Yield the pages of our admin, and what else of ours has an address."""
    examples = Examples()
    yield Page("index", "/admin/")
    yield Page("app_list", f"/{OURS}")
    for route, pattern in _patterns(get_resolver(), ""):
        if route.startswith(OURS):
            yield from _of_pattern(route, pattern, examples)
        elif route.startswith(MONITORS):
            yield Page(route, f"/{route}", most_milliseconds=SCRAPE)


def _patterns(resolver: Any, before: str) -> Iterator[tuple[str, URLPattern]]:
    for pattern in resolver.url_patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            yield route, pattern
        else:
            yield from _patterns(pattern, route)


def _of_pattern(route: str, pattern: URLPattern, examples: Examples) -> Iterator[Page]:
    model = _model(route)
    name = pattern.name or f"pgbus_{model._meta.model_name}_moved"
    kind = name.rpartition("_")[2]
    status = STATUS.get(name, STATUS.get(kind, 200))
    if "<" in route:
        every = examples.objects(model)
        rows = every if kind == "change" else dict([*every.items()][:1])
        for label, pk in rows.items():
            yield Page(f"{name} of the {label}", f"/{_filled(route, pk, examples)}", status)
        return
    if status != 200:
        asked: dict[str, dict[str, Any]] | None = {"": {}}
    else:
        asked = examples.of_pages().get(name)
        if kind == "changelist" and admin.site._registry[model].list_display != ("__str__",):  # a list of Django's
            asked = _of_list(model, examples) | (asked or {})
    if asked is None:
        raise NoExample(f"{name}, at {route}")
    for label, query in asked.items():
        yield Page(f"{name} {label}".rstrip(), f"/{route}?{urlencode(query)}".rstrip("?"), status)


def _model(route: str) -> Any:
    name = route.removeprefix(OURS).partition("/")[0]
    found = [model for model in admin.site._registry if model._meta.label_lower == f"pgbus.{name}"]
    if not found:
        raise NoExample(f"{route}: no model of ours is registered as {name}")
    return found[0]


def _filled(route: str, pk: Any, examples: Examples) -> str:
    filled = route.replace("<path:object_id>", str(pk)).replace("<int:entry>", str(examples.entry()))
    if "<" in filled:
        raise NoExample(f"{route}: what is to stand in {filled[filled.index('<') :]}?")
    return filled


# --- lists --------------------------------------------------------------------------------------------


def _of_list(model: Any, examples: Examples) -> dict[str, dict[str, Any]]:
    """Return what can be asked of a list of Django's, by what it is called."""
    page = admin.site._registry[model]
    request = RequestFactory().get("/")
    request.user = get_user_model().objects.filter(is_superuser=True).earliest("pk")
    shown = page.get_changelist_instance(request)
    asked: dict[str, dict[str, Any]] = {"": {}}
    if page.search_fields:
        newest = model._default_manager.latest("pk").pk
        searches = {"an ID": newest, "an event": examples.copy.event_id, **SEARCHES}
        asked |= {f"searched for {label}": {"q": text} for label, text in searches.items()}
    for spec in page.get_list_filter(request):
        for value in _choices(spec, request, page, examples):
            label = spec.parameter_name if value in examples.given().values() else f"{spec.parameter_name}={value}"
            asked[f"with {label}"] = {spec.parameter_name: value}
            if page.search_fields:
                asked[f"with {label}, searched"] = {spec.parameter_name: value, "q": "import"}
    for column, field in enumerate(shown.list_display):
        if field in (page.get_sortable_by(request) or ()):
            asked |= {f"by {field} {sign or '+'}": {"o": f"{sign}{column}"} for sign in ("", "-")}
    if shown.paginator.num_pages > 1:
        asked["last page"] = {"p": shown.paginator.num_pages}
    return asked


def _choices(spec: Callable[..., Any], request: Any, page: Any, examples: Examples) -> list[Any]:
    made = spec(request, {}, page.model, page)
    if made.parameter_name in examples.given():
        return [examples.given()[made.parameter_name]]
    values = [value for value, _ in made.lookup_choices]
    if not values:
        raise NoExample(f"the filter {made.parameter_name} of {page} offers nothing, and no example is given")
    return values[:CHOICES]
