"""
What a person may decide about jobs: asked for by POST, confirmed on a page that names the number, written to the log.

A decision stands on the list as an action and on a job's own page as a button; both lead to the same confirmation. One
request carries out at most `LIMIT`, a thousand per transaction, and each transaction holds its log entries too: nothing
is done without a trace, nothing is logged that was not done. What is more than that goes on in parts (`progress.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext

from django_pgbus.admin import words
from django_pgbus.admin.base import PgbusAdmin, within_bounds
from django_pgbus.admin.given import parsed_moment
from django_pgbus.admin.progress import Progress, counted, log_together
from django_pgbus.conf import database
from django_pgbus.postgres import retrying
from django_pgbus.queues import stats
from django_pgbus.queues.stats import LIMIT
from django_pgbus.worker.waiting import Text

BATCH: Final = 1_000
LISTED: Final = 20
SEEN: Final = "seen"  # when the number on the confirmation was counted


@dataclass(frozen=True, slots=True)
class Done:
    """
    Ids by what became of them: `log` is the line in the log, `level` how the message to the person looks.

    Those of one `log` and one `why` are told of together.
    """

    ids: frozenset[int]
    log: str
    tell: Callable[[int], str]
    level: int = messages.SUCCESS
    why: str = ""


Told = dict[tuple[str, str], tuple[Done, int]]  # by log and why; and of how many it is true


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """
    One thing that may be done to jobs.

    `question` and `button` take their number; `carry_out` takes ids and when they were seen, and returns what became of
    which. `fits` says whether it means anything for a row: its page has no button where it does not.
    """

    name: str
    permission: str
    label: Text
    action: Text
    question: Callable[[int], str]
    button: Callable[[int], str]
    warning: Text
    carry_out: Callable[[Sequence[int], datetime | None], list[Done]]
    destroys: bool = False
    fits: Callable[[Any], bool] = lambda row: True

    def as_action(self) -> Callable[..., Any]:
        """Return it as Django's admin takes actions."""

        def act(admin: DecidingAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
            return admin.decide_on_list(request, self, queryset)

        act.__name__ = self.name
        act.short_description = self.action  # type: ignore[attr-defined]
        act.allowed_permissions = (self.name,)  # type: ignore[attr-defined]
        return act


class DecidingAdmin(PgbusAdmin):
    """A page whose rows somebody may decide about; each decision needs a method `has_<name>_permission`."""

    decisions: tuple[Decision, ...] = ()
    seen_by = "enqueued_at"  # later rows came after the person looked

    def may(self, request: HttpRequest, decision: Decision) -> bool:
        """Return whether this person may decide so: seeing and deciding are two permissions."""
        user: Any = request.user
        return self.has_view_permission(request) and user.has_perm(decision.permission)

    def whereabouts(self, request: HttpRequest, pk: Any) -> str:
        """Return the address of the page that shows a row now, empty if there is none for this person."""
        return ""

    def get_urls(self) -> list[URLPattern]:
        """Return a page of its own for each decision, and Django's."""
        return [
            path(
                f"<path:object_id>/{decision.name}/",
                self.admin_site.admin_view(self._view(decision)),
                name=f"pgbus_{self.opts.model_name}_{decision.name}",
            )
            for decision in self.decisions
        ] + super().get_urls()

    def buttons(self, request: HttpRequest, pk: Any, row: Any) -> list[dict[str, Any]]:
        """Return the decisions this person may take about a row, those that mean anything for it."""
        return [
            {
                "label": decision.label,
                "url": self.url(decision.name, quote(pk)),
                "destroys": decision.destroys,
            }
            for decision in self.decisions
            if self.may(request, decision) and decision.fits(row)
        ]

    # --- on the list --------------------------------------------------------------------------------------

    def decide_on_list(self, request: HttpRequest, decision: Decision, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Ask, or carry out what was confirmed for the rows that were shown then."""
        if not self.may(request, decision):
            raise PermissionDenied
        across = request.POST.get("select_across") == "1"
        if request.POST.get("post") == "yes":
            seen = parsed_moment(request.POST.get(SEEN, ""))
            if seen is not None:
                queryset = queryset.filter(**{f"{self.seen_by}__lte": seen})
            if across and (progress := Progress.of(request.POST)):
                return self._next_part(request, decision, queryset, progress, seen)
            ids = list(queryset.values_list("pk", flat=True)[:LIMIT])
            self.tell(request, self.carry_out(request, decision, ids, seen))
            return None
        found = list(queryset[: LISTED + 1])
        number, about = len(found), False
        if len(found) > LISTED:
            number, about = counted(self.get_paginator(request, queryset, LISTED))
        chosen = [(ACTION_CHECKBOX_NAME, pk) for pk in ([0] if across else queryset.values_list("pk", flat=True))]
        parts = Progress(total=number, about=about).hidden() if across and number > LIMIT else []
        return self._ask(
            request,
            decision,
            found[:LISTED],
            number,
            about=about,
            hidden=[*chosen, ("action", decision.name), ("select_across", int(across)), *parts],
            back=request.get_full_path(),
        )

    def _next_part(
        self,
        request: HttpRequest,
        decision: Decision,
        queryset: QuerySet[Any],
        progress: Progress,
        seen: datetime | None,
    ) -> HttpResponse:
        """Carry out as much as one request may, in the order of the ids, and show how far it is."""
        rest = queryset.filter(pk__gt=progress.after).order_by("pk")
        ids = list(rest.values_list("pk", flat=True)[:LIMIT])
        done = changed(self.carry_out(request, decision, ids, seen, together=True))
        progress = progress.and_then(ids, done, over=len(ids) < LIMIT)
        context = {
            "title": decision.label,
            "crumb": decision.label,
            "progress": progress,
            "seen": seen.isoformat() if seen else "",
            "hidden": [
                (ACTION_CHECKBOX_NAME, 0),
                ("action", decision.name),
                ("select_across", 1),
                *([(SEEN, seen.isoformat())] if seen else []),
                *progress.hidden(),
            ],
            "back": request.get_full_path(),
        }
        return self.page(request, "progress.html", context)

    # --- on a row's own page ------------------------------------------------------------------------------

    def _view(self, decision: Decision) -> Callable[..., HttpResponse]:
        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            return self._decide_on_one(request, decision, object_id)

        return view

    @within_bounds
    def _decide_on_one(self, request: HttpRequest, decision: Decision, object_id: str) -> HttpResponse:
        if not self.may(request, decision):
            raise PermissionDenied
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            missing: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
            return missing
        match request.method:
            case "POST" if request.POST.get("post") == "yes":
                seen = parsed_moment(request.POST.get(SEEN, ""))
                self.tell(request, self.carry_out(request, decision, [obj.pk], seen))
                return HttpResponseRedirect(self.whereabouts(request, obj.pk) or self.url("changelist"))
            case "GET" | "HEAD" | "POST":
                back = self.url("change", quote(obj.pk))
                return self._ask(request, decision, [obj], 1, hidden=[], back=back)
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])

    # --- both ---------------------------------------------------------------------------------------------

    def _ask(
        self,
        request: HttpRequest,
        decision: Decision,
        rows: Sequence[Any],
        number: int,
        *,
        about: bool = False,
        hidden: list[tuple[str, Any]],
        back: str,
    ) -> HttpResponse:
        self.furnish(rows)
        context = {
            "title": decision.question(number),
            "crumb": decision.label,
            "warning": decision.warning,
            "button": decision.button(number),
            "destroys": decision.destroys,
            "rows": rows,
            "not_listed": words.number(number - len(rows)) if number > len(rows) else "",
            "part": words.number(LIMIT) if number > LIMIT else "",
            "about": about,
            "hidden": [*hidden, (SEEN, stats.pauses().now.isoformat())],
            "back": back,
        }
        return self.page(request, "confirm.html", context)

    def carry_out(
        self,
        request: HttpRequest,
        decision: Decision,
        ids: Sequence[int],
        seen: datetime | None,
        *,
        together: bool = False,
    ) -> Told:
        """
        Do it, a thousand per transaction, and return what became of how many.

        The log has an entry for each job, or with `together` one for each transaction, which names them all.
        """
        told: Told = {}
        for batch in _batches(ids):
            for done in retrying(lambda: self._transaction(request, decision, batch, seen, together=together)):  # noqa: B023
                as_one = (done.log, done.why)
                told[as_one] = (done, told.get(as_one, (done, 0))[1] + len(done.ids))
        return told

    def tell(self, request: HttpRequest, told: Told) -> None:
        """Say in one message per outcome what became of how many."""
        for done, number in told.values():
            if number:
                self.message_user(request, done.tell(number), done.level)
        if not any(number for _, number in told.values()):
            self.message_user(
                request, gettext("Nothing was changed: the jobs are not here any more."), messages.WARNING
            )

    def _transaction(
        self, request: HttpRequest, decision: Decision, ids: Sequence[int], seen: datetime | None, *, together: bool
    ) -> list[Done]:
        with transaction.atomic(using=database()):
            rows = {row.pk: row for row in self.get_queryset(request).filter(pk__in=ids).only("pk", "task")}
            outcomes = decision.carry_out(ids, seen)
            for done in outcomes:
                logged = [rows[pk] for pk in sorted(done.ids) if pk in rows] if done.log else []
                if logged and together:
                    log_together(request, logged, done.log)
                elif logged:
                    LogEntry.objects.log_actions(request.user.pk, logged, CHANGE, done.log)  # type: ignore[arg-type]
            return outcomes


def changed(told: Told) -> int:
    """Return how many were changed: those that the log tells of."""
    return sum(number for done, number in told.values() if done.log)


def _batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
