"""
What a person may decide about jobs: asked for by POST, confirmed on a page that names the number, written to the log.

A decision stands on the list as an action and on a job's own page as a button; both lead to the same confirmation. One
request carries out at most `LIMIT`, a thousand per transaction, and each transaction holds its log entries too: nothing
is done without a trace, nothing is logged that was not done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext

from django_pgbus.admin import words
from django_pgbus.admin.base import PgbusAdmin, within_bounds
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """
    One thing that may be done to jobs.

    `question` and `button` take their number; `carry_out` takes ids and returns what became of which.
    """

    name: str
    permission: str
    label: Text
    action: Text
    question: Callable[[int], str]
    button: Callable[[int], str]
    warning: Text
    carry_out: Callable[[Sequence[int]], list[Done]]
    destroys: bool = False

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

    def buttons(self, request: HttpRequest, pk: Any) -> list[dict[str, Any]]:
        """Return the decisions this person may take about a row."""
        return [
            {
                "label": decision.label,
                "url": self.url(decision.name, quote(pk)),
                "destroys": decision.destroys,
            }
            for decision in self.decisions
            if self.may(request, decision)
        ]

    # --- on the list --------------------------------------------------------------------------------------

    def decide_on_list(self, request: HttpRequest, decision: Decision, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Ask, or carry out what was confirmed for the rows that were shown then."""
        if not self.may(request, decision):
            raise PermissionDenied
        if request.POST.get("post") == "yes":
            if seen := parse_datetime(request.POST.get(SEEN, "")):
                queryset = queryset.filter(**{f"{self.seen_by}__lte": seen})
            self._carry_out(request, decision, list(queryset.values_list("pk", flat=True)[:LIMIT]))
            return None
        across = request.POST.get("select_across") == "1"
        found = list(queryset[: LISTED + 1])
        number = self.get_paginator(request, queryset, LISTED).found if len(found) > LISTED else len(found)  # type: ignore[attr-defined]
        hidden = (
            [(ACTION_CHECKBOX_NAME, "0")]
            if across
            else [(ACTION_CHECKBOX_NAME, pk) for pk in queryset.values_list("pk", flat=True)]
        )
        return self._ask(
            request,
            decision,
            found[:LISTED],
            min(number, LIMIT),
            more=number > LIMIT,
            hidden=[
                *hidden,
                ("action", decision.name),
                ("select_across", int(across)),
                (SEEN, stats.pauses().now.isoformat()),
            ],
            back=request.get_full_path(),
        )

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
            case "POST":
                self._carry_out(request, decision, [obj.pk])
                return HttpResponseRedirect(self.whereabouts(request, obj.pk) or self.url("changelist"))
            case "GET" | "HEAD":
                back = self.url("change", quote(obj.pk))
                return self._ask(request, decision, [obj], 1, more=False, hidden=[], back=back)
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])

    # --- both ---------------------------------------------------------------------------------------------

    def _ask(
        self,
        request: HttpRequest,
        decision: Decision,
        rows: Sequence[Any],
        number: int,
        *,
        more: bool,
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
            "most": words.number(LIMIT) if more else "",
            "hidden": hidden,
            "back": back,
        }
        return self.page(request, "confirm.html", context)

    def _carry_out(self, request: HttpRequest, decision: Decision, ids: Sequence[int]) -> None:
        """Do it in batches, and say in one message per outcome what became of how many."""
        told: dict[tuple[str, str], tuple[Done, int]] = {}
        for batch in _batches(ids):
            for done in retrying(lambda: self._transaction(request, decision, batch)):  # noqa: B023
                as_one = (done.log, done.why)
                told[as_one] = (done, told.get(as_one, (done, 0))[1] + len(done.ids))
        for done, number in told.values():
            if number:
                self.message_user(request, done.tell(number), done.level)
        if not any(number for _, number in told.values()):
            self.message_user(
                request, gettext("Nothing was changed: the jobs are not here any more."), messages.WARNING
            )

    def _transaction(self, request: HttpRequest, decision: Decision, ids: Sequence[int]) -> list[Done]:
        with transaction.atomic(using=database()):
            rows = {row.pk: row for row in self.get_queryset(request).filter(pk__in=ids).only("pk", "task")}
            outcomes = decision.carry_out(ids)
            for done in outcomes:
                if logged := [rows[pk] for pk in sorted(done.ids) if pk in rows and done.log]:
                    LogEntry.objects.log_actions(request.user.pk, logged, CHANGE, done.log)  # type: ignore[arg-type]
            return outcomes


def _batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
