"""The confirmations of decisions about what has no page of its own: a key, or the subscription of a handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path

from django_pgbus.admin import words
from django_pgbus.admin.base import PgbusAdmin, within_bounds
from django_pgbus.admin.key_decisions import KeyDecision, Log


class KeyDecidingAdmin(PgbusAdmin):
    """One page, and a confirmation for each decision; what it is about stands in the query string."""

    key_decisions: ClassVar[tuple[KeyDecision, ...]] = ()

    def get_urls(self) -> list[URLPattern]:
        """Return the page and its decisions, none of which has a key in its path."""
        wrap, name = self.admin_site.admin_view, self.opts.model_name
        return [
            path("", wrap(self.changelist_view), name=f"pgbus_{name}_changelist"),
            *(
                path(f"{decision.name}/", wrap(self._view(decision)), name=f"pgbus_{name}_{decision.name}")
                for decision in self.key_decisions
            ),
        ]

    def may(self, request: HttpRequest, decision: KeyDecision) -> bool:
        """Return whether this person may decide so: seeing and deciding are two permissions."""
        return self.has_all(request, *decision.permissions)

    def has_all(self, request: HttpRequest, *permissions: str) -> bool:
        """Return whether this person has these permissions."""
        user: Any = request.user
        return bool(user.has_perms(permissions))

    def decide_url(self, decision: KeyDecision, **query: Any) -> str:
        """Return the address of a confirmation."""
        return f"{self.url(decision.name)}?{urlencode(query)}"

    def home(self, request: HttpRequest) -> str:
        """Return the address of the page a decision leads back to."""
        return self.url("changelist")

    def _view(self, decision: KeyDecision) -> Callable[..., HttpResponse]:
        def view(request: HttpRequest) -> HttpResponse:
            return self._decide(request, decision)

        return view

    @within_bounds
    def _decide(self, request: HttpRequest, decision: KeyDecision) -> HttpResponse:
        if not self.may(request, decision):
            raise PermissionDenied
        if request.method not in {"GET", "HEAD", "POST"}:
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        found = decision.find(request.GET)
        if found is None:
            self.message_user(request, str(decision.gone), messages.WARNING)
        elif request.method == "POST" and decision.confirmed(request.POST):
            for text, level in decision.carry_out(found, request.POST, Log(request.user)):
                self.message_user(request, text, level)
        else:
            return self._ask(request, decision, found)
        return HttpResponseRedirect(self.home(request))

    def _ask(self, request: HttpRequest, decision: KeyDecision, found: Any) -> HttpResponse:
        context = {
            "crumb": decision.label,
            "key": words.showable(decision.key(found)),
            "back": self.home(request),
            **decision.ask(found),
        }
        return self.page(request, decision.template(found), context)
