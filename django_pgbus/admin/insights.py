"""The insights: how much ran, how long it took and waited, what failed; by task and queue, over an hour, day or week."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.formats import date_format
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import charts, words
from django_pgbus.admin.base import PgbusAdmin, within_bounds
from django_pgbus.admin.charts import Series
from django_pgbus.admin.given import parsed_text
from django_pgbus.admin.shown import shown_path
from django_pgbus.insights import stats
from django_pgbus.insights.stats import Point, Runs, Window
from django_pgbus.worker.waiting import Text

MOST_TASKS: Final = 50
MOST_QUEUES: Final = 50
MOST_OF_A_FILTER: Final = 500
MINUTE: Final = 60
SPANS: Final[dict[Window, Text]] = {
    Window.HOUR: _("Last hour"),
    Window.DAY: _("Last 24 hours"),
    Window.WEEK: _("Last 7 days"),
}
STEPS: Final[dict[Window, Text]] = {
    Window.HOUR: _("Runs in each minute"),
    Window.DAY: _("Runs in each ten minutes"),
    Window.WEEK: _("Runs in each hour"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the query string asks for."""

    window: Window
    order: str
    task: str
    queue: str

    @classmethod
    def of(cls, request: HttpRequest) -> Asked:
        """Return what a request asks for; what it does not say, or says wrongly, is the default."""
        window, order = request.GET.get("window", ""), request.GET.get("order", "")
        return cls(
            window=Window(window) if window in set(Window) else Window.HOUR,
            order=order if order in stats.ORDERS else "run_seconds",
            task=parsed_text(request.GET, "task", MOST_OF_A_FILTER),
            queue=parsed_text(request.GET, "queue", MOST_OF_A_FILTER),
        )

    def url(self, **changes: Any) -> str:
        """Return the query string that asks for the same but for the changes."""
        asked = replace(self, **changes)
        query = {"window": asked.window.value, "order": asked.order, "task": asked.task, "queue": asked.queue}
        return f"?{urlencode({name: value for name, value in query.items() if value})}"


class InsightsAdmin(PgbusAdmin):
    """One page with the numbers of what ran."""

    def get_urls(self) -> list[URLPattern]:
        """Return the one page."""
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name=f"pgbus_{self.opts.model_name}_changelist")]

    @within_bounds
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Return the numbers of a window, of everything or of one task or queue."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        asked = Asked.of(request)
        overall = stats.overall(asked.window, asked.task, asked.queue)
        tasks = stats.by_task(asked.window, MOST_TASKS + 1, asked.order, asked.task, asked.queue)
        queues = stats.by_queue(asked.window, MOST_QUEUES + 1, asked.task, asked.queue)
        points = stats.series(asked.window, asked.task, asked.queue)
        context = {
            "title": _("Insights"),
            "windows": [
                {"label": label, "url": asked.url(window=window), "chosen": window is asked.window}
                for window, label in SPANS.items()
            ],
            "window": asked.window.value,
            "order": asked.order,
            "task": words.showable(asked.task),
            "queue": words.showable(asked.queue),
            "all_url": asked.url(task="", queue=""),
            "cards": list(_cards(overall, asked.window)),
            "charts": _charts(points, asked.window) if overall.number else [],
            "nothing": not overall.number,
            "orders": {name: asked.url(order=name) for name in stats.ORDERS},
            "tasks": _table(tasks, MOST_TASKS, asked, "task"),
            "queues": _table(queues, MOST_QUEUES, asked, "queue"),
        }
        return self.page(request, "insights.html", {**context, **(extra_context or {})})


# --- numbers ------------------------------------------------------------------------------------------------


def _cards(runs: Runs, window: Window) -> Iterator[dict[str, Any]]:
    per_minute = {"number": words.decimal(runs.number * MINUTE / window.seconds)}
    yield {
        "label": ngettext("run", "runs", runs.number),
        "number": words.number(runs.number),
        "note": gettext("%(number)s a minute") % per_minute,
    }
    yield {
        "label": _("failed"),
        "number": words.percent(runs.failure_rate) if runs.number else words.NOTHING,
        "note": gettext("%(failed)s to be tried again, %(dead)s for good")
        % {"failed": words.number(runs.failed), "dead": words.number(runs.dead)},
    }
    quantiles = gettext("p50 %(half)s, p99 %(most)s")
    for label, of in ((_("run time, p95"), runs.run_percentile), (_("wait, p95"), runs.wait_percentile)):
        told = {"half": _seconds(of(0.5)), "most": _seconds(of(0.99))}
        yield {"label": label, "number": _seconds(of(0.95)), "note": quantiles % told if runs.number else ""}
    no_ends = (
        (ngettext("snoozed", "snoozed", runs.snoozed), runs.snoozed),
        (ngettext("superseded", "superseded", runs.superseded), runs.superseded),
        (ngettext("handed back", "handed back", runs.handed_back), runs.handed_back),
    )
    for ended, number in no_ends:
        if number:
            yield {"label": ended, "number": words.number(number)}


def _table(found: Sequence[Runs], most: int, asked: Asked, by: str) -> dict[str, Any]:
    shown = found[:most]
    return {
        "rows": [_row(runs, asked, by) for runs in shown],
        "most": words.number(len(shown)) if len(found) > len(shown) else "",
    }


def _row(runs: Runs, asked: Asked, by: str) -> dict[str, Any]:
    name = runs.task if by == "task" else runs.queue
    failed = ngettext("%(number)s attempt", "%(number)s attempts", runs.failed + runs.dead)
    return {
        "name": words.showable(name) or gettext("others"),
        "path": shown_path(name) if by == "task" and name else "",
        "url": asked.url(**{by: name}) if name else "",
        "chosen": bool(name) and name == getattr(asked, by),
        "event": runs.event,
        "number": words.number(runs.number),
        "per_minute": words.decimal(runs.number * MINUTE / asked.window.seconds),
        "failed": words.percent(runs.failure_rate) if runs.number else words.NOTHING,
        "failures": failed % {"number": words.number(runs.failed + runs.dead)} if runs.failed or runs.dead else "",
        "time": words.age(runs.run_seconds),
        "run": [_seconds(runs.run_percentile(q)) for q in (0.5, 0.95, 0.99)],
        "longest": _seconds(runs.longest if runs.number else None),
        "wait": [_seconds(runs.wait_percentile(q)) for q in (0.5, 0.95, 0.99)],
    }


def _seconds(value: float | None) -> str:
    return words.NOTHING if value is None else words.age(value)


# --- charts -------------------------------------------------------------------------------------------------


def _charts(points: Sequence[Point], window: Window) -> list[dict[str, Any]]:
    times = [point.at for point in points]
    ran = [
        Series(kind="good", label=_("succeeded"), values=[point.succeeded for point in points]),
        Series(kind="wait", label=_("failed, tried again"), values=[point.failed for point in points]),
        Series(kind="bad", label=_("dead letters"), values=[point.dead for point in points]),
    ]
    took = [Series(kind="busy", label=_("run time"), values=[point.run_p95 for point in points])]
    waited = [Series(kind="busy", label=_("wait"), values=[point.wait_p95 for point in points])]

    def tick(at: datetime) -> str:
        return _tick(at, window)

    return [
        {"id": "runs", "title": STEPS[window], **charts.stacked(times, ran, tick)},
        {"id": "run-time", "title": _("Run time, p95"), **charts.lines(times, took, tick)},
        {"id": "waits", "title": _("Wait, p95"), **charts.lines(times, waited, tick)},
    ]


def _tick(at: datetime, window: Window) -> str:
    local = localtime(at) if is_aware(at) else at
    return date_format(local, "D j") if window is Window.WEEK else f"{local:%H:%M}"
