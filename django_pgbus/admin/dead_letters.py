"""Dead letters: why a job gave up, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.contrib import admin, messages
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Right
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import contents, words
from django_pgbus.admin.decisions import Decision, Done
from django_pgbus.admin.event_filters import EventFilter, EventsFilter
from django_pgbus.admin.lists import QueueFilter, field_filter
from django_pgbus.admin.shown import end
from django_pgbus.admin.work import BatchFilter, WorkAdmin
from django_pgbus.conf import database
from django_pgbus.queues.models import DeadLetter
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.outcomes import Entered, HeldElsewhere, LimitReached
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Standing

MOST_NAMED: Final = 10  # that could not be redriven
MOST_OF_A_KEY: Final = 200


def _redrive(ids: Sequence[int], seen: datetime | None) -> list[Done]:
    redriven = lifecycle.redrive(ids)
    done, refused = frozenset(redriven.ids), frozenset(redriven.refused)
    return [
        Done(done, gettext("Redriven."), _redriven),
        Done(frozenset(redriven.members), "", _counted_before, messages.INFO, "members"),
        *_stay(redriven.refused),
        _gone(ids, done | refused),
    ]


def _stay(refused: Mapping[int, Entered]) -> Iterator[Done]:
    """Yield why each one that cannot enter stays; beyond the first few only how many."""
    named = sorted(refused)[:MOST_NAMED]
    for id in named:
        why = _why(id, refused[id])
        yield Done(frozenset([id]), "", lambda number, why=why: why, messages.WARNING, why)  # type: ignore[misc]
    yield Done(frozenset(refused) - {*named}, "", _more_stay, messages.WARNING, "more")


def _why(id: int, refused: Entered) -> str:
    match refused:
        case HeldElsewhere(key=key, holder=None):
            text = gettext("Dead letter %(id)s stays: other jobs held its key %(key)s.")
            return text % {"id": id, "key": words.showable(key[:MOST_OF_A_KEY])}
        case HeldElsewhere(key=key, holder=holder):
            text = gettext("Dead letter %(id)s stays: %(holder)s holds its key %(key)s.")
            return text % {"id": id, "holder": holder, "key": words.showable(key[:MOST_OF_A_KEY])}
        case LimitReached(key=key, to=to):
            text = ngettext(
                "Dead letter %(id)s stays: %(to)s job of its key %(key)s is allowed at once, and is running or waiting.",
                "Dead letter %(id)s stays: %(to)s jobs of its key %(key)s are allowed at once, and are running or waiting.",
                to,
            )
            return text % {"id": id, "to": words.number(to), "key": words.showable(key[:MOST_OF_A_KEY])}
    return gettext("Dead letter %(id)s stays.") % {"id": id}


def _more_stay(number: int) -> str:
    text = ngettext(
        "%(number)s more dead letter stays for such a reason.",
        "%(number)s more dead letters stay for such reasons.",
        number,
    )
    return text % {"number": words.number(number)}


def _discard(ids: Sequence[int], seen: datetime | None) -> list[Done]:
    done = frozenset(lifecycle.discard_dead(ids))
    return [Done(done, gettext("Discarded."), _discarded), _gone(ids, done)]


def _gone(ids: Sequence[int], done: frozenset[int]) -> Done:
    return Done(frozenset(ids) - done, "", _left, messages.WARNING)


def _redriven(number: int) -> str:
    text = ngettext("%(number)s dead letter was redriven.", "%(number)s dead letters were redriven.", number)
    return text % {"number": words.number(number)}


def _counted_before(number: int) -> str:
    text = ngettext(
        "%(number)s redriven job was a member of a batch that has counted it as failed: it does not count again, and no "
        "finished batch is opened again.",
        "%(number)s redriven jobs were members of a batch that has counted them as failed: they do not count again, and "
        "no finished batch is opened again.",
        number,
    )
    return text % {"number": words.number(number)}


def _discarded(number: int) -> str:
    text = ngettext("%(number)s dead letter was discarded.", "%(number)s dead letters were discarded.", number)
    return text % {"number": words.number(number)}


def _left(number: int) -> str:
    text = ngettext(
        "%(number)s dead letter had left before and was not touched.",
        "%(number)s dead letters had left before and were not touched.",
        number,
    )
    return text % {"number": words.number(number)}


REDRIVE: Final = Decision(
    name="redrive",
    permission="pgbus.redrive_dead_letter",
    label=_("Redrive"),
    action=_("Redrive selected %(verbose_name_plural)s"),
    question=lambda n: (
        ngettext("Redrive %(number)s dead letter?", "Redrive %(number)s dead letters?", n) % {"number": words.number(n)}
    ),
    button=lambda n: (
        ngettext("Redrive %(number)s dead letter", "Redrive %(number)s dead letters", n) % {"number": words.number(n)}
    ),
    warning=_(
        "A redriven job goes back into the line of its queue under the same ID, and its attempts start again. What the "
        "earlier ones did outside of the database is not undone. One whose key is held by another job, or which finds "
        "no slot and must not wait for one, stays here; any other that finds no slot is parked. A member of a batch that "
        "has counted it as failed does not count again, and no finished batch is opened again."
    ),
    carry_out=_redrive,
)

DISCARD: Final = Decision(
    name="discard",
    permission="pgbus.discard_dead_letter",
    label=_("Discard"),
    action=_("Discard selected %(verbose_name_plural)s"),
    question=lambda n: (
        ngettext("Discard %(number)s dead letter?", "Discard %(number)s dead letters?", n) % {"number": words.number(n)}
    ),
    button=lambda n: (
        ngettext("Discard %(number)s dead letter", "Discard %(number)s dead letters", n) % {"number": words.number(n)}
    ),
    warning=_("A discarded job never runs again. It is kept among the finished jobs for as long as they are kept."),
    carry_out=_discard,
    destroys=True,
)


class DeadLetterAdmin(WorkAdmin):
    """What gave up."""

    decisions = (REDRIVE, DISCARD)
    actions = (REDRIVE.as_action(), DISCARD.as_action())
    may_hold = False
    reach = "died_at"
    seen_by = "died_at"
    list_display = ("job", "task_path", "queue", "died", "why")
    list_filter = (field_filter("reason", _("reason")), EventsFilter, EventFilter, BatchFilter, QueueFilter)
    ordering = ("-died_at",)
    sortable_by = ("job", "died")
    fieldsets = (
        (_("Task"), {"fields": ("task_path", "arguments")}),
        (_("End"), {"fields": ("died", "reason_text", "attempts", "delivery")}),
        (_("Run"), {"fields": ("queue", "priority", "worker_name", "started", "enqueued")}),
    )

    def has_redrive_permission(self, request: HttpRequest) -> bool:
        """Return whether this person may redrive."""
        return self.may(request, REDRIVE)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Return whether this person may discard dead letters."""
        return self.may(request, DISCARD)

    def furnish(self, rows: Sequence[Any]) -> None:
        """Attach the last error too: two short texts for each row, whatever the history weighs."""
        super().furnish(rows)
        errors = last_errors([row.pk for row in rows])
        for row in rows:
            row.last_error = errors.get(row.pk, "")

    def standing(self, row: Any) -> Standing:
        """Return why it gave up."""
        return waiting.ended("dead", _reason(row))

    @admin.display(description=_("why"))
    def why(self, obj: Any) -> SafeString:
        """Return its last error and the reason it was given up for."""
        return format_html(
            '<span class="pgbus-error">{}</span><br><span class="pgbus-quiet">{}</span>',
            obj.last_error,
            end(obj.reason, obj.attempts),
        )

    @admin.display(description=_("reason"))
    def reason_text(self, obj: Any) -> str:
        """Return why it was given up."""
        return str(obj.get_reason_display())

    @admin.display(description=_("died at"), ordering="died_at")
    def died(self, obj: Any) -> str:
        """Return when it was given up."""
        return words.moment(obj.died_at)

    @admin.display(description=_("started at"))
    def started(self, obj: Any) -> str:
        """Return when its last run began."""
        return words.moment(obj.started_at) or self.get_empty_value_display()


def _reason(letter: DeadLetter) -> str:
    said = {"reason": letter.get_reason_display()}
    return gettext("It will not run again by itself: %(reason)s.") % said


def last_errors(ids: Sequence[int]) -> dict[int, str]:
    """Return the line that says what each of these dead letters died of, in one query."""
    last = KeyTransform("-1", "errors")
    rows = (
        DeadLetter.objects.using(database())
        .filter(pk__in=ids)
        .annotate(
            last_exception=KeyTextTransform("exception", last),
            last_traceback=Right(KeyTextTransform("traceback", last), 2000),
        )
    )
    found = rows.values_list("pk", "last_exception", "last_traceback")
    return {pk: contents.last_line(name, text) for pk, name, text in found}
