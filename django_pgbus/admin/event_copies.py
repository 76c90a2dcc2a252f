"""
Copies of events among the jobs: one handler's copy is a message like a task's, and stands in the same lists.

Its page says what was published and leads to the other handlers' copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.exceptions import NotRegistered
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import event_contents, job_words, words
from django_pgbus.admin.base import PgbusAdmin
from django_pgbus.admin.decisions import DecidingAdmin
from django_pgbus.admin.shown import shown_path, shown_topic
from django_pgbus.events import stats
from django_pgbus.events.handlers import handler_at
from django_pgbus.events.models import Subscription
from django_pgbus.events.stats import MOST_COPIES, Copy
from django_pgbus.queues.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Situation, Standing

TABLES: Final[dict[str, type[Model]]] = {"line": Message, "delayed": Delayed, "dead": DeadLetter, "done": Archived}
# What stands in place of a field of a task; what a handler returns is not kept.
OF_EVENTS: Final[dict[str, tuple[str, ...]]] = {"enqueued": ("published",), "result_text": ()}


def is_copy(row: Any) -> bool:
    """Return whether a row is a handler's copy of an event, though it may have been written past us and lack a half."""
    return row.event_id is not None or row.topic is not None


def standing(copy: Copy, situation: Situation) -> Standing:
    """Return how a copy of an event stands, wherever it is."""
    if copy.place in {"dead", "done"}:
        return job_words.ended(copy.state, copy.note if copy.place == "done" else copy.reason, copy.attempts)
    return waiting.standing(copy, situation)


def visible(page: PgbusAdmin, request: HttpRequest, copies: Sequence[Copy]) -> list[Copy]:
    """Return the copies that stand in lists which this person may see."""
    return [copy for copy in copies if page.link(request, TABLES[copy.place])]


def copy_rows(
    page: PgbusAdmin, request: HttpRequest, copies: Sequence[Copy], situation: Situation
) -> list[dict[str, Any]]:
    """Return what the tables of copies show: links and decisions only for those who may follow and take them."""
    handlers = {path: handler_at(path) for path in {copy.task for copy in copies}}
    rows = []
    for copy in copies:
        found = handlers[copy.task]
        stands = standing(copy, situation)
        rows.append(
            {
                "job": str(copy.id),
                "url": page.link(request, TABLES[copy.place], "change", quote(copy.id)),
                "topic": shown_topic(copy.topic),
                "path": shown_path(copy.task),
                "name": words.showable(copy.task),
                "importable": found is not None,
                "queue": words.showable(copy.queue),
                "event": str(copy.event_id),
                "event_url": page.link(request, Subscription, q=copy.event_id),
                "standing": stands,
                "due": _due(copy, found),
                "error": "",
                "published": gettext("%(age)s ago") % {"age": words.between(copy.enqueued_at, situation.pauses.now)},
                "ended": words.clock(copy.ended_at),
                "ran_for": words.between(copy.started_at, copy.ended_at),
                "decisions": _decisions(page, request, copy),
            }
        )
    return rows


def _due(copy: Copy, handler: Any) -> str:
    """Return when a delayed copy is tried again, and which attempt that is."""
    if copy.due_at is None:
        return ""
    due = gettext("due %(time)s") % {"time": words.clock(copy.due_at)}
    if copy.reason != Delayed.Reason.RETRY:
        return due
    told = {"attempt": event_contents.nth_attempt(copy.attempts, handler), "due": due}
    return gettext("%(attempt)s, %(due)s") % told


def _decisions(page: PgbusAdmin, request: HttpRequest, copy: Copy) -> list[dict[str, Any]]:
    try:
        other = page.admin_site.get_model_admin(TABLES[copy.place])
    except NotRegistered:
        return []
    return other.buttons(request, copy.id, copy) if isinstance(other, DecidingAdmin) else []


class EventCopiesAdmin(DecidingAdmin):
    """What the page of a job shows of an event, if it is a handler's copy of one."""

    def event_fieldsets(self, found: Sequence[Any], obj: Any) -> list[Any]:
        """Return the facts of a copy: the event in place of the task, and nothing that events do not have."""
        once = ("counts_once",) if obj.constraints is not None else ()
        headers = ("headers_text",) if event_contents.headers(obj.payload, obj.found_task) else ()
        event = {"fields": ("topic_text", *once, "event_text", "handler_path", "payload_text", *headers)}
        others = [
            (
                name,
                {**facts, "fields": tuple(one for field in facts["fields"] for one in OF_EVENTS.get(field, (field,)))},
            )
            for name, facts in found[1:]
        ]
        return [(_("Event"), event), *others]

    def finish_page(self, request: HttpRequest, context: dict[str, Any]) -> None:
        """Add the copies that other handlers have of the same event, or this one's other deliveries."""
        job: Any = context["original"]
        if job.event_id is None:
            return
        copies = stats.copies(job.event_id, MOST_COPIES + 1)
        others = [copy for copy in visible(self, request, copies) if copy.id != job.pk]
        context["pgbus_copies"] = {
            "rows": copy_rows(self, request, others[:MOST_COPIES], job.situation),
            "most": words.number(MOST_COPIES) if len(others) > MOST_COPIES else "",
        }

    @admin.display(description=_("topic"))
    def topic_text(self, obj: Any) -> SafeString:
        """Return the topic it was published under, or that it has none."""
        return shown_topic(obj.topic)

    @admin.display(description=_("published at"))
    def published(self, obj: Any) -> str:
        """Return when it was published."""
        return words.moment(obj.enqueued_at)

    @admin.display(description=_("event"))
    def event_text(self, obj: Any) -> SafeString | str:
        """Return the id of the event, linked to all that became of it."""
        return obj.event_shown  # type: ignore[no-any-return]

    @admin.display(description=_("handler"))
    def handler_path(self, obj: Any) -> SafeString:
        """Return the stored path, marked if nothing can be imported from it here."""
        shown = shown_path(obj.task)
        if obj.found_task is not None:
            return shown
        return format_html('{} <span class="pgbus-mark">{}</span>', shown, _("cannot be imported here"))

    @admin.display(description=_("counts once"))
    def counts_once(self, obj: Any) -> str:
        """Return what it means that it claims its event."""
        return gettext("yes: at most one run of this handler counts for this event")

    @admin.display(description=_("payload"))
    def payload_text(self, obj: Any) -> SafeString:
        """Return what was published, sensitive values masked."""
        shown = format_html("<pre>{}</pre>", event_contents.payload(obj.payload, obj.found_task))
        if obj.found_task is not None:
            return shown
        hidden = _("its values are hidden: the handler cannot be imported here")
        return format_html('{}<span class="pgbus-quiet">{}</span>', shown, hidden)

    @admin.display(description=_("headers"))
    def headers_text(self, obj: Any) -> SafeString:
        """Return what travels with it."""
        return format_html("<pre>{}</pre>", event_contents.headers(obj.payload, obj.found_task))

    def event_link(self, request: HttpRequest, event: Any) -> SafeString | str:
        """Return the id of an event, linked for those who may see the page of events; nothing for none."""
        if event is None:
            return ""
        if not (url := self.link(request, Subscription, q=event)):
            return str(event)
        return format_html('<a href="{}">{}</a>', url, event)
