"""The workers: who beats, who fell silent, and who serves what."""

from __future__ import annotations

from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.base import PgbusAdmin, within_bounds
from django_pgbus.worker import stats
from django_pgbus.worker.stats import Health, WorkerStats
from django_pgbus.worker.waiting import Text

WORDS: Final[dict[Health, tuple[str, Text, Text]]] = {
    Health.BEATING: ("ready", _("beating"), ""),
    Health.DRAINING: ("waiting", _("stopping"), _("finishes what runs and takes nothing new")),
    Health.DEAF: ("waiting", _("deaf"), _("hears no notifications, finds jobs only by polling")),
    Health.SILENT: ("lost", _("silent"), _("since %(time)s; what it held runs again elsewhere")),
}
NOWHERE: Final[Text] = _("since %(time)s; what it held runs again as soon as a worker runs")


class WorkerAdmin(PgbusAdmin):
    """One page with every worker process of the last hour."""

    def get_urls(self) -> list[URLPattern]:
        """Return the one page."""
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name=f"pgbus_{self.opts.model_name}_changelist")]

    @within_bounds
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Return the page of all workers."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        workers = stats.workers()
        context = {
            "title": _("Workers"),
            "rows": [_row(worker, elsewhere=any(one.takes_jobs for one in workers)) for worker in workers],
            "most": words.number(stats.MOST_WORKERS) if len(workers) >= stats.MOST_WORKERS else "",
        }
        return self.page(request, "workers.html", {**context, **(extra_context or {})})


def _row(worker: WorkerStats, *, elsewhere: bool) -> dict[str, Any]:
    kind, state, detail = WORDS[worker.health]
    if worker.health is Health.SILENT and not elsewhere:
        detail = NOWHERE
    return {
        "name": words.showable(worker.name),
        "process": gettext("process %(pid)s on %(host)s") % {"pid": worker.pid, "host": words.showable(worker.host)},
        "kind": kind,
        "state": state,
        "detail": detail % {"time": words.moment(worker.beat_at)} if worker.health is Health.SILENT else detail,
        "dispatcher": worker.dispatcher,
        "queues": words.showable(worker.queues),
        "streams": words.showable(worker.streams) if worker.streams else "",
        "running": words.number(worker.running),
        "capacity": words.number(worker.capacity),
        "superseded": words.number(worker.superseded) if worker.superseded else "",
        "many_superseded": worker.superseded,
        "beat": gettext("%(age)s ago") % {"age": words.age(worker.silent_for)},
        "started": words.moment(worker.started_at),
        "version": worker.version,
    }
