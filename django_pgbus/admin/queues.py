"""The queues: what stands in each, who serves it, and the decision to pause it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.base import PgbusAdmin, within_bounds
from django_pgbus.conf import database
from django_pgbus.exceptions import InvalidQueue
from django_pgbus.queues import stats
from django_pgbus.queues.models import DeadLetter, Delayed, Message, QueueState
from django_pgbus.queues.stats import Count, QueueStats
from django_pgbus.tasks import lifecycle
from django_pgbus.worker import stats as worker_stats
from django_pgbus.worker.stats import WorkerStats
from django_pgbus.worker.waiting import Text

PAUSE_PERMISSION: Final = "pgbus.pause_queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Pausing, or resuming."""

    name: str
    label: Text
    question: Text
    warning: Text
    button: Text
    done: Text
    log: Text


PAUSE: Final = Switch(
    name="pause",
    label=_("Pause"),
    question=_("Pause queue %(queue)s?"),
    warning=_(
        "Within a second no worker takes anything from it. What runs finishes; what comes waits until somebody "
        "resumes the queue."
    ),
    button=_("Pause queue"),
    done=_("Queue %(queue)s is paused."),
    log=_("Paused."),
)
RESUME: Final = Switch(
    name="resume",
    label=_("Resume"),
    question=_("Resume queue %(queue)s?"),
    warning=_("Workers go on with what waits in it at once."),
    button=_("Resume queue"),
    done=_("Queue %(queue)s is resumed."),
    log=_("Resumed."),
)


class QueueAdmin(PgbusAdmin):
    """One page with every queue that is known, whether or not somebody ever decided about it."""

    def get_urls(self) -> list[URLPattern]:
        """Return the page and its two switches; a row for a queue exists only once it has been paused."""
        wrap, name = self.admin_site.admin_view, self.opts.model_name
        return [
            path("", wrap(self.changelist_view), name=f"pgbus_{name}_changelist"),
            path("<path:object_id>/pause/", wrap(self.pause_view), name=f"pgbus_{name}_pause"),
            path("<path:object_id>/resume/", wrap(self.resume_view), name=f"pgbus_{name}_resume"),
            path("<path:object_id>/history/", wrap(self.history_view), name=f"pgbus_{name}_history"),
            path("<path:object_id>/change/", wrap(self.change_view), name=f"pgbus_{name}_change"),
        ]

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Return whether this person may pause and resume."""
        user: Any = request.user
        return self.has_view_permission(request) and user.has_perm(PAUSE_PERMISSION)

    @within_bounds
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Return the page of all queues."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        queues, workers = stats.queues(), worker_stats.workers()
        may_pause = self.has_pause_permission(request)
        context = {
            "title": _("Queues"),
            "rows": [self._row(request, queue, workers, may_pause=may_pause) for queue in queues],
            "may_pause": may_pause,
            "most": words.number(stats.MOST_QUEUES) if len(queues) >= stats.MOST_QUEUES else "",
        }
        return self.page(request, "queues.html", {**context, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Lead to the page of all queues: the log links here."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(self.url("changelist"))

    def pause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask whether to pause a queue, and do it."""
        return self._switch(request, PAUSE, unquote(object_id))

    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask whether to resume a queue, and do it."""
        return self._switch(request, RESUME, unquote(object_id))

    # --- the page -----------------------------------------------------------------------------------------

    def _row(
        self, request: HttpRequest, queue: QueueStats, workers: Sequence[WorkerStats], *, may_pause: bool
    ) -> dict[str, Any]:
        serving = len(worker_stats.serving(queue.name, workers))
        return {
            "name": words.showable(queue.name),
            **state_of(queue, serving),
            "cells": [
                self._cell(request, queue.ready, Message, queue=queue.name, state="ready"),
                {"text": "" if queue.oldest_ready is None else words.age(queue.oldest_ready), "url": ""},
                self._cell(request, queue.running, Message, queue=queue.name, state="running"),
                self._cell(request, queue.delayed, Delayed, queue=queue.name),
                self._cell(request, queue.dead, DeadLetter, queue=queue.name),
                {"text": words.number(serving), "url": ""},
            ],
            "switch": _switch_for(queue).label,
            "switch_url": self.url(_switch_for(queue).name, quote(queue.name)) if may_pause else "",
            "history_url": self.url("history", quote(queue.name)) if queue.paused else "",
        }

    def _cell(self, request: HttpRequest, count: Count, model: Any, **query: str) -> dict[str, str]:
        return {"text": words.count(count), "url": self.link(request, model, **query) if count else ""}

    # --- the switches -------------------------------------------------------------------------------------

    def _switch(self, request: HttpRequest, switch: Switch, name: str) -> HttpResponse:
        if not self.has_pause_permission(request):
            raise PermissionDenied
        queue = next((queue for queue in stats.queues() if queue.name == name), None)
        if queue is None:
            text = gettext("There is no queue %(queue)s.") % {"queue": words.showable(name)}
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(self.url("changelist"))
        match request.method:
            case "POST" if request.POST.get("post") == "yes":
                self._turn(request, switch, name)
                return HttpResponseRedirect(self.url("changelist"))
            case "GET" | "HEAD" | "POST":
                return self._ask(request, switch, queue)
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])

    def _ask(self, request: HttpRequest, switch: Switch, queue: QueueStats) -> HttpResponse:
        name = {"queue": words.showable(queue.name)}
        stands = gettext("Now: %(ready)s ready, %(running)s running, %(delayed)s delayed.") % {
            "ready": words.count(queue.ready),
            "running": words.count(queue.running),
            "delayed": words.count(queue.delayed),
        }
        context = {
            "title": switch.question % name,
            "crumb": switch.label,
            "warning": switch.warning,
            "stands": stands,
            "button": switch.button,
            "back": self.url("changelist"),
        }
        return self.page(request, "confirm.html", context)

    def _turn(self, request: HttpRequest, switch: Switch, name: str) -> None:
        user: Any = request.user
        by = user.get_username()
        try:
            with transaction.atomic(using=database()):
                if switch is PAUSE:
                    lifecycle.pause_queue(name, by)
                else:
                    lifecycle.resume_queue(name, by)
                LogEntry.objects.log_actions(user.pk, [QueueState(queue=name)], CHANGE, str(switch.log))
        except InvalidQueue as error:  # a name that somebody wrote into the table by hand
            self.message_user(request, str(error), messages.ERROR)
            return
        self.message_user(request, switch.done % {"queue": words.showable(name)}, messages.SUCCESS)


def _switch_for(queue: QueueStats) -> Switch:
    return RESUME if queue.paused else PAUSE


def state_of(queue: QueueStats, serving: int) -> dict[str, Any]:
    """Return the state of a queue in words, and the kind that colours them."""
    if queue.paused:
        by = queue.paused_by or gettext("somebody")
        since = gettext("by %(person)s, %(time)s") % {"person": by, "time": words.moment(queue.paused_at)}
        return {"kind": "waiting", "state": gettext("paused"), "detail": since}
    if not serving and (queue.ready or queue.running or queue.delayed):
        return {"kind": "lost", "state": gettext("no worker"), "detail": gettext("what waits here stays")}
    if not serving:
        return {"kind": "quiet", "state": gettext("empty, no worker"), "detail": ""}
    if queue.ready or queue.running:
        return {"kind": "running", "state": gettext("working"), "detail": ""}
    return {"kind": "ready", "state": gettext("idle"), "detail": ""}
