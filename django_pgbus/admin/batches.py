"""Batches: how far each is, where its members are, and what is enqueued when it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import batch_words, words
from django_pgbus.admin.base import PgbusAdmin
from django_pgbus.admin.contents import MOST_CHARACTERS
from django_pgbus.admin.dead_letters import last_errors
from django_pgbus.admin.lists import ChoiceFilter
from django_pgbus.admin.shown import end, shown_path, shown_standing
from django_pgbus.admin.work import MOST_OF_A_DESCRIPTION
from django_pgbus.batches import stats
from django_pgbus.batches.stats import MOST_MEMBERS, BatchStats, Places
from django_pgbus.concurrency.models import BlockedExecution, Semaphore
from django_pgbus.queues.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.queues.stats import Count
from django_pgbus.tasks.results import parsed_id
from django_pgbus.worker import waiting

TABLES: Final[dict[str, type[Model]]] = {"line": Message, "delayed": Delayed, "parked": BlockedExecution}


class StateFilter(ChoiceFilter):
    """Finished or not; an index knows either."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the two states."""
        return [("open", _("Not finished")), ("finished", _("Finished"))]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the batches of the state."""
        if value not in {"open", "finished"}:
            return queryset.none()
        return queryset.filter(finished_at__isnull=value == "open")


class BatchAdmin(PgbusAdmin):
    """The batches, and one batch with its members."""

    heavy = ("description", "properties", "callbacks", "key")
    list_display = ("number", "described_shortly", "progress", "failures", "state", "opened", "ended")
    list_display_links = ("number",)
    list_filter = (StateFilter,)
    search_fields = ("id",)  # shows the field; get_search_results does the search
    search_help_text = _("An ID")
    sortable_by = ("number",)

    # --- the list -----------------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the batches, with as much of their description as fits the list."""
        start = Left("description", MOST_OF_A_DESCRIPTION + 1)
        rows: QuerySet[Any] = super().get_queryset(request).annotate(start=start)
        return rows

    def get_ordering(self, request: HttpRequest) -> Any:
        """Return the newest first; of those that are finished what ended last, as their index has them."""
        return ("-finished_at",) if request.GET.get(str(StateFilter.parameter_name)) == "finished" else ("-id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the batch of an id."""
        if not (term := search_term.strip()):
            return queryset, False
        id = parsed_id(term)
        return queryset.none() if id is None else queryset.filter(pk=id), False

    def furnish(self, rows: Sequence[Any]) -> None:
        """Attach to each row how far it is."""
        known = stats.standing([row.pk for row in rows])
        for row in rows:
            row.stats = known.get(row.pk) or _folded(row)
            row.standing = batch_words.standing(row)

    @admin.display(description=_("ID"), ordering="id")
    def number(self, obj: Any) -> str:
        """Return the id as it stands in logs: without separators."""
        return str(obj.pk)

    @admin.display(description=_("description"))
    def described_shortly(self, obj: Any) -> str:
        """Return as much of the description as fits."""
        return words.shortened(obj.start, MOST_OF_A_DESCRIPTION) or self.get_empty_value_display()

    @admin.display(description=_("progress"))
    def progress(self, obj: Any) -> SafeString:
        """Return a bar, and in words what it shows."""
        done, total = obj.stats.done, obj.stats.total
        counted = {"done": words.count(done), "total": words.count(total)}
        return format_html(
            '<span class="pgbus-progress pgbus-{}"><progress max="{}" value="{}" aria-label="{}"></progress>'
            ' <span>{}</span> <span class="pgbus-quiet">{}</span></span>',
            obj.standing.kind.value,
            max(1, total.number),
            done.number if total.number else 1,
            gettext("Progress of batch %(id)s") % {"id": obj.pk},
            gettext("%(percent)d%%") % {"percent": obj.stats.percent},
            gettext("%(done)s of %(total)s") % counted,
        )

    @admin.display(description=_("failed"))
    def failures(self, obj: Any) -> SafeString | str:
        """Return how many members failed; the colour only repeats that there are any."""
        failed = words.count(obj.stats.failed)
        return format_html('<span class="pgbus-state pgbus-lost">{}</span>', failed) if obj.stats.failed else failed

    @admin.display(description=_("state"))
    def state(self, obj: Any) -> SafeString:
        """Return whether it is finished, or how many members are outstanding."""
        return shown_standing(obj.standing)

    @admin.display(description=_("opened at"))
    def opened(self, obj: Any) -> str:
        """Return when it was opened."""
        return words.moment(obj.created_at)

    @admin.display(description=_("finished at"))
    def ended(self, obj: Any) -> str:
        """Return when its last member had ended; where the day is that on which it was opened, only the time."""
        opened, finished = words.moment(obj.created_at), words.moment(obj.finished_at)
        day, _space, time = finished.rpartition(" ")
        return (time if opened.startswith(f"{day} ") else finished) or self.get_empty_value_display()

    @admin.display(description=_("finished at"))
    def finished(self, obj: Any) -> str:
        """Return when its last member had ended."""
        return words.moment(obj.finished_at) or self.get_empty_value_display()

    # --- one batch ----------------------------------------------------------------------------------------

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return a batch with what it takes to explain it."""
        obj = super().get_object(request, object_id, from_field)
        if obj is not None:
            self.furnish([obj])
            obj.situation = waiting.situation()
        return obj

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the facts of a page, those that a batch has; its description where the title does not hold all of it."""
        described = ("described",) if obj is not None and len(obj.description) > MOST_OF_A_DESCRIPTION else ()
        key = ("key_chosen",) if obj is not None and obj.key else ()
        return [(_("Batch"), {"fields": (*described, "opened", "finished", "lasted", *key, "properties_text")})]

    def finish_page(self, request: HttpRequest, context: dict[str, Any]) -> None:
        """Add where its members are, and what is enqueued when it ends."""
        batch: Any = context["original"]
        places = stats.places(batch.pk)
        locks = self.link(request, Semaphore, q=batch.key) if batch.key and not batch.finished_at else ""
        context |= {
            "title": gettext("Batch %(id)s") % {"id": batch.pk},
            "subtitle": words.shortened(batch.description, MOST_OF_A_DESCRIPTION),
            "pgbus_buttons": [{"label": _("Locks"), "url": locks}] if locks else [],
            "pgbus_batch": {
                "standing": batch.standing,
                "progress": self.progress(batch),
                "cards": list(self._cards(request, batch, places)),
                "callbacks": list(self._callbacks(request, batch)),
                "outstanding": self._outstanding(request, batch),
                "failed": self._failed(request, batch),
                "missing": batch_words.missing(batch.stats, places),
                "most": words.number(MOST_MEMBERS),
            },
        }

    @admin.display(description=_("description"))
    def described(self, obj: Any) -> str:
        """Return the description."""
        return words.showable(obj.description, MOST_CHARACTERS)

    @admin.display(description=_("took"))
    def lasted(self, obj: Any) -> str:
        """Return how long it took from being opened to its end, or takes so far."""
        if obj.finished_at:
            return words.between(obj.created_at, obj.finished_at)
        return gettext("%(age)s so far") % {"age": words.between(obj.created_at, obj.situation.pauses.now)}

    @admin.display(description=_("uniqueness key"))
    def key_chosen(self, obj: Any) -> SafeString:
        """Return its key, and from when to when it is held."""
        told = gettext("free since it finished") if obj.finished_at else gettext("held until it is finished")
        return format_html(
            '<code class="pgbus-key">{}</code> <span class="pgbus-quiet">{}</span>',
            words.showable(obj.key, MOST_CHARACTERS),
            told,
        )

    @admin.display(description=_("properties"))
    def properties_text(self, obj: Any) -> SafeString | str:
        """Return what whoever opened it wanted its callbacks to know."""
        text = batch_words.pretty(obj.properties)
        return format_html("<pre>{}</pre>", text) if text != "{}" else self.get_empty_value_display()

    # --- its members --------------------------------------------------------------------------------------

    def _cards(self, request: HttpRequest, batch: Any, places: Places) -> Iterator[dict[str, Any]]:
        of_batch = {"batch": batch.pk}

        def card(label: str, number: Count, model: type[Model] | None = None, **query: Any) -> dict[str, Any]:
            url = self.link(request, model, **of_batch, **query) if model and number else ""
            return {"label": label, "number": words.count(number), "url": url}

        yield card(ngettext("member", "members", batch.stats.total.number), batch.stats.total)
        if not batch.finished_at:
            yield card(ngettext("ready", "ready", places.ready.number), places.ready, Message, state="ready")
            yield card(ngettext("running", "running", places.running.number), places.running, Message, state="running")
            yield card(ngettext("delayed", "delayed", places.delayed.number), places.delayed, Delayed)
            yield card(ngettext("parked", "parked", places.parked.number), places.parked, BlockedExecution)
        yield card(ngettext("succeeded", "succeeded", batch.stats.succeeded.number), batch.stats.succeeded, Archived)
        url = self.link(request, DeadLetter, **of_batch) if places.dead else ""
        failed = batch.stats.failed
        yield {**card(ngettext("failed", "failed", failed.number), failed), "url": url, "alarm": bool(failed)}

    def _callbacks(self, request: HttpRequest, batch: Any) -> Iterator[dict[str, Any]]:
        """Yield what is enqueued when it ends; once it was, with the way to the jobs of that task."""
        for callback in batch_words.callbacks(batch):
            task = callback["task"]
            yield {**callback, "url": self.link(request, Message, q=task) if task and batch.finished_at else ""}

    def _outstanding(self, request: HttpRequest, batch: Any) -> dict[str, Any]:
        members = stats.outstanding(batch.pk, MOST_MEMBERS + 1)
        rows = [
            {
                "job": str(member.id),
                "url": self.link(request, TABLES[member.place], "change", quote(member.id)),
                "path": shown_path(member.task),
                "queue": words.showable(member.queue),
                "standing": batch_words.member_standing(member, batch.situation),
                "due": words.clock(member.due_at),
                "attempts": words.number(member.attempts),
            }
            for member in members[:MOST_MEMBERS]
        ]
        return {"rows": rows, "more": len(members) > MOST_MEMBERS}

    def _failed(self, request: HttpRequest, batch: Any) -> dict[str, Any]:
        members = stats.dead(batch.pk, MOST_MEMBERS + 1)
        # What it died of is for those who may see dead letters.
        errors = last_errors([member.id for member in members]) if self.link(request, DeadLetter) else {}
        rows = [
            {
                "job": str(member.id),
                "url": self.link(request, DeadLetter, "change", quote(member.id)),
                "path": shown_path(member.task),
                "queue": words.showable(member.queue),
                "error": errors.get(member.id, ""),
                "end": end(member.reason, member.attempts),
                "died": words.moment(member.died_at),
            }
            for member in members[:MOST_MEMBERS]
        ]
        return {"rows": rows, "more": len(members) > MOST_MEMBERS}


def _folded(row: Any) -> BatchStats:
    """Return how far a batch is by its own row: it has gone since."""
    return BatchStats(id=row.pk, total=Count(row.total), succeeded=Count(row.succeeded), failed=Count(row.failed))
