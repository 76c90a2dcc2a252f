"""The events: what waits and why, what became of the rest, who claims, who subscribed, and what nobody handles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.base import within_bounds
from django_pgbus.admin.dead_letters import last_errors
from django_pgbus.admin.event_contents import why_skipped
from django_pgbus.admin.event_copies import copy_rows, visible
from django_pgbus.admin.event_filters import parsed_event
from django_pgbus.admin.given import parsed_text
from django_pgbus.admin.key_pages import KeyDecidingAdmin
from django_pgbus.admin.shown import shown_path
from django_pgbus.admin.unbind import UNBIND
from django_pgbus.events import stats
from django_pgbus.events.handlers import handler_at
from django_pgbus.events.models import Subscription
from django_pgbus.events.stats import Copy, Counts, SubscriptionStats
from django_pgbus.idempotency import stats as claim_stats
from django_pgbus.idempotency.stats import ClaimStats, Skipped
from django_pgbus.queues.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.queues.stats import Count
from django_pgbus.worker import stats as worker_stats
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Situation

MOST: Final = 15  # rows of each table; the lists of jobs hold all copies
MOST_OF_A_SEARCH: Final = 300
VIEW_CLAIMS: Final = "pgbus.view_processedevent"
SAID: Final = {"completed": _("handled before"), "cached": _("known to be handled"), "owned": _("being handled")}


class EventsAdmin(KeyDecidingAdmin):
    """One page for the events; what is among the jobs is seen by whoever may see those lists."""

    key_decisions = (UNBIND,)

    @within_bounds
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Return the page of events, of what a text finds among them, or of one event."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        search = parsed_text(request.GET, "q", MOST_OF_A_SEARCH)
        now = waiting.situation()
        event = parsed_event(search)
        found = self._all(request, search, now) if event is None else self._one(request, event, now)
        context = {
            "title": _("Events"),
            "search": words.showable(search),
            "all_url": self.url("changelist"),
            "reach": words.number(stats.REACH) if search and event is None else "",
            **found,
        }
        return self.page(request, "events.html", {**context, **(extra_context or {})})

    def _one(self, request: HttpRequest, event: UUID, now: Situation) -> dict[str, Any]:
        """Return the copies of one event and the claims on it."""
        copies = visible(self, request, stats.copies(event, stats.MOST_COPIES + 1))
        shown = copies[: stats.MOST_COPIES]
        more = len(copies) > len(shown)
        claims = claim_stats.claims_of(event) if self.has_all(request, VIEW_CLAIMS) else None
        return {
            "event": str(event),
            "copies": {
                "rows": self._rows(request, shown, now),
                "most": words.number(len(shown)) if more else "",
                "lists": [],
            },
            "claims": None if claims is None else {"rows": [self._claim(request, claim, now) for claim in claims]},
        }

    def _all(self, request: HttpRequest, search: str, now: Situation) -> dict[str, Any]:
        """Return all sections, each for those who may see it."""
        pending = dead = processed = None
        if self._sees(request, Message, Delayed):
            lists = [(_("Jobs"), Message), (_("Delayed jobs"), Delayed)]
            pending = self._section(request, stats.pending(search, MOST + 1), now, lists)
        if self._sees(request, DeadLetter):
            dead = self._section(request, stats.dead(search, MOST + 1), now, [(_("Dead letters"), DeadLetter)])
        if self._sees(request, Archived):
            lists = [(_("Finished jobs"), Archived)]
            processed = self._section(request, stats.processed(search, MOST + 1), now, lists)
        unrouted = claim_stats.unrouted(search, claim_stats.MOST_TOPICS + 1)
        # These numbers are of all events, whatever is searched for.
        skipped = [] if search else [one for one in claim_stats.skipped() if one.number]
        return {
            "cards": [] if search else list(self._cards(request, stats.counts(), skipped)),
            "pending": pending,
            "dead": dead,
            "processed": processed,
            "claims": self._claims(request, search, now),
            "subscriptions": self._subscriptions(request, search, now),
            "unhandled": self._unhandled(unrouted),
            "skipped": [
                {
                    "reason": SAID.get(one.reason, one.reason),
                    "why": why_skipped(one.reason),
                    "number": words.count(one.number),
                    "last": words.clock(one.last_at),
                }
                for one in skipped
            ],
        }

    # --- copies -------------------------------------------------------------------------------------------

    def _sees(self, request: HttpRequest, *models: type[Model]) -> bool:
        return all(self.link(request, model) for model in models)

    def _section(
        self, request: HttpRequest, copies: list[Copy], now: Situation, lists: Sequence[tuple[Any, type[Model]]]
    ) -> dict[str, Any]:
        return {
            "rows": self._rows(request, copies[:MOST], now),
            "most": words.number(MOST) if len(copies) > MOST else "",
            "lists": [{"label": label, "url": self.link(request, model, kind="events")} for label, model in lists],
        }

    def _rows(self, request: HttpRequest, copies: list[Copy], now: Situation) -> list[dict[str, Any]]:
        rows = copy_rows(self, request, copies, now)
        errors = last_errors([copy.id for copy in copies if copy.place == "dead"])
        for row, copy in zip(rows, copies, strict=True):
            row["error"] = errors.get(copy.id, "")
        return rows

    def _cards(self, request: HttpRequest, counts: Counts, skipped: Sequence[Skipped]) -> Iterator[dict[str, Any]]:
        def card(label: Any, number: Count, model: type[Model], *, alarm: bool = False, **query: str) -> dict[str, Any]:
            url = self.link(request, model, kind="events", **query) if number else ""
            return {"label": label, "number": words.count(number), "url": url, "alarm": alarm and bool(number)}

        yield card(ngettext("ready", "ready", counts.ready.number), counts.ready, Message, state="ready")
        yield card(ngettext("running", "running", counts.running.number), counts.running, Message, state="running")
        yield card(ngettext("delayed", "delayed", counts.delayed.number), counts.delayed, Delayed)
        yield card(ngettext("dead letter", "dead letters", counts.dead.number), counts.dead, DeadLetter, alarm=True)
        yield card(ngettext("processed", "processed", counts.processed.number), counts.processed, Archived)
        total = sum((one.number for one in skipped), Count(0))
        skips = ngettext("skipped", "skipped", total.number)
        yield {"label": skips, "number": words.count(total), "url": "#skipped" if total else ""}

    # --- claims -------------------------------------------------------------------------------------------

    def _claims(self, request: HttpRequest, search: str, now: Situation) -> dict[str, Any] | None:
        if not self.has_all(request, VIEW_CLAIMS):
            return None
        counts = claim_stats.counts()
        found = claim_stats.claims(search, MOST + 1)
        return {
            "rows": [self._claim(request, claim, now) for claim in found[:MOST]],
            "most": words.number(MOST) if len(found) > MOST else "",
            "running": words.count(counts.running),
            "silent": words.count(counts.silent),
            "completed": words.count(counts.completed),
        }

    def _claim(self, request: HttpRequest, claim: ClaimStats, now: Situation) -> dict[str, Any]:
        if claim.completed_at is not None:
            kind, state = "ready", gettext("completed %(time)s") % {"time": words.clock(claim.completed_at)}
        elif claim.silent:
            kind, state = "lost", gettext("silent since %(time)s") % {"time": words.clock(claim.leased_until)}
        elif claim.leased_until is None or claim.leased_until < now.pauses.now:
            # In the time of one lease after a restart of PostgreSQL nobody counts as silent.
            kind, state = "waiting", gettext("not heard since %(time)s") % {"time": words.clock(claim.leased_until)}
        else:
            beating = gettext("running and beating until %(time)s")
            kind, state = "running", beating % {"time": words.clock(claim.leased_until)}
        return {
            "path": shown_path(claim.handler),
            "event": str(claim.event_id),
            "event_url": self.link(request, Subscription, q=claim.event_id),
            "kind": kind,
            "state": state,
            "job": str(claim.message_id),
            # Where it is not in the line any more its page leads on.
            "url": self.link(request, Message, "change", quote(claim.message_id)),
            "claimed": words.clock(claim.claimed_at),
        }

    # --- subscriptions ------------------------------------------------------------------------------------

    def _subscriptions(self, request: HttpRequest, search: str, now: Situation) -> dict[str, Any]:
        found = stats.subscriptions(search, stats.MOST_SUBSCRIPTIONS + 1)
        may_unbind = self.may(request, UNBIND)
        shown = found[: stats.MOST_SUBSCRIPTIONS]
        return {
            "rows": [self._subscription(one, now, may_unbind=may_unbind) for one in shown],
            "may_unbind": may_unbind,
            "most": words.number(len(shown)) if len(found) > len(shown) else "",
        }

    def _subscription(self, one: SubscriptionStats, now: Situation, *, may_unbind: bool) -> dict[str, Any]:
        return {
            "pattern": words.showable(one.pattern),
            "path": shown_path(one.handler),
            "name": words.showable(one.handler),
            "importable": handler_at(one.handler) is not None,
            "idempotent": one.idempotent,
            "queue": words.showable(one.queue),
            "serving": _serving(one.queue, now),
            "declared": words.moment(one.declared_at),
            "unbind_url": self.decide_url(UNBIND, handler=one.handler, pattern=one.pattern) if may_unbind else "",
        }

    # --- what nobody handles ------------------------------------------------------------------------------

    def _unhandled(self, found: list[claim_stats.Unrouted]) -> dict[str, Any]:
        shown = found[: claim_stats.MOST_TOPICS]
        handled = stats.handled(one.topic for one in shown)
        return {
            "rows": [
                {
                    "topic": words.showable(one.topic),
                    "number": words.count(one.number),
                    "last": words.clock(one.last_at),
                    "handled": one.topic in handled,
                }
                for one in shown
            ],
            "most": words.number(len(shown)) if len(found) > len(shown) else "",
        }


def _serving(queue: str, now: Situation) -> dict[str, str]:
    """Return whether somebody drains a queue, in words, and the kind that colours them."""
    if queue in now.pauses.queues:
        return {"kind": "waiting", "state": gettext("paused")}
    workers = worker_stats.serving(queue, now.workers)
    if not workers:
        return {"kind": "lost", "state": gettext("no worker")}
    return {"kind": "ready", "state": gettext("served")}
