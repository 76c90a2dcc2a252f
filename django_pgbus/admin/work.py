"""What the pages of jobs have in common, wherever the job is: in line, delayed, finished or dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.db.models import Model, Q, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import contents, event_contents, words
from django_pgbus.admin.event_copies import EventCopiesAdmin, is_copy
from django_pgbus.admin.event_filters import NEWEST_EVENTS, by_event, of_event, parsed_event
from django_pgbus.admin.holds import held
from django_pgbus.admin.job_tabs import tab_of, tabs
from django_pgbus.admin.job_words import code_at
from django_pgbus.admin.lists import GivenFilter
from django_pgbus.admin.shown import shown_path, shown_standing
from django_pgbus.admin.timeline import timeline
from django_pgbus.batches.models import Batch
from django_pgbus.concurrency.models import BlockedExecution
from django_pgbus.conf import database
from django_pgbus.queues.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.results import parsed_id
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Standing, Text

TABLES: Final[dict[str, type[Model]]] = {
    "ready": Message,
    "running": Message,
    "delayed": Delayed,
    "parked": BlockedExecution,
    "succeeded": Archived,
    "skipped": Archived,
    "discarded": Archived,
    "dead": DeadLetter,
}
PLACES: Final[dict[type[Model], Text]] = {
    Message: _("Job %(id)s is in the line."),
    Delayed: _("Job %(id)s is delayed."),
    BlockedExecution: _("Job %(id)s is parked."),
    Archived: _("Job %(id)s is finished."),
    DeadLetter: _("Job %(id)s is a dead letter."),
}
MOST_OF_A_DESCRIPTION: Final = 200


class BatchFilter(GivenFilter):
    """The members of one batch; its page leads here."""

    title = _("batch")
    parameter_name = "batch"

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the members; asked for so that no index but theirs gives their order (`batches/stats_sql.py`)."""
        id = parsed_id(value)
        return queryset.none() if id is None else queryset.filter(batch_id__range=(id, id))


class WorkAdmin(EventCopiesAdmin):
    """The page of jobs in one of their places; one that moved on is found where it is now."""

    heavy: ClassVar[tuple[str, ...]] = ("payload", "errors", "constraints")
    may_hold: ClassVar[bool] = True  # a slot or a key: what is done with holds nothing
    search_fields = ("id",)  # shows the field; get_search_results does the search
    search_help_text = _("An ID, that of an event too, or part of a path or topic")
    sortable_by: ClassVar[tuple[str, ...]] = ("job",)
    list_display_links = ("job",)

    # --- the list -----------------------------------------------------------------------------------------

    def searches_text(self, term: str) -> bool:
        """Return whether a search is for a path or a topic, which no index knows."""
        term = term.strip()
        return bool(term) and parsed_id(term) is None and parsed_event(term) is None

    def get_ordering(self, request: HttpRequest) -> Any:
        """Return the order; members of a batch and copies of events the newest first, as their indexes have them."""
        if str(BatchFilter.parameter_name) in request.GET:
            return ("-batch_id", "-id")
        return NEWEST_EVENTS if by_event(request) else super().get_ordering(request)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the job of an id, the copies of an event, or the jobs whose path or topic holds the text."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if (pk := parsed_id(term)) is not None:
            return queryset.filter(pk=pk), False
        if (event := parsed_event(term)) is not None:
            return of_event(queryset, event), False
        return queryset.filter(Q(task__icontains=term) | Q(topic__icontains=term)), False

    def finish_list(self, request: HttpRequest, context: dict[str, Any]) -> None:
        """Add the other states; say where a job is whose ID was searched for and which is not in this list."""
        super().finish_list(request, context)
        listed: Any = context["cl"]
        context["pgbus_tabs"] = tabs(self, request, tab_of(self, request))
        if not listed.result_list and (pk := parsed_id(listed.query.strip())):
            context["pgbus_elsewhere"] = self._elsewhere(request, pk)

    @admin.display(description=_("ID"), ordering="id")
    def job(self, obj: Any) -> str:
        """Return the id as it stands in logs: without separators."""
        return str(obj.pk)

    @admin.display(description=_("task"))
    def task_path(self, obj: Any) -> SafeString:
        """Return the stored path, marked if nothing can be imported from it here, and the topic of an event."""
        shown = shown_path(obj.task)
        if obj.found_task is None:
            shown = format_html('{} <span class="pgbus-mark">{}</span>', shown, _("cannot be imported here"))
        if not is_copy(obj):
            return shown
        topic = _("without a topic") if obj.topic is None else words.showable(obj.topic)
        return format_html('{}<br><span class="pgbus-quiet">{}</span>', shown, topic)

    @admin.display(description=_("state"))
    def state(self, obj: Any) -> SafeString:
        """Return how it stands in a word or two; the colour only repeats it."""
        return shown_standing(obj.standing)

    @admin.display(description=_("enqueued at"))
    def enqueued(self, obj: Any) -> str:
        """Return when it got its id."""
        return words.moment(obj.enqueued_at)

    # --- one job ------------------------------------------------------------------------------------------

    def furnish(self, rows: Sequence[Any]) -> None:
        """Attach to each row its task or handler, if it can be imported, and how it stands."""
        paths = {_key(row) for row in rows}
        found = {(path, of_event): code_at(path, of_event=of_event) for path, of_event in paths}
        situation = waiting.situation()
        for row in rows:
            row.found_task = found[_key(row)]
            row.situation = situation
            row.standing = self.standing(row)

    def standing(self, row: Any) -> Standing | None:
        """Return how a row stands; None where its page says it otherwise."""
        return None

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return a job with what it takes to explain it."""
        obj = super().get_object(request, object_id, from_field)
        if obj is not None:
            self.furnish([obj])
            obj.batch_shown = self._batch(request, obj.batch_id)
            obj.event_shown = self.event_link(request, obj.event_id)
        return obj

    def finish_page(self, request: HttpRequest, context: dict[str, Any]) -> None:
        """Add how the job stands, what may be done, and how its attempts ended."""
        super().finish_page(request, context)
        job: Any = context["original"]
        context |= {
            "title": gettext("Job %(id)s") % {"id": job.pk},
            "subtitle": words.showable(job.task if job.topic is None else f"{job.topic} → {job.task}"),
            "pgbus_standing": job.standing,
            "pgbus_buttons": self.buttons(request, job.pk, job),
            "pgbus_attempts": self._attempts(job),
            "pgbus_timeline": timeline(job, _failed_attempts(job)),
            "pgbus_held": held(self, request, job) if self.may_hold else [],
            "pgbus_waits": isinstance(job, BlockedExecution),
        }

    def _attempts(self, job: Any) -> list[dict[str, Any]]:
        return [
            {
                "title": contents.last_line(attempt.exception, attempt.traceback),
                "exception": attempt.exception,
                "number": attempt.number,
                "traceback": attempt.traceback,
                "worker": job.situation.name_of(attempt.worker),
                "failed_at": words.moment(attempt.failed_at),
                "ran_for": words.between(attempt.started_at, attempt.failed_at),
            }
            for attempt in _failed_attempts(job)
        ]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the facts of a page; its batch, and what constrains a job, only where there is anything."""
        found = super().get_fieldsets(request, obj)
        if obj is not None and is_copy(obj):
            return self.event_fieldsets(found, obj)
        if obj is not None and obj.batch_id is not None:
            (name, task), *others = found
            found = [(name, {**task, "fields": (*task["fields"], "member_of")}), *others]
        bound = {} if obj is None else {"unique_by": contents.unique_by, "limited_to": contents.limited_to}
        fields = tuple(name for name, words_of in bound.items() if words_of(obj.constraints))
        return [*found, (_("Constraints"), {"fields": fields})] if fields else found

    @admin.display(description=_("batch"))
    def member_of(self, obj: Any) -> SafeString | str:
        """Return the batch that counts it, or has counted it."""
        return obj.batch_shown  # type: ignore[no-any-return]

    @admin.display(description=_("uniqueness key"))
    def unique_by(self, obj: Any) -> SafeString | str:
        """Return the uniqueness key it carries, and from when to when it is held."""
        return contents.unique_by(obj.constraints)

    @admin.display(description=_("limited key"))
    def limited_to(self, obj: Any) -> SafeString | str:
        """Return the limit it carries, as declared when it was enqueued."""
        return contents.limited_to(obj.constraints)

    @admin.display(description=_("arguments"))
    def arguments(self, obj: Any) -> SafeString:
        """Return the arguments, sensitive ones masked."""
        text = contents.arguments(obj.payload, obj.found_task)
        if obj.found_task is None:
            return format_html(
                '<code>{}</code> <span class="pgbus-quiet">{}</span>',
                text,
                _("hidden: the task cannot be imported here"),
            )
        return format_html("<pre>{}</pre>", text)

    @admin.display(description=_("worker"))
    def worker_name(self, obj: Any) -> str:
        """Return the name of the worker, or its id once it is forgotten."""
        return obj.situation.name_of(obj.worker) if obj.worker else self.get_empty_value_display()

    def _batch(self, request: HttpRequest, id: int | None) -> SafeString | str:
        """Return a batch, linked for those who may see it while it is kept; nothing for no batch."""
        if id is None:
            return ""
        if not (url := self.link(request, Batch, "change", quote(id))):
            return str(id)
        start = Left("description", MOST_OF_A_DESCRIPTION + 1)
        found = list(Batch.objects.using(database()).filter(pk=id).values_list(start, flat=True))
        if not found:
            return format_html('{} <span class="pgbus-quiet">{}</span>', id, _("finished, and not kept any longer"))
        described = words.shortened(found[0], MOST_OF_A_DESCRIPTION)
        return format_html('<a href="{}">{}</a> <span class="pgbus-quiet">{}</span>', url, id, described)

    # --- elsewhere ----------------------------------------------------------------------------------------

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponseRedirect | HttpResponse:
        """Lead to where the job is now: jobs move while people read."""
        pk = parsed_id(unquote(object_id))
        if pk is not None and (found := self._elsewhere(request, pk)):
            self.message_user(request, found["text"], messages.INFO)
            return HttpResponseRedirect(found["url"])
        missing: HttpResponse = super()._get_obj_does_not_exist_redirect(request, opts, object_id)  # type: ignore[misc]
        return missing

    def whereabouts(self, request: HttpRequest, pk: Any) -> str:
        """Return the address of the page that shows a job now, empty if there is none for this person."""
        found = lifecycle.find(pk)
        return self.link(request, TABLES[found.state], "change", quote(pk)) if found else ""

    def _elsewhere(self, request: HttpRequest, pk: int) -> dict[str, str]:
        found = lifecycle.find(pk)
        if found is None or TABLES[found.state] is self.model:
            return {}
        url = self.link(request, TABLES[found.state], "change", quote(pk))
        return {"url": url, "text": PLACES[TABLES[found.state]] % {"id": pk}} if url else {}


def _key(row: Any) -> tuple[str, bool]:
    return row.task, is_copy(row)


def _failed_attempts(job: Any) -> list[contents.Attempt]:
    found = event_contents.attempts if is_copy(job) else contents.attempts
    return found(job.errors, job.payload, job.found_task)
