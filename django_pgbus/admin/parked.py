"""Parked jobs: what each waits for, since when, and what may be decided about it."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import contents, words
from django_pgbus.admin.job_decisions import DISCARD, RUN_NOW
from django_pgbus.admin.jobs import WORK
from django_pgbus.admin.lists import ChoiceFilter, FarQueueFilter, GivenFilter
from django_pgbus.admin.work import BatchFilter, WorkAdmin
from django_pgbus.concurrency.models import BlockedExecution, Semaphore
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Standing

MOST_OF_A_KEY: Final = 60  # in the list
IN_LINE: Final = (F("due_at").asc(nulls_first=True), "-priority", "id")  # as they are let in


class WaitsForFilter(ChoiceFilter):
    """A slot, or a uniqueness key."""

    title = _("waits for")
    parameter_name = "waits_for"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the two things a job can wait for."""
        return [(value, capfirst(label)) for value, label in BlockedExecution.WaitsFor.choices]


class KeyFilter(GivenFilter):
    """One key as it is stored; the page of locks leads here."""

    title = _("key")
    parameter_name = "key"

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return who waits for the key, found by the index of the line."""
        return queryset.filter(waits_for__in=BlockedExecution.WaitsFor.values, key=value)


class ParkedAdmin(WorkAdmin):
    """Who waits for a slot or for a uniqueness key."""

    decisions = (RUN_NOW, DISCARD)
    actions = (RUN_NOW.as_action(), DISCARD.as_action())
    heavy = ("payload", "errors")
    reach = "parked_at"
    seen_by = "parked_at"
    list_display = ("job", "task_path", "queue", "state", "key_start", "waited", "due")
    list_filter = (WaitsForFilter, KeyFilter, BatchFilter, FarQueueFilter)
    sortable_by = ("job", "waited")
    fieldsets = (
        WORK,
        (_("Parked"), {"fields": ("what", "key_text", "limited_by", "since", "due", "enqueued")}),
        (_("Run"), {"fields": ("queue", "priority", "attempts", "delivery")}),
    )

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        """Return whether this person may let jobs run before their time."""
        return self.may(request, RUN_NOW)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Return whether this person may discard jobs."""
        return self.may(request, DISCARD)

    def get_ordering(self, request: HttpRequest) -> Any:
        """Return who waits longest first; of one key, who is let in first; of one batch, as everywhere."""
        if "batch" in request.GET:
            return super().get_ordering(request)
        return IN_LINE if {"key", "waits_for"} <= request.GET.keys() else ("parked_at",)

    def standing(self, row: Any) -> Standing:
        """Return what it waits for."""
        return waiting.with_code(waiting.parked(row, row.situation), has_code=row.found_task is not None)

    def finish_page(self, request: HttpRequest, context: dict[str, Any]) -> None:
        """Add the way to the locks."""
        super().finish_page(request, context)
        key = context["original"].key
        if url := self.link(request, Semaphore, q=key):
            context["pgbus_buttons"] = [{"label": _("Locks"), "url": url}, *context["pgbus_buttons"]]

    @admin.display(description=_("waits for"))
    def what(self, obj: Any) -> str:
        """Return what it waits for."""
        return str(obj.get_waits_for_display())

    @admin.display(description=_("key"))
    def key_start(self, obj: Any) -> SafeString:
        """Return as much of the key as fits the list."""
        return _code(words.shortened(contents.chosen_key(obj.key, obj.constraints), MOST_OF_A_KEY))

    @admin.display(description=_("key"))
    def key_text(self, obj: Any) -> SafeString:
        """Return the key it waits for."""
        return _code(contents.chosen_key(obj.key, obj.constraints))

    @admin.display(description=_("semaphore"))
    def limited_by(self, obj: Any) -> SafeString | str:
        """Return the key of the semaphore it needs a slot of."""
        return (
            _code(contents.chosen_key(obj.semaphore, obj.constraints))
            if obj.semaphore
            else self.get_empty_value_display()
        )

    @admin.display(description=_("parked for"), ordering="parked_at")
    def waited(self, obj: Any) -> SafeString:
        """Return for how long it is parked, and since when."""
        return format_html(
            '{}<br><span class="pgbus-quiet">{}</span>',
            words.between(obj.parked_at, obj.situation.pauses.now),
            gettext("since %(time)s") % {"time": words.clock(obj.parked_at)},
        )

    @admin.display(description=_("parked since"))
    def since(self, obj: Any) -> str:
        """Return since when it is parked, and for how long that is."""
        waited = (obj.situation.pauses.now - obj.parked_at).total_seconds()
        return gettext("%(time)s, for %(age)s") % {"time": words.moment(obj.parked_at), "age": words.age(waited)}

    @admin.display(description=_("due at"))
    def due(self, obj: Any) -> str:
        """Return when it may be let in, empty for one that may be now."""
        return words.clock(obj.due_at) or self.get_empty_value_display()


def _code(text: str) -> SafeString:
    return format_html('<code class="pgbus-key">{}</code>', text)
