"""Jobs in the line, delayed and finished: lists and pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import contents, event_contents, job_words, words
from django_pgbus.admin.all_jobs import AllJobsAdmin
from django_pgbus.admin.event_filters import EventFilter, EventsFilter
from django_pgbus.admin.job_decisions import DISCARD, HAND_BACK, RUN_NOW
from django_pgbus.admin.lists import FarQueueFilter, QueueFilter, RunningFilter, field_filter
from django_pgbus.admin.work import BatchFilter, WorkAdmin
from django_pgbus.queues import stats
from django_pgbus.queues.models import Archived, Delayed
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Kind, Standing

SOONEST: Final = _("Searched are those that are due first in each queue.")
WORK: Final[Any] = (_("Task"), {"fields": ("task_path", "arguments")})


class MessageAdmin(AllJobsAdmin):
    """All jobs in one list; and the line by itself: what is ready, and what a worker has."""

    decisions = (HAND_BACK, DISCARD)
    actions = (HAND_BACK.as_action(), DISCARD.as_action())
    list_display = ("job", "task_path", "queue", "state", "so_long", "attempts")
    list_filter = (RunningFilter, EventsFilter, EventFilter, BatchFilter, QueueFilter)
    ordering = ("-id",)
    fieldsets = (
        WORK,
        (_("In the line"), {"fields": ("queue", "priority", "in_line_since", "place", "enqueued")}),
        (_("Run"), {"fields": ("attempts", "delivery", "worker_now", "claimed", "lease", "suspicion")}),
    )

    def has_hand_back_permission(self, request: HttpRequest) -> bool:
        """Return whether this person may take jobs from their workers."""
        return self.may(request, HAND_BACK)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Return whether this person may discard jobs."""
        return self.may(request, DISCARD)

    def standing(self, row: Any) -> Standing:
        """Return how it stands in the line."""
        return waiting.with_code(waiting.in_line(row, row.situation), has_code=row.found_task is not None)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return a job and, if it is ready, how many go before it."""
        job = super().get_object(request, object_id, from_field)
        if job is not None:
            waits = job.leased_until is None
            job.ahead = stats.ahead(job.queue, job.priority, job.suspect, job.position) if waits else None
        return job

    @admin.display(description=_("for"))
    def so_long(self, obj: Any) -> str:
        """Return for how long it has stood so: with its worker, or in the line."""
        since = obj.claimed_at if obj.leased_until and obj.claimed_at else obj.ready_at
        return words.between(since, obj.situation.pauses.now)

    @admin.display(description=_("suspect"))
    def suspicion(self, obj: Any) -> str:
        """Return whether it was there when a process ended."""
        return gettext("yes: it runs alone, a process that ran it ended") if obj.suspect else gettext("no")

    @admin.display(description=_("place"))
    def place(self, obj: Any) -> str:
        """Return how many go before it."""
        if obj.ahead is None:
            return gettext("with a worker")
        if not obj.ahead:
            return gettext("the next of its queue")
        text = ngettext(
            "%(number)s job of its queue goes first", "%(number)s jobs of its queue go first", obj.ahead.number
        )
        return text % {"number": words.count(obj.ahead)}

    @admin.display(description=_("in line since"))
    def in_line_since(self, obj: Any) -> str:
        """Return since when it stands in the line."""
        return _since(obj.ready_at, obj)

    @admin.display(description=_("worker"))
    def worker_now(self, obj: Any) -> str:
        """Return the worker that has it."""
        return self.worker_name(obj) if obj.leased_until else self.get_empty_value_display()

    @admin.display(description=_("claimed at"))
    def claimed(self, obj: Any) -> str:
        """Return when its worker took it."""
        return _since(obj.claimed_at, obj) if obj.leased_until else self.get_empty_value_display()

    @admin.display(description=_("leased until"))
    def lease(self, obj: Any) -> str:
        """Return until when it is its worker's, unless renewed."""
        return words.moment(obj.leased_until) or self.get_empty_value_display()


class DelayedAdmin(WorkAdmin):
    """What waits for its time."""

    decisions = (RUN_NOW, DISCARD)
    actions = (RUN_NOW.as_action(), DISCARD.as_action())
    list_display = ("job", "task_path", "queue", "state", "due", "attempts")
    list_filter = (
        field_filter("reason", _("reason"), stats.soonest_ids, SOONEST),
        EventsFilter,
        EventFilter,
        BatchFilter,
        QueueFilter,
    )
    ordering = ("-id",)
    fieldsets = (
        WORK,
        (_("Delay"), {"fields": ("due", "queue", "priority", "enqueued")}),
        (_("Run"), {"fields": ("attempts", "delivery")}),
    )

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        """Return whether this person may let jobs run before their time."""
        return self.may(request, RUN_NOW)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Return whether this person may discard jobs."""
        return self.may(request, DISCARD)

    def standing(self, row: Any) -> Standing:
        """Return what it waits for."""
        stands = waiting.with_code(waiting.later(row, row.situation), has_code=row.found_task is not None)
        if stands.kind is Kind.WAITING and row.reason == Delayed.Reason.RETRY:
            return replace(stands, reason=f"{stands.reason} {job_words.next_attempt(row, row.found_task)}")
        return stands

    @admin.display(description=_("due at"))
    def due(self, obj: Any) -> str:
        """Return when it may run, and how far off that is."""
        left = (obj.due_at - obj.situation.pauses.now).total_seconds()
        told = gettext("in %(age)s") if left > 0 else gettext("%(age)s ago")
        return f"{words.moment(obj.due_at)} ({told % {'age': words.age(abs(left))}})"


class ArchivedAdmin(WorkAdmin):
    """What finished."""

    heavy = ("payload", "errors", "constraints", "result")
    may_hold = False
    reach = "finished_at"
    list_display = ("job", "task_path", "queue", "state", "ran_for", "attempts", "finished")
    list_filter = (field_filter("outcome", _("outcome")), EventsFilter, EventFilter, BatchFilter, FarQueueFilter)
    ordering = ("-finished_at",)
    sortable_by = ("job", "finished")
    fieldsets = (
        WORK,
        (_("Outcome"), {"fields": ("result_text", "note_text", "finished", "ran_for")}),
        (_("Run"), {"fields": ("queue", "priority", "attempts", "delivery", "worker_name", "started", "enqueued")}),
    )

    def standing(self, row: Any) -> Standing:
        """Return how it ended."""
        if row.outcome == Archived.Outcome.DISCARDED:
            return waiting.ended(row.outcome, _("It was discarded and never runs again."))
        if row.outcome == Archived.Outcome.SKIPPED:
            return waiting.ended(row.outcome, event_contents.why_skipped(row.note))
        took = words.between(row.started_at, row.finished_at)
        reason = gettext("Its last run took %(age)s.") % {"age": took} if took else ""
        return waiting.ended(row.outcome, reason)

    @admin.display(description=_("ran for"))
    def ran_for(self, obj: Any) -> str:
        """Return how long its last run took."""
        return words.between(obj.started_at, obj.finished_at) or self.get_empty_value_display()

    @admin.display(description=_("finished at"), ordering="finished_at")
    def finished(self, obj: Any) -> str:
        """Return when it finished."""
        return words.moment(obj.finished_at)

    @admin.display(description=_("started at"))
    def started(self, obj: Any) -> str:
        """Return when its last run began."""
        return words.moment(obj.started_at) or self.get_empty_value_display()

    @admin.display(description=_("note"))
    def note_text(self, obj: Any) -> str:
        """Return what was noted when it ended; why it was skipped, in words."""
        noted = event_contents.why_skipped(obj.note) if obj.outcome == Archived.Outcome.SKIPPED else obj.note
        return str(noted) or self.get_empty_value_display()

    @admin.display(description=_("result"))
    def result_text(self, obj: Any) -> SafeString | str:
        """Return what the task returned, without sensitive arguments."""
        if obj.outcome != Archived.Outcome.SUCCEEDED:
            return self.get_empty_value_display()
        return format_html("<pre>{}</pre>", contents.result(obj.result, obj.payload, obj.found_task))


def _since(at: Any, obj: Any) -> str:
    waited = (obj.situation.pauses.now - at).total_seconds()
    return gettext("%(time)s, for %(age)s") % {"time": words.moment(at), "age": words.age(waited)}
