"""What a job holds, and who holds what a parked one waits for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from django.contrib.admin.utils import quote
from django.db.models import OuterRef, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import contents, words
from django_pgbus.admin.base import PgbusAdmin
from django_pgbus.concurrency.models import BlockedExecution, Semaphore, Slot
from django_pgbus.conf import database
from django_pgbus.queues.models import Message
from django_pgbus.uniqueness.models import UniquenessKey

MOST: Final = 20  # holders that are named
UNTIL_FINISHED: Final = UniquenessKey.Strategy.UNTIL_FINISHED


def held(page: PgbusAdmin, request: HttpRequest, job: Any) -> list[dict[str, Any]]:
    """Return the slot and the keys that a job holds, and for a parked one who is in its way; as far as a person may see."""
    user: Any = request.user
    rows: list[dict[str, Any]] = []
    if user.has_perm("pgbus.view_semaphore"):
        rows += _slots(page, request, job)
    if user.has_perm("pgbus.view_uniquenesskey"):
        rows += _keys(page, request, job)
    return rows


def _slots(page: PgbusAdmin, request: HttpRequest, job: Any) -> Iterator[dict[str, Any]]:
    waits = isinstance(job, BlockedExecution) and job.waits_for == BlockedExecution.WaitsFor.SEMAPHORE
    # When the lease of the holder's job ends, or has ended: that of its slot is longer.
    lease = Message.objects.filter(pk=OuterRef("message_id")).values("leased_until")
    slots = Slot.objects.using(database()).annotate(job_leased_until=Subquery(lease))
    mine = slots.filter(key=job.key).order_by("ordinal") if waits else slots.filter(message_id=job.pk)
    found = list(mine[: MOST + 1])
    for slot in found[:MOST]:
        text = gettext("Slot %(number)s") % {"number": words.number(slot.ordinal)}
        yield {
            "what": text,
            "key": words.showable(contents.chosen_key(slot.key, job.constraints)),
            "key_url": page.link(request, Semaphore, q=slot.key),
            "holder": str(slot.message_id) if waits else "",
            "holder_url": page.link(request, Message, "change", quote(slot.message_id)) if waits else "",
            "since": words.moment(slot.taken_at),
            "until": _until(slot, job.situation.pauses.now),
        }
    if len(found) > MOST:
        yield {
            "what": _("and more"),
            "key_url": page.link(request, Semaphore, q=job.key),
            "key": words.showable(job.key),
        }


def _until(slot: Any, now: datetime) -> str:
    """Return how long a slot is kept, or since when whoever holds it is silent."""
    if slot.leased_until is None:
        return gettext("kept while it does not run")
    if slot.job_leased_until is not None and slot.job_leased_until < now:
        told = {"time": words.clock(slot.job_leased_until), "until": words.clock(slot.leased_until)}
        return gettext("silent since %(time)s, kept until %(until)s") % told
    return gettext("beats until %(time)s") % {"time": words.clock(slot.leased_until)}


def _keys(page: PgbusAdmin, request: HttpRequest, job: Any) -> Iterator[dict[str, Any]]:
    waits = isinstance(job, BlockedExecution) and job.waits_for == BlockedExecution.WaitsFor.KEY
    keys = UniquenessKey.objects.using(database())
    mine = keys.filter(key=job.key) if waits else keys.filter(message_id=job.pk).exclude(strategy=UNTIL_FINISHED)
    for lock in mine.order_by("key")[:MOST]:
        other = waits and lock.strategy != UNTIL_FINISHED
        yield {
            "what": _("Uniqueness key"),
            "key": words.showable(lock.name or lock.key),
            "key_url": page.link(request, Semaphore, q=lock.key),
            "holder": (str(lock.message_id) if other else gettext("batch %(id)s") % {"id": lock.message_id})
            if waits
            else "",
            "holder_url": page.link(request, Message, "change", quote(lock.message_id)) if other else "",
            "since": words.moment(lock.created_at),
            "until": str(lock.get_strategy_display()),
        }
