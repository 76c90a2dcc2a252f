"""The locks: which keys are held by whom, who waits for them, and what may be decided about one key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.base import within_bounds
from django_pgbus.admin.key_decisions import (
    DISCARD_LOCK,
    DISCARD_PARKED,
    KEY_DECISIONS,
    RELEASE,
)
from django_pgbus.admin.key_pages import KeyDecidingAdmin
from django_pgbus.batches.models import Batch
from django_pgbus.concurrency import stats as concurrency_stats
from django_pgbus.concurrency.models import BlockedExecution
from django_pgbus.concurrency.stats import KeyStats, Totals
from django_pgbus.postgres.keys import stored, why_unusable
from django_pgbus.queues.models import Delayed, Message
from django_pgbus.queues.stats import Count
from django_pgbus.uniqueness import stats as uniqueness_stats
from django_pgbus.uniqueness.models import UniquenessKey
from django_pgbus.uniqueness.stats import LockStats
from django_pgbus.worker.waiting import Text

MOST_OF_A_KEY: Final = 120  # in a table; its confirmations show it whole
VIEW_LIMITED: Final = "pgbus.view_semaphore"
VIEW_UNIQUE: Final = "pgbus.view_uniquenesskey"
PLACES: Final[dict[str, tuple[type[Model] | None, Text]]] = {
    "running": (Message, _("running")),
    "line": (Message, _("in line")),
    "delayed": (Delayed, _("delayed")),
    "parked": (BlockedExecution, _("parked")),
    "batch": (Batch, _("not finished")),
    "": (None, _("nowhere: its key is freed within a minute")),
}


class LocksAdmin(KeyDecidingAdmin):
    """One page with the keys of both kinds; each kind is seen by whoever may see it."""

    key_decisions = KEY_DECISIONS

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether this person may see one of the two kinds."""
        return self.has_all(request, VIEW_LIMITED) or self.has_all(request, VIEW_UNIQUE)

    @within_bounds
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Return the page of all locks, or of the keys that are looked for."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        search = request.GET.get("q", "")
        context = {
            "title": _("Locks"),
            "search": words.showable(search),
            "all_url": self.url("changelist"),
            "unique": self._unique(request, search) if self.has_all(request, VIEW_UNIQUE) else None,
            "limited": self._limited(request, search) if self.has_all(request, VIEW_LIMITED) else None,
        }
        return self.page(request, "locks.html", {**context, **(extra_context or {})})

    # --- uniqueness ---------------------------------------------------------------------------------------

    def _unique(self, request: HttpRequest, search: str) -> dict[str, Any]:
        locks = uniqueness_stats.locks(search)
        total = uniqueness_stats.total()
        waiting = concurrency_stats.waiting_for([lock.key for lock in locks])
        may_discard = self.may(request, DISCARD_LOCK)
        return {
            "total": words.count(total),
            "rows": [
                self._unique_row(request, lock, waiting.get(lock.key, Count(0)), may_discard=may_discard)
                for lock in locks
            ],
            "may_discard": may_discard,
            "most": words.number(len(locks)) if not search and total.number > len(locks) else "",
        }

    def _unique_row(
        self, request: HttpRequest, lock: LockStats, waiting: Count, *, may_discard: bool
    ) -> dict[str, Any]:
        model, place = PLACES[lock.place]
        return {
            "key": words.shortened(lock.name or lock.key, MOST_OF_A_KEY),
            "strategy": _label(lock.strategy),
            "queue": words.showable(lock.queue),
            "job": lock.message,
            "holder": (gettext("batch %(id)s") if lock.of_batch else gettext("job %(id)s")) % {"id": lock.message},
            "job_url": self.link(request, model, "change", quote(lock.message)) if model else "",
            "place": place,
            "age": words.age(lock.held_for),
            "since": words.moment(lock.created_at),
            "waiting": words.count(waiting) if waiting else "",
            "waiting_url": self._parked_url(request, "key", lock.key) if waiting else "",
            "discard_url": self.decide_url(DISCARD_LOCK, key=lock.key, job=lock.message) if may_discard else "",
        }

    # --- concurrency --------------------------------------------------------------------------------------

    def _limited(self, request: HttpRequest, search: str) -> dict[str, Any]:
        totals = concurrency_stats.totals()
        if not search:
            keys = concurrency_stats.busiest()
        else:
            wanted = [] if why_unusable(search) else sorted({search, stored(search)})
            keys = [key for key in concurrency_stats.described(wanted) if key.slots or key.parked]
        may_release, may_discard = self.may(request, RELEASE), self.may(request, DISCARD_PARKED)
        rows = [self._limited_row(request, key, release=may_release, discard=may_discard) for key in keys]
        most = concurrency_stats.MOST_KEYS
        return {
            "cards": list(self._cards(request, totals)),
            "rows": rows,
            "may_decide": may_release or may_discard,
            "most": words.number(most) if len(rows) >= most else "",
        }

    def _cards(self, request: HttpRequest, totals: Totals) -> Iterator[dict[str, Any]]:
        oldest = totals.parked.oldest
        for_keys = totals.parked_for_keys.number
        note = ""
        if for_keys:
            note = gettext("and %(number)s for a uniqueness key") % {"number": words.count(for_keys)}
        yield {
            "number": words.count(totals.parked.number),
            "label": ngettext("parked job", "parked jobs", totals.parked.number.number),
            "note": note,
            "url": self.link(request, BlockedExecution, waits_for="semaphore") if totals.parked.number else "",
        }
        yield {"number": "" if oldest is None else words.age(oldest), "label": _("oldest wait")}
        yield {"number": words.count(totals.slots), "label": ngettext("slot held", "slots held", totals.slots.number)}
        at_limit = ngettext("key at its limit", "keys at their limit", totals.at_limit.number)
        yield {"number": words.count(totals.at_limit), "label": at_limit}

    def _limited_row(self, request: HttpRequest, key: KeyStats, *, release: bool, discard: bool) -> dict[str, Any]:
        of_key = {"key": key.key}
        more = key.slots.number - len(key.holders)
        return {
            "key": words.shortened(key.name or key.key, MOST_OF_A_KEY),
            "slots": words.count(key.slots),
            "capacity": "?" if key.capacity is None else words.number(key.capacity),
            "at_limit": key.at_limit,
            "leases": list(_leases(key)),
            "holders": [
                {
                    "job": holder.message,
                    "url": self.link(request, Message if holder.in_line else Delayed, "change", quote(holder.message)),
                }
                for holder in key.holders
            ],
            "more": words.number(more) if more > 0 else "",
            "locked": _locked(key),
            "parked": words.count(key.parked),
            "parked_url": self._parked_url(request, "semaphore", key.key) if key.parked else "",
            "not_due": words.number(key.not_due) if key.not_due else "",
            "oldest": "" if key.oldest is None else words.age(key.oldest),
            "release_url": self.decide_url(RELEASE, **of_key) if release and key.slots else "",
            "discard_url": self.decide_url(DISCARD_PARKED, **of_key) if discard and key.parked else "",
        }

    def _parked_url(self, request: HttpRequest, waits_for: str, key: str) -> str:
        return self.link(request, BlockedExecution, waits_for=waits_for, key=key)


def _label(strategy: str) -> str:
    return str(dict(UniquenessKey.Strategy.choices).get(strategy, strategy))


def _leases(key: KeyStats) -> Iterator[dict[str, Any]]:
    """Yield how the holders are, in words, and the kind that colours them."""
    number = {"number": words.number(key.beating), "time": words.clock(key.beating_until)}
    if key.beating == 1:
        yield {"kind": "running", "text": gettext("running and beating until %(time)s") % number}
    elif key.beating:
        yield {"kind": "running", "text": gettext("%(number)s running and beating until %(time)s") % number}
    if key.waiting:
        text = ngettext("waiting", "%(number)s waiting", key.waiting)
        yield {"kind": "waiting", "text": text % {"number": words.number(key.waiting)}}
    if key.silent:
        number = {"number": words.number(key.silent), "time": words.clock(key.silent_since)}
        if key.silent_since is None:
            text = ngettext("silent", "%(number)s silent", key.silent)
        else:
            text = ngettext("silent since %(time)s", "%(number)s silent since %(time)s", key.silent)
        yield {"kind": "lost", "text": text % number}
    if not key.slots:
        yield {"kind": "quiet", "text": gettext("no holder")}


def _locked(key: KeyStats) -> str:
    """Return whose open transaction keeps everybody from being let in, or nothing."""
    if (backend := key.backend) is None:
        return ""
    named = {"pid": backend.pid, "application": words.showable(backend.application), "time": words.clock(backend.since)}
    if not backend.since:
        text = gettext(
            "Locked by database session %(pid)s (%(application)s). Nobody is let in until its transaction ends."
        )
    else:
        text = gettext(
            "Locked by database session %(pid)s (%(application)s) since %(time)s. Nobody is let in until its "
            "transaction ends."
        )
    return text % named
